"""Chooses the GPUs of a share: one, by binpack or spread, or several with equal parts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What makes one GPU better than another for a share, if both can take it.

    Attributes:
        placement: whether fuller or emptier GPUs are better.
        pinned: UUIDs of GPUs preferred before all others.
        short: UUIDs of GPUs that seem to lack the container's other resource.
        suspect: GPU UUID to the number of free units that a container may still hold.
        cramped: UUIDs of GPUs where the containers that should be together do not fit, the most wanted ones first.
        room: units that later containers of the pod need on that GPU.
    """

    placement: Placement = Placement.BINPACK
    pinned: Collection[str] = ()
    short: Collection[str] = ()
    suspect: Mapping[str, int] = field(default_factory=dict)
    cramped: Sequence[Collection[str]] = ()
    room: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """A share that a container requests, with the limits on the choice of its GPUs.

    Attributes:
        resource: name, for messages.
        unit: name of one unit, for messages: ``GiB``, ``%``.
        size: units wanted in all, `must_include` among them.
        free: GPU UUID to the number of units that kubelet calls free.
        must_include: GPU UUID to units that are fixed already.
        order: GPU UUID to NVML index, for every GPU of the node.
        gpu_count: over how many GPUs to spread, evenly.
        preferences: decide between GPUs that can take it.
        leaving: UUIDs of GPUs that are unhealthy or leave the list; kubelet may not have read that yet.
        only: UUIDs the choice is limited to; None for no limit.
        full: UUIDs of GPUs that have as many pods as they may have.
        most: the caps behind `full`, for messages: ``20 pods``.
        requester: the container, for messages.
        reserved: GPU UUID to units that schedulers chose for containers that have not requested them yet.
        decided: words for the scheduler's decision that set `only`; empty without one.
        numa: the NUMA node to which kubelet's Topology Manager limits `free`; None if it does not.
        node_free: units that no container has, of the whole node.
    """

    resource: str
    size: int
    free: Mapping[str, int]
    order: Mapping[str, int]
    unit: str = ""
    must_include: Mapping[str, int] = field(default_factory=dict)
    gpu_count: int = 1
    preferences: Preferences = Preferences()
    leaving: Collection[str] = ()
    only: Collection[str] | None = None
    full: Collection[str] = ()
    most: str = ""
    requester: str = "this container"
    reserved: Mapping[str, int] = field(default_factory=dict)
    decided: str = ""
    numa: int | None = None
    node_free: int = 0

    def left(self, uuid: str) -> int:
        """Number of free units there that are not reserved."""
        reserved = self.reserved.get(uuid, 0)
        # Schedulers may have reserved more than kubelet has left.
        return max(self.free[uuid] - reserved, 0)


def choose_share(request: ShareRequest) -> tuple[str, ...]:
    """UUIDs of the GPUs: one, or `gpu_count` of them for a share that is even on all.

    Raises:
        Refusal: no GPU, or not that many, can take it; the text lists the free units of each GPU.
    """
    fixed = request.must_include
    count = request.gpu_count
    each = request.size // count
    candidates = [uuid for uuid in request.free if _fits(request, uuid, each)]
    has_enough = len(candidates) >= count
    can_include_fixed = len(fixed) <= count and fixed.keys() <= set(candidates)
    if not has_enough or not can_include_fixed:
        if request.decided:
            raise _not_kept(request, each)
        raise _refusal(request, each)

    def rank(uuid: str) -> tuple[bool, _Rank]:
        is_fixed = uuid in fixed
        return not is_fixed, _rank(request, uuid, each)

    candidates.sort(key=rank)
    return tuple(candidates[:count])


def _fits(request: ShareRequest, uuid: str, each: int) -> bool:
    """Whether the GPU can take `each` units of the request."""
    if request.only is not None and uuid not in request.only:
        return False
    if request.decided and uuid in request.leaving:
        return False
    if uuid in request.must_include:
        # Kubelet has fixed units of this GPU: then neither reservations nor the cap on its pods count.
        fixed = request.must_include[uuid]
        return fixed <= each <= request.free[uuid]
    if uuid in request.full:
        return False
    return request.left(uuid) >= each


_Rank = tuple[bool, bool, bool, bool, bool, list[bool], int, int]


def _rank(request: ShareRequest, uuid: str, each: int) -> _Rank:
    """Best first: not leaving, pinned, not short, enough certain units, room for later containers, placement."""
    preferences = request.preferences
    free = request.left(uuid)
    certain = request.free[uuid] - preferences.suspect.get(uuid, 0)
    fullest_first = preferences.placement is Placement.BINPACK
    return (
        uuid in request.leaving,
        uuid not in preferences.pinned,
        uuid in preferences.short,
        certain < each,
        free < preferences.room,
        [uuid in cramped for cramped in preferences.cramped],
        free if fullest_first else -free,
        request.order[uuid],
    )


def _why_not(request: ShareRequest, each: int) -> str:
    """Why the GPUs that a scheduler chose are unavailable."""
    # The first GPU with a reason is enough for the message.
    decided = sorted(request.only or (), key=request.order.__getitem__)
    for uuid in decided:
        name = f"GPU {request.order[uuid]}"
        free = request.free.get(uuid, 0)
        if uuid in request.leaving:
            return f"{name} is unhealthy or leaves this mode"
        if not free:
            return f"kubelet offers nothing of {name}: it is full, or not advertised"
        if free < each:
            return f"{name} has {free} free and not {each}"
        if uuid in request.full:
            return f"{name} has {request.most} already, the most allowed"
    gpus = _names(request, request.must_include, " and ")
    return f"kubelet hands units of {gpus} on to it"


