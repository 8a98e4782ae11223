"""What a request of kubelet's must satisfy before it is granted."""

from collections.abc import Collection

from gpuagent.domain.admission import spread_was_asked
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.grant import Located
from gpuagent.domain.ledger import Handout
from gpuagent.domain.snapshot import Snapshot


def free_by_gpu(resource: str, offered: frozenset[str], snap: Snapshot) -> dict[str, frozenset[str]]:
    """GPU UUID to the ids of `offered` there.

    Raises:
        Refusal: the resource is at zero in this mode, or an id is not one of its devices.
    """
    if resource not in snap.sold:
        text = f"{resource}: not offered in mode {snap.mode}, which is in force on this node"
        raise Refusal(Reason.NOT_OFFERED, text)
    free: dict[str, frozenset[str]] = {}
    for (name, uuid, _), ids in snap.blocks.items():
        if name == resource and (here := ids & offered):
            free[uuid] = here | free[uuid] if uuid in free else here
    if sum(map(len, free.values())) < len(offered):
        stranger = min(offered.difference(*free.values()))
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {stranger!r} is not on offer on this node")
    return free


def check_offered(resource: str, ids: frozenset[str], at: Located, claims: Claims) -> None:
    """New units must be on offer and on one GPU unless a spread was asked for; units given out before are fine."""
    snap, counts = claims.snapshot, at.counts
    kind = snap.sold.get(resource)
    may_span = len(counts) == 1 or kind is None or kind.is_whole
    if may_span and at.listed:
        return
    before = claims.given(resource, ids)
    if before and before.ids == ids:
        return
    # Before the book was read nothing is on offer, and only units given before a restart can be asked for.
    if not before and snap.holdings_known and not at.listed:
        text = f"{resource}: not offered in mode {snap.mode}, which is in force on this node"
        raise Refusal(Reason.NOT_OFFERED, text)
    if may_span:
        return
    even = len(set(counts.values())) == 1
    if not (even and spread_was_asked(resource, len(ids), len(counts), snap)):
        where = ", ".join(f"{n} on GPU {snap.gpus[uuid].index}" for uuid, n in counts.items())
        text = (
            f"{resource}: kubelet picked units of several GPUs for one container ({where}); a share stays on "
            "one GPU unless the pod label aliyun.com/gpu-count asks for an even spread"
        )
        raise Refusal(Reason.SPANS_GPUS, text)


def apart(resource: str, first: Handout, counts: Collection[str], snap: Snapshot) -> Refusal:
    """Kubelet picked another GPU than the one of the container's other resource."""
    there = ", ".join(str(snap.gpus[uuid].index) for uuid in first.uuids)
    here = ", ".join(str(snap.gpus[uuid].index) for uuid in counts)
    text = f"{resource}: kubelet picked GPU {here}, but the container's {first.resource} is on GPU {there}"
    return Refusal(Reason.PAIR_APART, text)
