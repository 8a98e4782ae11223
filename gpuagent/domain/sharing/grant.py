"""What a container receives for the device ids kubelet chose: environment, device nodes, CDI names."""

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import parse_id, units_of
from gpuagent.domain.snapshot import Snapshot

CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)


class DeviceStrategy(enum.StrEnum):
    """How a container gets at its GPUs."""

    DEVICE_NODES = "device-nodes"
    CDI = "cdi"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the node made visible in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A container's share. `units` are those of `resource` on each of `gpus` (equal on all of them).

    `beside` are GPUs of its job that it sees and does not have.
    """

    resource: str
    kind: Kind
    gpus: tuple[Gpu, ...]
    units: int
    env: Mapping[str, str]
    device_nodes: tuple[str, ...] = ()
    cdi_names: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[Gpu, ...] = ()


class Located(NamedTuple):
    """Where the ids of one request are: kind of unit, units by GPU UUID in index order, whether all are on the list."""

    kind: Kind
    counts: Mapping[str, int]
    listed: bool


def locate(resource: str, ids: Collection[str], snapshot: Snapshot) -> Located:
    """Find the ids of one request.

    Raises:
        Refusal: no ids, ids that are not of this node, ids of another resource, or more than one kind.
    """
    if not ids:
        raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: the request names no device")
    kind, uuid = snapshot.sold.get(resource), snapshot.units.get(next(iter(ids)))
    if kind and uuid and snapshot.blocks.get((resource, uuid, kind), frozenset()).issuperset(ids):
        return Located(kind, {uuid: len(ids)}, listed=True)  # as it should be; the rest takes ten times as long
    counts = Counter(snapshot.units.get(device_id) or _unlisted(resource, device_id, snapshot) for device_id in ids)
    kinds = {Kind(code) for code in {device_id.split("-", 2)[1] for device_id in ids}}
    if len(kinds) > 1 or snapshot.policy.resources.of(next(iter(kinds))) != resource:
        names = ", ".join(sorted(snapshot.policy.resources.of(kind) or "no resource" for kind in kinds))
        raise Refusal(Reason.MIXED_RESOURCES, f"{resource}: the request names devices of {names}")
    by_index = {uuid: counts[uuid] for uuid in sorted(counts, key=lambda uuid: snapshot.gpus[uuid].index)}
    return Located(kinds.pop(), by_index, listed=snapshot.units.keys() >= set(ids))


def _unlisted(resource: str, device_id: str, snapshot: Snapshot) -> str:
    """GPU UUID of an id that is not advertised now, as after a mode switch, but is one of this node's."""
    unit = parse_id(device_id)
    gpu = snapshot.gpu_by_key.get(unit.gpu_key) if unit else None
    if unit is None or gpu is None or unit.n >= units_of(gpu, unit.kind, snapshot.policy.unit):
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} does not exist on this node")
    return gpu.uuid


def grant(
    resource: str, at: Located, snapshot: Snapshot, strategy: DeviceStrategy, beside: Collection[str] = ()
) -> Grant:
    """The share that goes with the units of one request. The same counts always give the same grant.

    Whole GPUs come in the order of their best ring. `beside` are UUIDs of GPUs that the container sees as well, as a
    scheduler decided for its job; its own come first, for CUDA too.
    """
    kind, counts = at.kind, at.counts
    gpus = tuple(snapshot.gpus[uuid] for uuid in (snapshot.ring(counts) if kind.is_whole else counts))
    others = tuple(snapshot.gpus[uuid] for uuid in beside)
    seen = (*gpus, *others)
    units = next(iter(counts.values()))
    names = (str(gpu.index) if snapshot.policy.index_for_uuid else gpu.uuid for gpu in seen)
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(names)}
    if beside:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in seen)
    if kind.is_memory:
        env |= {
            "ALIYUN_COM_GPU_MEM_IDX": ",".join(str(gpu.minor) for gpu in gpus),
            "ALIYUN_COM_GPU_MEM_DEV": ",".join(
                dict.fromkeys(str(units_of(gpu, kind, snapshot.policy.unit)) for gpu in gpus)
            ),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
            "ALIYUN_COM_GPU_MEM_POD": str(sum(counts.values())),
            "ALIYUN_COM_GPU_MEM_UNIT": str(snapshot.policy.unit),
        }
    cdi = strategy is DeviceStrategy.CDI
    nodes = (*(f"/dev/nvidia{gpu.minor}" for gpu in seen), *CONTROL_NODES)
    return Grant(
        resource=resource,
        kind=kind,
        gpus=gpus,
        units=units,
        env=env,
        device_nodes=() if cdi else tuple(node for node in nodes if node in snapshot.device_nodes),
        cdi_names=tuple(f"nvidia.com/gpu={gpu.uuid}" for gpu in seen) if cdi else (),
        beside=others,
    )
