"""What a request of kubelet's must satisfy before it is granted."""

from collections.abc import Collection

from gpuagent.domain.admission import Candidate, spread_was_asked
from gpuagent.domain.annotations import shown
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.grant import Located
from gpuagent.domain.honour import turn
from gpuagent.domain.job import named_gpus
from gpuagent.domain.mode import GROUP_ANNOTATION, Kind, Mode
from gpuagent.domain.pods import Owner
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


def check_core_mem(resource: str, size: int, candidates: Collection[Candidate], snap: Snapshot) -> None:
    """The rules of mode core_mem: compute in whole steps; a container that asks for one resource asks for the other.

    One that has compute alone would have the whole GPU's memory.
    """
    kind, policy = snap.sold.get(resource), snap.policy
    if kind is None or kind.mode is not Mode.CORE_MEM:
        return
    if kind is Kind.CORE_CORE_MEM and size % policy.core_step:
        below = size - size % policy.core_step
        fitting = " or ".join(str(n) for n in (below, below + policy.core_step) if n)
        text = f"{resource}: {size} is no multiple of {policy.core_step} percent; ask for {fitting}"
        raise Refusal(Reason.CORE_STEP, text)
    if not policy.core_mem_both or not candidates:
        return
    other = next(name for name in snap.sold if name != resource)
    if not any(candidate.container.asks(other) for candidate in candidates):
        text = (
            f"{resource}: {next(iter(candidates)).owner} asks for it and not for {other}; in mode core_mem "
            "a container asks for both, or for neither"
        )
        raise Refusal(Reason.CORE_MEM_BOTH, text)


def as_decided(resource: str, at: Located, candidates: tuple[Candidate, ...], claims: Claims) -> tuple[Candidate, ...]:
    """The candidates for which a scheduler did not decide on other GPUs than kubelet picked."""
    snap = claims.snapshot
    if not at.kind.is_whole:
        return _share_as_decided(resource, at, candidates, claims)
    agreed, refusals = [], []
    for candidate in candidates:
        try:
            named = named_gpus(candidate.pod, resource, snap)
        except Refusal as refusal:
            refusals.append(refusal)
            continue
        if named is None or at.counts.keys() <= named:
            agreed.append(candidate)
            continue
        picked = ", ".join(str(snap.gpus[uuid].index) for uuid in at.counts)
        text = (
            f"{resource}: kubelet picked GPU {picked} for {candidate.owner}, and the pod's annotation "
            f"{GROUP_ANNOTATION} names others: {shown(candidate.pod.annotations[GROUP_ANNOTATION])}"
        )
        refusals.append(Refusal(Reason.GPU_GROUP, text))
    if refusals and not agreed:
        raise refusals[0]
    return tuple(agreed)


def _share_as_decided(
    resource: str, at: Located, candidates: tuple[Candidate, ...], claims: Claims
) -> tuple[Candidate, ...]:
    if not claims.snapshot.policy.keep_decisions:
        return candidates
    agreed, refusals = [], []
    for candidate in candidates:
        try:
            where = None if candidate.first else turn(candidate, resource, claims)
        except Refusal as refusal:
            refusals.append(refusal)
            continue
        if where is None or at.counts.keys() == where.role:
            agreed.append(candidate)
            continue
        picked = ", ".join(f"GPU {claims.snapshot.gpus[uuid].index}" for uuid in at.counts)
        text = f"{resource}: kubelet picked {picked} for {candidate.owner}, and {where.said}"
        refusals.append(Refusal(Reason.GPU_DECISION, text))
    if refusals and not agreed:
        raise refusals[0]
    return tuple(agreed)


def most_sharers(snap: Snapshot) -> str:
    """The caps of sharers of one GPU, for messages: ``20 pods``."""
    pods = f"{snap.policy.max_pods_per_gpu} pods"
    return pods if snap.max_sharers is None else f"{pods} or {snap.max_sharers} containers"


def check_sharers(resource: str, at: Located, asker: Owner | None, claims: Claims) -> None:
    """A GPU that was not chosen by us, as kubelets do that ask for no preference, must have room for one more."""
    full = claims.full_gpus(asker) & at.counts.keys()
    if full and not at.kind.is_whole:
        where = ", ".join(f"GPU {claims.snapshot.gpus[uuid].index}" for uuid in full)
        text = (
            f"{resource}: kubelet picked {where}, which has {most_sharers(claims.snapshot)} already, the most allowed"
        )
        raise Refusal(Reason.TOO_MANY_PODS, text)


def apart(resource: str, other: str, uuids: Collection[str], counts: Collection[str], snap: Snapshot) -> Refusal:
    """Kubelet picked another GPU than the one (`uuids`) of the container's `other` resource."""
    there = ", ".join(str(snap.gpus[uuid].index) for uuid in uuids)
    here = ", ".join(str(snap.gpus[uuid].index) for uuid in counts)
    text = f"{resource}: kubelet picked GPU {here}, but the container's {other} is on GPU {there}"
    return Refusal(Reason.PAIR_APART, text)
