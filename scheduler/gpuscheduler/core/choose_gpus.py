"""Places one request on the GPUs of one node."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuagent.domain.sharing.mode import Placement
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import NOTHING, WHOLE, Amounts, GpuRequest, Group, RequestKind, Used
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage

NODE_TRIES = 500
"""Sets of GPUs that are tried for one pod on one node of eight GPUs; fewer on a larger one."""

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
    if request.problem or not tries.spend(_look_tries(node)):
        return None
    if request.kind is RequestKind.WHOLE:
        return _fit_whole(request, node, links, among)
    if not keeps_rules(request, node):
        return None
    if request.is_single_share:
        return _fit_single_share(request, node, preferred, tries)
    return _fit_share(request, node, preferred, tries)


def _fit_whole(
    request: GpuRequest,
    node: NodeUsage,
    links: Links | None,
    among: Collection[int] | None,
) -> Choice | None:
    free = node.unused()
    if among is not None:
        free = [position for position in free if position in among]
    if len(free) < request.gpus:
        return None
    chosen: Sequence[int] = free[: request.gpus]
    if links:
        chosen = links.choose(node, free, request.gpus)
    gpus = node.facts.gpus.gpus
    minors = [gpus[position].minor for position in chosen]
    used = tuple((minor, WHOLE) for minor in minors)
    return Choice(used, {})


def _fit_single_share(
    request: GpuRequest,
    node: NodeUsage,
    preferred: Sequence[int],
    tries: Tries,
) -> Choice | None:
    """The same as `_fit_share` for a share of one GPU: the first one in order that has room. Most pods ask for that."""
    need = request.need
    roomy: Free = {}
    for position, gpu in node.usable():
        free = node.free[position]
        # A GPU that is given whole has no units to share.
        is_shared = gpu.memory or gpu.core
        if is_shared and need.within(free):
            roomy[position] = free
    if not roomy or not tries.spend():
        return None
    position = _first_in_order(roomy, preferred, spread=node.facts.placement is Placement.SPREAD)
    minor = node.facts.gpus.gpus[position].minor
    containers: dict[int, dict[int, Amounts]] = {}
    for group in request.groups:
        for container, amounts in group.containers:
            containers[container] = {minor: amounts}
    return Choice(((minor, need),), containers)


def _first_in_order(free: Free, preferred: Sequence[int], *, spread: bool) -> int:
    """The first position of `_order`."""
    if not spread:
        for position in preferred:
            if position in free:
                return position
    return _order(free, preferred, spread=spread)[0]


def _fit_share(
    request: GpuRequest,
    node: NodeUsage,
    preferred: Sequence[int],
    tries: Tries,
) -> Choice | None:
    free: Free = {}
    for position, gpu in node.usable():
        # A GPU that is given whole has no units to share.
        if gpu.memory or gpu.core:
            free[position] = node.free[position]
    if not _may_have_room(request, free.values()):
        return None
    order = _order(free, preferred, spread=node.facts.placement is Placement.SPREAD)
    for groups in _alternatives(request):
        sets = _place(
            groups,
            request.gpus,
            free,
            order,
            tries,
        )
        if sets is not None:
            return _choice(groups, sets, request.gpus, node.facts.gpus.gpus)
    return None


def fits(request: GpuRequest, node: NodeUsage, tries: Tries) -> bool:
    """Whether `fit` finds GPUs. Most requests want one GPU, for which no search is needed."""
    if request.problem or not request.is_single_share:
        return fit(request, node, tries=tries) is not None
    if not tries.spend() or not keeps_rules(request, node):
        return False
    free = (node.free[position] for position, _ in node.usable())
    return any(map(request.need.within, free))


def tries_without_search(request: GpuRequest, node: NodeUsage) -> int:
    """Tries that `fits` and `fit` take on a node that has no room, or has it where they look first.

    A call that looks at each of many nodes has so many for each, and shares what it may search besides.
    """
    sets = 1 + len(request.groups)
    return _look_tries(node) + sets * _tries_a_set(len(node.free), request.gpus)


def _look_tries(node: NodeUsage) -> int:
    # To look at a node takes as long as a try for every second of its GPUs.
    return 1 + len(node.free) // 2


def _tries_a_set(of_node: int, gpus: int) -> int:
    # A try looks at each GPU of the node, and at each of the set.
    return 1 + of_node * gpus // 16


def keeps_rules(request: GpuRequest, node: NodeUsage) -> bool:
    """Whether the node's mode serves such amounts, however much is free."""
    rules = node.facts.gpus
    is_stepwise = request.core_divisor % rules.core_step == 0
    return is_stepwise and (request.paired or not rules.both)


def serves(request: GpuRequest, choice: Choice) -> bool:
    """Whether the choice, which any author of a pod may have written, gives each container what it asks for."""
    minors = {minor for minor, _ in choice.used}
    amounts = [amounts for _, amounts in choice.used]
    names_a_gpu_twice = len(minors) < len(amounts)
    if request.problem or names_a_gpu_twice:
        return False
    if request.kind is RequestKind.WHOLE:
        return amounts == [WHOLE] * request.gpus
    if WHOLE in amounts or NOTHING in amounts:
        return False
    asked: dict[int, Amounts] = {}
    for group in request.groups:
        asked.update(group.containers)
    given: dict[int, Amounts] = {}
    for number, gpus in choice.containers.items():
        given[number] = sum(gpus.values(), NOTHING)
    if given != asked:
        return False
    total = sum(amounts, NOTHING)
    of_containers = sum(asked.values(), NOTHING)
    is_enough = of_containers.within(total) and request.need.within(total)
    # Without an upper bound, the author could keep GPUs from others that the pod does not need.
    return is_enough and total.within(_most(request))


