"""Places one request on the GPUs of one node."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuagent.domain.sharing.mode import Placement
from gpuscheduler.core.gpu_request import NOTHING, WHOLE, Amounts, GpuRequest, Group, RequestKind, Used
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage

NODE_TRIES = 500
"""Sets of GPUs that are tried for one pod on one node of eight GPUs; fewer on a larger one."""
CALL_TRIES = 1000
"""Tries of all nodes together in one call, which then takes less than 10 ms: any author of pods may write a pod whose
containers are hard to place, and thousands of nodes may have to be looked at for it."""

Free = dict[int, Amounts]
"""Position of a usable GPU to its free units."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPUs of a pod.

    Attributes:
        used: what it uses of each GPU, by minor number.
        containers: index in `spec.containers` to minor number to amounts; empty for whole GPUs.
    """

    used: Used
    containers: Mapping[int, Mapping[int, Amounts]]


class Tries:
    """The work that one call may still spend on the search for GPUs. All nodes of the call share it.

    Attributes:
        left: tries that are left; negative once the search gave up.
    """

    def __init__(self, count: int = CALL_TRIES) -> None:
        self.left = count

    @property
    def gave_up(self) -> bool:
        """Whether a search ended for lack of tries, so that its answer is not certain."""
        return self.left < 0

    def spend(self, count: int = 1) -> bool:
        """Take tries; False if so many are not left."""
        self.left -= count
        return self.left >= 0


def fit(  # noqa: PLR0913 (by name)
    request: GpuRequest,
    node: NodeUsage,
    preferred: Sequence[int] = (),
    *,
    links: Links | None = None,
    among: Collection[int] | None = None,
    tries: Tries | None = None,
) -> Choice | None:
    """The GPUs for the request on this node; None if they are not free, or no node can serve the request.

    Args:
        request: of the pod.
        node: with what is in use.
        preferred: positions of GPUs to take first, best first; others follow with the least free memory first.
        links: chooses whole GPUs; None takes the first free ones.
        among: positions of the whole GPUs to choose from; None for all.
        tries: of the call. The answer is also None when they are used up.
    """
    if tries is None:
        tries = Tries()
    # To look at a node takes as long as a try for every second of its GPUs.
    if request.problem or not tries.spend(1 + len(node.free) // 2):
        return None
    if request.kind is RequestKind.WHOLE:
        return _fit_whole(request, node, links, among)
    return _fit_share(request, node, preferred, tries) if keeps_rules(request, node) else None


def _fit_whole(
    request: GpuRequest, node: NodeUsage, links: Links | None, among: Collection[int] | None
) -> Choice | None:
    free = [position for position in node.unused() if among is None or position in among]
    if len(free) < request.gpus:
        return None
    chosen = links.choose(node, free, request.gpus) if links else free[: request.gpus]
    return Choice(tuple((node.facts.gpus.gpus[position].minor, WHOLE) for position in chosen), {})


def _fit_share(request: GpuRequest, node: NodeUsage, preferred: Sequence[int], tries: Tries) -> Choice | None:
    free_units = {position: node.free[position] for position, gpu in node.usable() if gpu.memory or gpu.core}
    if not _may_have_room(request, free_units.values()):
        return None
    order = _order(free_units, preferred, spread=node.facts.placement is Placement.SPREAD)
    for groups in _alternatives(request):
        if (found := _place(groups, request.gpus, free_units, order, tries)) is not None:
            return _choice(groups, found, request.gpus, node.facts.gpus.gpus)
    return None


def fits(request: GpuRequest, node: NodeUsage, tries: Tries) -> bool:
    """Whether `fit` finds GPUs, which most requests need not search for."""
    if request.kind is not RequestKind.SHARE or request.gpus > 1 or len(request.groups) > 1 or request.problem:
        return fit(request, node, tries=tries) is not None
    if not (tries.spend() and keeps_rules(request, node)):
        return False
    return any(request.need.within(node.free[position]) for position, _ in node.usable())


def keeps_rules(request: GpuRequest, node: NodeUsage) -> bool:
    """Whether the amounts are such as the node's mode serves, however much is free."""
    rules = node.facts.gpus
    return request.core_divisor % rules.core_step == 0 and (request.paired or not rules.both)


