"""Device ids: the GPU of each id, and the choice of ids on a GPU."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceAccess, DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import KINDS, parse_id, units_of
from gpuagent.domain.snapshot import Snapshot


class Located(NamedTuple):
    """The ids of one request: kind of unit, units by GPU UUID in index order, whether all are listed."""

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
    kind, uuid = snapshot.resource_kinds.get(resource), snapshot.units.get(next(iter(ids)))
    if kind and uuid and snapshot.blocks.get((resource, uuid, kind), frozenset()).issuperset(ids):
        return Located(kind, {uuid: len(ids)}, listed=True)  # the usual case, ten times faster than the rest
    counts = Counter(snapshot.units.get(device_id) or _unlisted(resource, device_id, snapshot) for device_id in ids)
    kinds = {KINDS[code] for code in {device_id.split("-", 2)[1] for device_id in ids}}
    if len(kinds) > 1 or snapshot.policy.resources.of(next(iter(kinds))) != resource:
        names = ", ".join(sorted(snapshot.policy.resources.of(kind) or "no resource" for kind in kinds))
        raise Refusal(Reason.MIXED_RESOURCES, f"{resource}: the request names devices of {names}")
    by_index = {uuid: counts[uuid] for uuid in sorted(counts, key=lambda uuid: snapshot.gpus[uuid].index)}
    return Located(kinds.pop(), by_index, listed=snapshot.units.keys() >= set(ids))


def _unlisted(resource: str, device_id: str, snapshot: Snapshot) -> str:
    """GPU UUID of an id of this node that is not advertised now, for example after a mode switch."""
    unit = parse_id(device_id)
    gpu = snapshot.gpu_by_key.get(unit.gpu_key) if unit else None
    if unit is None or gpu is None or unit.n >= units_of(gpu, unit.kind, snapshot.policy.unit):
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} does not exist on this node")
    return gpu.uuid


def granted(
    resource: str, at: Located, snapshot: Snapshot, strategy: DeviceStrategy, visible_gpus: Collection[str] = ()
) -> Grant:
    """The grant for the ids of one request. The same counts always give the same grant.

    Whole GPUs come in the order of their best ring. `visible_gpus` are UUIDs of GPUs that the container sees as well.
    """
    uuids = snapshot.ring(at.counts) if at.kind.is_whole else at.counts
    policy = snapshot.policy
    access = DeviceAccess(
        unit=policy.unit, device_nodes=snapshot.device_nodes, strategy=strategy, indexes=policy.index_for_uuid
    )
    gpus, others = ([snapshot.gpus[uuid] for uuid in some] for some in (uuids, visible_gpus))
    return access.grant(resource, at.kind, next(iter(at.counts.values())), gpus, others)