def _names(request: ShareRequest, uuids: Iterable[str], separator: str) -> str:
    names = [f"GPU {request.order[uuid]}" for uuid in uuids]
    return separator.join(names)


def _not_kept(request: ShareRequest, each: int) -> Refusal:
    """The refusal if the scheduler's decision cannot be honored."""
    lead = _lead(request, each)
    why = _why_not(request, each)
    where = _where(request)
    text = f"{lead}; {request.decided}, and {why} ({where})"
    return Refusal(Reason.GPU_DECISION, text)


def _lead(request: ShareRequest, each: int) -> str:
    """How each refusal begins: who asks for how much."""
    text = f"{request.resource}: {request.requester} asks for {request.size}"
    if request.unit:
        text = f"{text} {request.unit}"
    if request.gpu_count > 1:
        text = f"{text} over {request.gpu_count} GPUs ({each} on each)"
    return text


def _where(request: ShareRequest) -> str:
    """The free units of each GPU."""
    free: list[tuple[int, int]] = []
    for uuid, count in request.free.items():
        index = request.order[uuid]
        free.append((index, count))
    free.sort()
    texts = [f"GPU {index}: {count}" for index, count in free]
    listed = ", ".join(texts) or "nothing"
    return f"free: {listed}"


def _refusal(request: ShareRequest, each: int) -> Refusal:
    """The refusal of a request that no scheduler decided on."""
    lead = _lead(request, each)
    where = _where(request)
    not_together = _fixed_apart(request, each, lead, where)
    if not_together:
        return not_together
    roomy = {uuid for uuid, count in request.free.items() if count >= each}
    if request.only is not None and not _can_be_on_only(request, roomy):
        gpus = _names(request, request.only, ", ")
        text = f"{lead}, which has to be on {gpus} with its other resource or its init container"
        return Refusal(Reason.NO_SINGLE_GPU, f"{text} ({where})")
    has_enough_gpus = len(roomy) >= request.gpu_count
    any_full = not roomy.isdisjoint(request.full)
    if has_enough_gpus and any_full:
        text = f"{lead}; every GPU with that much free has {request.most} already, the most allowed"
        return Refusal(Reason.TOO_MANY_PODS, f"{text} ({where})")
    total = sum(request.free.values())
    # With NUMA, the node may have enough: kubelet offers a part of it.
    if total < request.size and request.numa is None:
        text = f"{lead}, {total} are free on this node"
        return Refusal(Reason.NOT_ENOUGH, f"{text} ({where})")
    return _scattered(request, lead, where, len(roomy))


def _can_be_on_only(request: ShareRequest, roomy: set[str]) -> bool:
    """Whether one of the GPUs that the choice is limited to has enough, and all that kubelet has fixed do."""
    possible = roomy.intersection(request.only or ())
    fixed = request.must_include.keys()
    return bool(possible) and fixed <= possible


def _fixed_apart(
    request: ShareRequest,
    each: int,
    lead: str,
    where: str,
) -> Refusal | None:
    """The refusal if the share cannot be where kubelet has fixed units of it; None if it can."""
    fixed = request.must_include
    if len(fixed) > request.gpu_count:
        gpus = _names(request, fixed, ", ")
        text = f"{lead}, and kubelet reuses units of {gpus} from an init container; one share stays on one GPU"
        return Refusal(Reason.SPANS_GPUS, f"{text} ({where})")
    for uuid in fixed:
        if request.free.get(uuid, 0) < each:
            text = f"{lead}, and kubelet reuses units of GPU {request.order[uuid]} from an init container"
            return Refusal(Reason.NO_SINGLE_GPU, f"{text}, which has not that much ({where})")
    return None


def _of_one_numa_node(request: ShareRequest, lead: str, where: str) -> Refusal:
    """The refusal if the Topology Manager left out GPUs of other NUMA nodes, which may have enough."""
    offered = sum(request.free.values())
    largest = max(request.free.values(), default=0)
    text = (
        f"{lead}; kubelet offers {offered} units, only of NUMA node {request.numa}, and the node has "
        f"{request.node_free} free ({where}). Kubelet's Topology Manager keeps to one NUMA node: ask for {largest} or "
        "less, or have the operator set --numa-of-shares=false"
    )
    return Refusal(Reason.NO_SINGLE_GPU, text)


def _scattered(
    request: ShareRequest,
    lead: str,
    where: str,
    roomy: int,
) -> Refusal:
    """The refusal if the node has enough units, but too few GPUs have enough: `roomy` of them."""
    if request.numa is not None:
        return _of_one_numa_node(request, lead, where)
    total = sum(request.free.values())
    reserved = sum(request.reserved.values())
    has_enough_gpus = roomy >= request.gpu_count
    if has_enough_gpus and reserved:
        text = (
            f"{lead}; of {total} free on the node schedulers have reserved {reserved} for pods that are still to come, "
            f"and no GPU has that much left ({where}). Ask for less, or have a scheduler choose the GPU"
        )
    elif request.gpu_count > 1:
        text = f"{lead}; {roomy} GPUs have that much free ({where})"
    else:
        largest = max(request.free.values(), default=0)
        text = (
            f"{lead}; the node has {total} free but no single GPU has that much ({where}). Ask for {largest} or less, "
            f"or spread over several GPUs with the pod label {GPU_COUNT_LABEL}"
        )
    return Refusal(Reason.NO_SINGLE_GPU, text)