def serves(request: GpuRequest, choice: Choice) -> bool:
    """Whether the choice, which any author of a pod may have written, gives each container what it asks for."""
    if request.problem or len({minor for minor, _ in choice.used}) < len(choice.used):
        return False
    if request.kind is RequestKind.WHOLE:
        return [amounts for _, amounts in choice.used] == [WHOLE] * request.gpus
    given = {n: sum(gpus.values(), NOTHING) for n, gpus in choice.containers.items()}
    asked = {n: amounts for group in request.groups for n, amounts in group.containers}
    if given != asked or any(amounts in (WHOLE, NOTHING) for _, amounts in choice.used):
        return False
    total = sum((amounts for _, amounts in choice.used), NOTHING)
    enough = sum(asked.values(), NOTHING).within(total) and request.need.within(total)
    return enough and total.within(_most(request))


def _most(request: GpuRequest) -> Amounts:
    """All that a choice for the request can use: each group on GPUs of its own, rounded up on each."""
    shares = (group.need.over(request.gpus) for group in request.groups for _ in range(request.gpus))
    return sum(shares, NOTHING)


def still_fits(request: GpuRequest, node: NodeUsage, choice: Choice) -> bool:
    """Whether GPUs that count for the request already may still serve it: the node may have changed since."""
    return keeps_rules(request, node) and node.still_has(choice.used)


def _order(free: Free, preferred: Sequence[int], *, spread: bool) -> list[int]:
    if spread:
        return sorted(free, key=lambda position: (-free[position].memory, -free[position].core, position))
    rank = {position: n for n, position in enumerate(preferred)}
    return sorted(free, key=lambda position: (rank.get(position, len(rank)), free[position], position))


def _alternatives(request: GpuRequest) -> Iterator[tuple[Group, ...]]:
    """All containers on the same GPUs, and if that does not fit, each group by itself."""
    containers = tuple(entry for group in request.groups for entry in group.containers)
    yield (Group(containers, request.need),)
    if len(request.groups) > 1:
        yield request.groups


def _may_have_room(request: GpuRequest, free: Collection[Amounts]) -> bool:
    """Whether the GPUs have as many slots as the groups need, see `GpuRequest.slots`. Then a search may be worthwhile.

    Most nodes on which the groups do not fit are found out here, without a search.
    """
    total = sum((units.at_least(NOTHING) for units in free), NOTHING)
    if len(request.groups) > 1 and not request.apart.within(total):
        return False
    return all(sum(need.times_in(units, count) for units in free) >= count for need, count in request.slots)


def _place(
    groups: Sequence[Group], gpus: int, free: Free, order: Sequence[int], tries: Tries
) -> list[tuple[int, ...]] | None:
    """The positions of each group's GPUs, or None if they do not fit.

    Largest groups are placed first. The search tries other GPUs if a later group finds no room, up to `NODE_TRIES`.
    """
    numbers = sorted(range(len(groups)), key=lambda n: groups[n].need, reverse=True)
    needs = [groups[n].need.over(gpus) for n in numbers]
    here = Tries(NODE_TRIES)
    cost = 1 + len(order) * gpus // 16  # a try looks at each GPU of the node, and at each of the set

    def rest(depth: int, left: Free) -> list[tuple[int, ...]] | None:
        if depth == len(needs):
            return []
        failed: set[tuple[Amounts, ...]] = set()
        for positions in _sets(order, gpus, needs[depth], left):
            if not (here.spend(cost) and tries.spend(cost)):
                return None
            before = tuple(left[position] for position in positions)
            if before in failed:  # as good as a set that has failed
                continue
            taken = left | {position: left[position] - needs[depth] for position in positions}
            if (found := rest(depth + 1, taken)) is not None:
                return [positions, *found]
            failed.add(before)
        return None

    found = rest(0, free)
    return None if found is None else [positions for _, positions in sorted(zip(numbers, found, strict=True))]


def _sets(order: Sequence[int], gpus: int, each: Amounts, left: Free) -> Iterator[tuple[int, ...]]:
    """Sets of `gpus` GPUs with room for `each`, in order of preference."""
    return combinations([position for position in order if each.within(left[position])], gpus)


def _choice(groups: Sequence[Group], chosen: Sequence[tuple[int, ...]], gpus: int, of: Sequence[NodeGpu]) -> Choice:
    used: dict[int, Amounts] = {}
    containers: dict[int, dict[int, Amounts]] = {}
    for group, positions in zip(groups, chosen, strict=True):
        minors = [of[position].minor for position in positions]
        for minor in minors:
            used[minor] = used.get(minor, NOTHING) + group.need.over(gpus)
        for container, amounts in group.containers:
            containers[container] = {minor: amounts.over(gpus) for minor in minors}
    return Choice(tuple(sorted(used.items())), containers)
