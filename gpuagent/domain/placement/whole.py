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
        free.intersection_update(request.named)
    if len(free) < request.size:
        text = f"asks for {request.size} GPUs, {len(free)} are free"
        raise Refusal(Reason.NOT_ENOUGH, _text(request, text))
    flaws = {uuid: _flaws(request, uuid) for uuid in free}
    fixed = set(request.must_include)
    # Take all GPUs of the better grades, and choose among those of the grade that completes the request.
    grades = sorted(set(flaws.values()))
    for grade in grades:
        of_grade = {uuid for uuid in free if flaws[uuid] == grade}
        pool = fixed | of_grade
        if len(pool) >= request.size:
            break
        fixed = pool
    best = _best(request, pool, fixed)
    uuid_at = {position: uuid for uuid, position in request.positions.items()}
    return tuple(uuid_at[position] for position in best)


def _flaws(request: WholeRequest, uuid: str) -> tuple[bool, bool, bool]:
    """Why a GPU should not be taken, the most serious flaw first."""
    return (
        uuid in request.leaving,
        uuid in request.suspect,
        uuid in request.reserved,
    )


def _best(
    request: WholeRequest,
    pool: Collection[str],
    fixed: Collection[str],
) -> Collection[int]:
    """GPUs for this request: the best set in `pool` that contains `fixed`, chosen inside the best set for the job."""
    positions = request.positions
    sets = request.sets
    free = {positions[uuid] for uuid in pool}
    must = {positions[uuid] for uuid in fixed}
    # The topology has no place for a GPU of the job that the driver has lost.
    known_of_job = [uuid for uuid in request.job_gpus if uuid in positions]
    job_gpus = {positions[uuid] for uuid in known_of_job}
    job_gpus -= free
    # Later pods of the job should find GPUs near these. So keep a set for as many of them as fit on this node.
    sizes = [count for count in request.together if count <= len(free)]
    for_job = sizes[0] if sizes else 0
    for_pod = request.together[-1] if request.together else request.size
    for_pod = max(request.size, for_pod)
    for_pod = min(for_pod, len(free))
    if for_job > for_pod:
        size = for_job + len(job_gpus)
        with_job = sets.choose(free | job_gpus, size, must | job_gpus)
        free = set(with_job) - job_gpus
    of_pod = sets.choose(free, for_pod, must, job_gpus)
    return sets.choose(of_pod, request.size, must, job_gpus)


def _check_named(request: WholeRequest) -> None:
    """Refuse if the GPUs that a scheduler named cannot be given."""
    named = set(request.named or ())
    asks = f"asks for {request.size} GPUs"
    chosen = f"the scheduler chose {_names(request, named)} for its pod (annotation {GROUP_ANNOTATION})"
    missing = named.difference(request.free)
    if missing:
        text = f"{asks}; {chosen}, and {_missing(request, missing)}"
        raise Refusal(Reason.GPU_GROUP, _text(request, text))
    unhealthy = named.intersection(request.leaving)
    if unhealthy:
        names = _names(request, unhealthy)
        text = f"{asks}; {chosen}, and {names} is unhealthy or leaves the mode"
        raise Refusal(Reason.GPU_GROUP, _text(request, text))
    others = set(request.must_include) - named
    if others:
        names = _names(request, others)
        text = (
            f"{asks}; kubelet has fixed {names}, of an init container "
            f"or by its NUMA node, and annotation {GROUP_ANNOTATION} does not name it"
        )
        raise Refusal(Reason.GPU_GROUP, _text(request, text))


def _missing(request: WholeRequest, missing: Collection[str]) -> str:
    """Why kubelet does not offer GPUs that a scheduler named."""
    offered = _names(request, request.free) or "none"
    in_use = set(missing).difference(request.spare)
    if in_use:
        names = _names(request, in_use)
        return f"{names} is not free (free: {offered})"
    names = _names(request, missing)
    return (
        f"kubelet does not offer {names}, though free: it keeps to the NUMA nodes that its Topology "
        f"Manager chose (offered: {offered})"
    )


def _names(request: WholeRequest, uuids: Collection[str]) -> str:
    in_order = sorted(uuids, key=request.positions.__getitem__)
    names = [request.names[uuid] for uuid in in_order]
    return ", ".join(names)


def _text(request: WholeRequest, what: str) -> str:
    return f"{request.resource}: {request.requester} {what}"
