"""Reading kubelet's book: which GPU a held device id is on, and under which mode it was sold."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from gpuagent.domain.gpu import Gpu
from gpuagent.domain.mode import GPU_MEM, Mode
from gpuagent.domain.pods import Holding, Owner, Pod
from gpuagent.domain.units import parse_id

NVIDIA_GPU = "nvidia.com/gpu"
"""Resource of NVIDIA's own device plugin."""

FOREIGN = "foreign"
"""Stands for a mode where a unit was sold by another device plugin (NVIDIA's own, the old gpushare plugin)."""


_OLD_ID = "-_-"
"""In every id of the old gpushare plugin: ``GPU-…-_-7``."""


def told(holding: Holding, pod: Pod | None) -> Holding:
    """`holding` with the GPUs that its pod's annotations name, where the old gpushare plugin gave the ids.

    That plugin took no notice of the ids that kubelet picked: the container got the GPU of the annotation.
    """
    return replace(holding, told=pod.share_gpus) if pod is not None and _is_old(holding) else holding


def _is_old(holding: Holding) -> bool:
    return holding.resource == GPU_MEM and any(_OLD_ID in device_id for device_id in holding.ids)


def given_by_another(ids: Collection[str]) -> bool:
    """Whether another plugin gave these ids to a container that outlived it; nothing of them is this agent's."""
    return bool(ids) and not any(map(parse_id, ids))


def located(holding: Holding, gpus: Mapping[str, Gpu]) -> Iterator[tuple[str, Mode | str]]:
    """GPU UUID and mode (or `FOREIGN`) of each device id of `holding` that is on one of `gpus`.

    Ids of other plugins count when they name a GPU of ours: they carry the UUID (`GPU-…`, `GPU-…::2`), or are NVML
    indexes of `nvidia.com/gpu`. Those of the old gpushare plugin are on the GPUs that were told; where nobody knows,
    they may be on any. Anything else, a network card say, is no GPU.
    """
    by_key = {gpu.key: gpu.uuid for gpu in gpus.values()}
    for device_id in holding.ids:
        unit = parse_id(device_id)
        if unit is not None:
            if unit.gpu_key in by_key:
                yield by_key[unit.gpu_key], unit.kind.mode
            continue
        for uuid in foreign(holding, device_id, gpus):
            yield uuid, FOREIGN


def foreign(holding: Holding, device_id: str, gpus: Mapping[str, Gpu]) -> Iterator[str]:
    """UUIDs of the GPUs that a device id of another plugin stands for."""
    if _is_old(holding) and any(gpu.uuid in device_id for gpu in gpus.values()):
        yield from [gpu.uuid for gpu in gpus.values() if gpu.minor in (holding.told or ())] or gpus
        return
    for gpu in gpus.values():
        if gpu.uuid in device_id or (holding.resource == NVIDIA_GPU and device_id == str(gpu.index)):
            yield gpu.uuid


def held_otherwise(
    holdings: Iterable[Holding], gpus: Mapping[str, Gpu], mode: Mode, *, exclusive: bool
) -> dict[str, list[Holding]]:
    """GPU UUID to the holdings on it that were sold under another mode than `mode`, or by another plugin.

    `exclusive`: mode `default` is this agent's to serve; if it is not, other plugins' pods are as they should be there.
    """
    own = {mode, FOREIGN} if mode is Mode.DEFAULT and not exclusive else {mode}
    blocked: dict[str, list[Holding]] = {}
    for holding in holdings:
        for uuid in dict.fromkeys(uuid for uuid, sold_in in located(holding, gpus) if sold_in not in own):
            blocked.setdefault(uuid, []).append(holding)
    return blocked


def holder(resource: str, ids: frozenset[str], holdings: Collection[Holding]) -> Owner | None:
    """Who holds `ids`; for an init container, which kubelet does not list, the pod whose container reuses them."""
    reusers = [h for h in holdings if h.resource == resource and h.ids & ids]
    exact = [h.owner for h in reusers if h.ids == ids]
    if exact:
        return exact[0]
    pods = {h.owner.pod for h in reusers}
    return Owner(pods.pop(), "") if len(pods) == 1 else None
