"""Kubelet's question, which of these ids a container should get, answered with everything known besides."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuagent.domain.admission import Candidate, gpu_count
from gpuagent.domain.bestset import BestSets
from gpuagent.domain.checks import check_core_mem, most_sharers
from gpuagent.domain.choose import Request, choose_share
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.honour import near, turn, turn_of_size
from gpuagent.domain.job import gpus_of_job, named_for_others, named_gpus, together
from gpuagent.domain.mode import GPU_CORE
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.whole import WholeRequest, choose_whole


@dataclass(frozen=True, slots=True)
class Question:
    """One GetPreferredAllocation: `free` is GPU UUID to the ids offered there, `size` counts `must_include` too.

    `gone`: whoever asks was deleted, of which kubelet has not heard yet. What was chosen for others is none of his.
    """

    resource: str
    size: int
    free: Mapping[str, frozenset[str]]
    must_include: frozenset[str]
    gone: bool = False


def chosen_for(question: Question, candidates: tuple[Candidate, ...], claims: Claims) -> tuple[str, ...]:
    """The ids to answer with: the first candidate is taken for the asker.

    Raises:
        Refusal: the request cannot be honoured.
    """
    snap, size = claims.snapshot, question.size
    check_core_mem(question.resource, size, candidates, snap)
    if snap.sets is None:
        try:
            return choose_share(_share(question, candidates, claims, decided=not question.gone))
        except Refusal as refusal:
            # Nobody is refused for what was chosen for a pod that he may not be.
            if refusal.reason is not Reason.GPU_DECISION or (snap.policy.keep_decisions and candidates):
                raise
        return choose_share(_share(question, candidates, claims, decided=False))
    chosen = choose_whole(_whole(question, candidates[0] if candidates else None, claims, snap.sets))
    snap.ring([snap.units[device_id] for device_id in chosen])  # Allocate asks for it in a moment
    return chosen


def for_any(
    candidates: tuple[Candidate, ...], choose: Callable[[tuple[Candidate, ...]], tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[Candidate, ...]]:
    """What `choose` has for the first candidate; where a scheduler's decision for that one cannot be kept, for another.

    Raises:
        Refusal: the first one's.
    """
    try:
        return choose(candidates), candidates
    except Refusal as refusal:
        if refusal.reason is not Reason.GPU_DECISION:
            raise
        for n, other in enumerate(candidates):
            if other.pod.name != candidates[0].pod.name:
                order = (other, *candidates[:n], *candidates[n + 1 :])
                with suppress(Refusal):
                    return choose(order), order
        raise


def _whole(question: Question, who: Candidate | None, claims: Claims, sets: BestSets) -> WholeRequest:
    snap, resource = claims.snapshot, question.resource
    # A GPU whose slot another one has now is in no topology; kubelet has not read yet that it is gone.
    free = {uuid: next(iter(ids)) for uuid, ids in question.free.items() if uuid in snap.places}
    must_include = {snap.units[device_id] for device_id in question.must_include}
    if gone := must_include - free.keys():
        text = f"{resource}: {snap.name_of(min(gone))}, which kubelet has fixed, is not there any more"
        raise Refusal(Reason.UNKNOWN_DEVICE, text)
    request = WholeRequest(
        resource=resource,
        size=question.size,
        free=free,
        sets=sets,
        places=snap.places,
        names={uuid: snap.name_of(uuid) for uuid in snap.places},
        must_include=must_include,
        leaving=_listed(resource, snap, healthy=False),
        doubtful={snap.units[device_id] for device_id in doubted(question, claims) & claims.offered},
        promised=named_for_others(who.pod if who else None, resource, claims),
        spare=_listed(resource, snap, healthy=True).difference(*map(claims.gpus_of, claims.standing)),
    )
    if who is None:
        return request
    held = gpus_of_job(who.pod, resource, claims)
    named = named_gpus(who.pod, resource, snap)
    return replace(
        request,
        named=None if named is None else named - held.get(who.pod.name, set()),
        beside=set[str]().union(*held.values()),
        together=together(who.pod, resource, held),
        asker=str(who.owner),
    )


def _listed(resource: str, snap: Snapshot, *, healthy: bool) -> set[str]:
    """UUIDs of the GPUs whose units are listed so; those that leave the list are shown unhealthy."""
    return {block.gpu.uuid for block in snap.lists.get(resource, ()) if block.healthy is healthy}


def doubted(question: Question, claims: Claims) -> frozenset[str]:
    """Ids offered now that somebody may still hold."""
    return frozenset[str]().union(*(claim.ids for claim in claims.doubted)) - question.must_include


def _share(question: Question, candidates: tuple[Candidate, ...], claims: Claims, *, decided: bool = True) -> Request:
    """Room is kept for all candidates. `decided`: what a scheduler chose for the asker counts."""
    snap, resource = claims.snapshot, question.resource
    who = candidates[0] if candidates else None
    first = who.first if who else claims.ledger.awaiting_partner(resource, claims.now)
    need = max((c.other(resource, snap.sold) for c in candidates), default=0) if len(snap.sold) > 1 else 0
    where = None
    if decided and not first:
        where = turn(who, resource, claims) if who else turn_of_size(resource, question.size, claims)
    request = Request(
        resource=resource,
        size=question.size,
        unit="%" if resource == GPU_CORE else snap.policy.unit.phrase,
        free=question.free,
        order=snap.indexes,
        must_include=question.must_include,
        placement=snap.placement,
        doubtful=doubted(question, claims),
        gpu_count=gpu_count(who.pod, resource, question.size, snap.sold) if who else 1,
        room=max((c.room(resource) for c in candidates if c.container.init), default=0),
        pinned=who.pinned if who else (),
        short=() if first else claims.short_gpus(resource, need),
        only=first.uuids if first else None,
        leaving=_listed(resource, snap, healthy=False),
        full=claims.full_gpus(who.owner if who else None),
        most=most_sharers(snap),
        asker=str(who.owner if who else "this container"),
    )
    if where:
        return replace(request, only=where.role, decided=where.said)
    if first:
        return request
    pinned = request.pinned or (near(who, snap) if who else ())
    return replace(request, pinned=pinned, promised=claims.promised(resource, who.pod if who else None))