def _most(request: GpuRequest) -> Amounts:
    """All that a choice for the request can use: each group on GPUs of its own, rounded up on each."""
    total = NOTHING
    for group in request.groups:
        each = group.need.over(request.gpus)
        for _ in range(request.gpus):
            total += each
    return total


def still_fits(request: GpuRequest, node: NodeUsage, choice: Choice) -> bool:
    """Whether GPUs that count for the request already may still serve it: the node may have changed since."""
    return keeps_rules(request, node) and node.still_has(choice.used)


def _order(free: Free, preferred: Sequence[int], *, spread: bool) -> list[int]:
    """Positions of GPUs, those to try first before the others."""

    def emptiest(position: int) -> tuple[int, int, int]:
        units = free[position]
        return -units.memory, -units.core, position

    rank = {position: number for number, position in enumerate(preferred)}
    last = len(rank)

    def fullest(position: int) -> tuple[int, Amounts, int]:
        return rank.get(position, last), free[position], position

    return sorted(free, key=emptiest) if spread else sorted(free, key=fullest)


def _alternatives(request: GpuRequest) -> Iterator[tuple[Group, ...]]:
    """All containers on the same GPUs, and if that does not fit, each group by itself."""
    containers: list[tuple[int, Amounts]] = []
    for group in request.groups:
        containers += group.containers
    together = Group(tuple(containers), request.need)
    yield (together,)
    if len(request.groups) > 1:
        yield request.groups


def _may_have_room(request: GpuRequest, free: Collection[Amounts]) -> bool:
    """Whether the GPUs have as many slots as the groups need, see `GpuRequest.slots`. Then a search may be worthwhile.

    Most nodes on which the groups do not fit are ruled out here, without a search.
    """
    if len(request.groups) > 1:
        # A GPU that is overused has nothing for the pod, and must not count against the others.
        total = sum((units.at_least(NOTHING) for units in free), NOTHING)
        if not request.apart.within(total):
            return False
    for need, count in request.slots:
        times = sum(need.times_in(units, count) for units in free)
        if times < count:
            return False
    return True


def _place(
    groups: Sequence[Group],
    gpus: int,
    free: Free,
    order: Sequence[int],
    tries: Tries,
) -> list[tuple[int, ...]] | None:
    """The positions of each group's GPUs, or None if they do not fit.

    Largest groups are placed first. The search tries other GPUs if a later group finds no room, up to `NODE_TRIES`.
    """
    all_numbers = range(len(groups))
    largest_first = sorted(all_numbers, key=lambda number: groups[number].need, reverse=True)
    needs = [groups[number].need.over(gpus) for number in largest_first]
    search = _Search(needs, gpus, order, tries)
    sets = search.sets_from(0, free)
    if sets is None:
        return None
    set_of = dict(zip(largest_first, sets, strict=True))
    return [set_of[number] for number in all_numbers]


@dataclass(slots=True)
class _Search:
    """A search for a set of GPUs for each group on one node.

    Attributes:
        needs: of each group on each of its GPUs, the largest first.
        gpus: number of GPUs of each group.
        order: positions of the GPUs, those to try first before the others.
        tries: of the call.
        of_node: tries for this node.
    """

    needs: Sequence[Amounts]
    gpus: int
    order: Sequence[int]
    tries: Tries
    of_node: Tries = field(default_factory=lambda: Tries(NODE_TRIES))

    def sets_from(self, number: int, free: Free) -> list[tuple[int, ...]] | None:
        """Sets of GPUs for the groups from this number on; None if there are none, or the tries are used up."""
        if number == len(self.needs):
            return []
        need = self.needs[number]
        roomy = [position for position in self.order if need.within(free[position])]
        failed: set[tuple[Amounts, ...]] = set()
        for positions in combinations(roomy, self.gpus):
            if not self._spend():
                return None
            before = tuple(free[position] for position in positions)
            if before in failed:
                # These GPUs have as much free as a set that has failed, so the later groups find no room again.
                continue
            after = dict(free)
            for position in positions:
                after[position] = free[position] - need
            others = self.sets_from(number + 1, after)
            if others is not None:
                return [positions, *others]
            failed.add(before)
        return None

    def _spend(self) -> bool:
        """Take the tries for one set of GPUs; False if they are used up."""
        tries_a_set = _tries_a_set(len(self.order), self.gpus)
        return self.of_node.spend(tries_a_set) and self.tries.spend(tries_a_set)


def _choice(
    groups: Sequence[Group],
    sets: Sequence[tuple[int, ...]],
    gpus: int,
    of_node: Sequence[NodeGpu],
) -> Choice:
    used: dict[int, Amounts] = {}
    containers: dict[int, dict[int, Amounts]] = {}
    for group, positions in zip(groups, sets, strict=True):
        minors = [of_node[position].minor for position in positions]
        need = group.need.over(gpus)
        for minor in minors:
            used[minor] = used.get(minor, NOTHING) + need
        for container, amounts in group.containers:
            containers[container] = dict.fromkeys(minors, amounts.over(gpus))
    return Choice(tuple(sorted(used.items())), containers)
