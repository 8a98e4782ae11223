"""Which GPUs the device ids of one request are of."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import KINDS, parse_id, units_of
from gpuagent.domain.snapshot import Snapshot


class Located(NamedTuple):
    """The ids of one request: kind of unit, units by GPU UUID in index order, whether all are listed."""

    kind: Kind
    counts: Mapping[str, int]
    listed: bool


def locate(
    resource: str,
    ids: Collection[str],
    snapshot: Snapshot,
) -> Located:
    """Find the ids of one request.

    Raises:
        Refusal: no ids, ids that are not of this node, ids of another resource, or more than one kind.
    """
    if not ids:
        raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: the request names no device")
    kind = snapshot.resource_kinds.get(resource)
    uuid = snapshot.units.get(next(iter(ids)))
    if kind and uuid:
        # Usually all ids are of one GPU. To find that out is ten times faster than to look at each id.
        ids_of_gpu = snapshot.ids.blocks.get((resource, uuid, kind), frozenset())
        if ids_of_gpu.issuperset(ids):
            return Located(kind, {uuid: len(ids)}, listed=True)
    return _locate_each(resource, ids, snapshot)


def _locate_each(
    resource: str,
    ids: Collection[str],
    snapshot: Snapshot,
) -> Located:
    """Find ids of several GPUs, or ids that are not listed now."""
    counts: Counter[str] = Counter()
    kinds = set()
    for device_id in ids:
        uuid = snapshot.units.get(device_id) or _unlisted(resource, device_id, snapshot)
        counts[uuid] += 1
        code = device_id.split("-", 2)[1]
        kinds.add(KINDS[code])
    resource_of = snapshot.policy.resources.of
    kind = next(iter(kinds))
    if len(kinds) > 1 or resource_of(kind) != resource:
        names = ", ".join(sorted(resource_of(kind) or "no resource" for kind in kinds))
        raise Refusal(Reason.MIXED_RESOURCES, f"{resource}: the request names devices of {names}")
    by_index = sorted(counts, key=lambda uuid: snapshot.gpus[uuid].index)
    return Located(
        kind,
        {uuid: counts[uuid] for uuid in by_index},
        listed=snapshot.units.keys() >= set(ids),
    )


def _unlisted(
    resource: str,
    device_id: str,
    snapshot: Snapshot,
) -> str:
    """GPU UUID of an id of this node that is not advertised now, for example after a mode switch."""
    unit = parse_id(device_id)
    gpu = snapshot.gpu_by_key.get(unit.gpu_key) if unit else None
    if unit and gpu is None:
        # Kubelet keeps a pod on its devices for good, also if the agent starts after the GPU has gone.
        gone = f"the GPU of device {device_id!r} is gone from this node, or the driver does not show it"
        advice = "the pod cannot get another one: delete it, so that its controller makes a new pod"
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: {gone}; {advice}")
    if unit is None or gpu is None or unit.n >= units_of(gpu, unit.kind, snapshot.policy.unit):
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} does not exist on this node")
    return gpu.uuid
