"""Whole GPUs for a request: those that a scheduler named, or else the best set together with those of its job."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequest:
    """A request of a container for whole GPUs, with the limits on the choice.

    Attributes:
        resource: name, for messages.
        size: number of GPUs, `must_include` among them.
        free: UUIDs of the GPUs that kubelet calls free.
        sets: the chooser of sets of GPUs, by their place in the topology.
        positions: GPU UUID to its position in the topology.
        names: GPU UUID to its name in messages: ``GPU 3``.
        must_include: UUIDs of GPUs that kubelet has fixed already.
        leaving: UUIDs of GPUs that are unhealthy or leave the list; kubelet may not have read that yet.
        suspect: UUIDs of GPUs that a container may still hold.
        reserved: UUIDs of GPUs that a scheduler chose for other pods.
        spare: UUIDs of GPUs that are listed as healthy and that no container has; kubelet may call fewer free.
        named: UUIDs of the GPUs that a scheduler chose for this container; None without a decision.
        job_gpus: UUIDs of GPUs that the pod's other containers, and other pods of its job, have already.
        together: numbers of GPUs to choose as one set, this request's among them, because more pods of the job are to
            come: for all its pods, for one pod less, and so on; the last is for this pod alone.
        requester: the container, for messages.
    """

    resource: str
    size: int
    free: Collection[str]
    sets: BestSets
    positions: Mapping[str, int]
    names: Mapping[str, str]
    must_include: Collection[str] = ()
    leaving: Collection[str] = ()
    suspect: Collection[str] = ()
    reserved: Collection[str] = ()
    spare: Collection[str] = ()
    named: Collection[str] | None = None
    job_gpus: Collection[str] = ()
    together: Sequence[int] = ()
    requester: str = "this container"


def choose_whole(request: WholeRequest) -> tuple[str, ...]:
    """UUIDs of the chosen GPUs.

    The result has unhealthy, leaving, suspect or reserved GPUs only if there are not enough others.

    Raises:
        Refusal: not enough GPUs are free, or not those that a scheduler named.
    """
    free = set(request.free)
    if request.named is not None:
        _check_named(request)
        free &= set(request.named)
    if len(free) < request.size:
        raise Refusal(Reason.NOT_ENOUGH, _text(request, f"asks for {request.size} GPUs, {len(free)} are free"))
    fixed = set(request.must_include)
    for spoilt in sorted({_spoilt(request, uuid) for uuid in free}):
        pool = fixed | {uuid for uuid in free if _spoilt(request, uuid) == spoilt}
        if len(pool) >= request.size:
            break
        fixed = pool
    uuids = {place: uuid for uuid, place in request.positions.items()}
    return tuple(uuids[place] for place in _best(request, pool, fixed))


def _spoilt(request: WholeRequest, uuid: str) -> tuple[bool, bool, bool]:
    return uuid in request.leaving, uuid in request.suspect, uuid in request.reserved


def _best(request: WholeRequest, pool: Collection[str], fixed: Collection[str]) -> Collection[int]:
    """Positions of the best set out of `pool` with all of `fixed`: in the best set for its pod, in that for its job."""
    positions = request.positions
    free, must = {positions[uuid] for uuid in pool}, {positions[uuid] for uuid in fixed}
    job_gpus = {positions[uuid] for uuid in request.job_gpus if uuid in positions} - free
    for_job = next((count for count in request.together if count <= len(free)), 0)
    for_pod = min(max((request.size, *request.together[-1:])), len(free))
    if for_job > for_pod:
        free = set(request.sets.choose(free | job_gpus, for_job + len(job_gpus), must | job_gpus)) - job_gpus
    for count in (for_pod, request.size):
        free = set(request.sets.choose(free, count, must, job_gpus))
    return free


def _check_named(request: WholeRequest) -> None:
    named = request.named or ()
    if missing := set(named).difference(request.free):
        text = (
            f"asks for {request.size} GPUs; the scheduler chose {_names(request, named)} for its pod (annotation "
            f"{GROUP_ANNOTATION}), and {_missing(request, missing)}"
        )
        raise Refusal(Reason.GPU_GROUP, _text(request, text))
    if unhealthy := set(named).intersection(request.leaving):
        text = (
            f"asks for {request.size} GPUs; the scheduler chose {_names(request, named)} for its pod (annotation "
            f"{GROUP_ANNOTATION}), and {_names(request, unhealthy)} is unhealthy or leaves the mode"
        )
        raise Refusal(Reason.GPU_GROUP, _text(request, text))
    if strangers := set(request.must_include).difference(named):
        text = (
            f"asks for {request.size} GPUs; kubelet has fixed {_names(request, strangers)}, of an init container "
            f"or by its NUMA node, and annotation {GROUP_ANNOTATION} does not name it"
        )
        raise Refusal(Reason.GPU_GROUP, _text(request, text))


def _missing(request: WholeRequest, missing: Collection[str]) -> str:
    offered = _names(request, request.free) or "none"
    if gone := set(missing).difference(request.spare):
        return f"{_names(request, gone)} is not free (free: {offered})"
    return (
        f"kubelet does not offer {_names(request, missing)}, though free: it keeps to the NUMA nodes that its Topology "
        f"Manager chose (offered: {offered})"
    )


def _names(request: WholeRequest, uuids: Collection[str]) -> str:
    return ", ".join(request.names[uuid] for uuid in sorted(uuids, key=request.positions.__getitem__))


def _text(request: WholeRequest, what: str) -> str:
    return f"{request.resource}: {request.requester} {what}"
