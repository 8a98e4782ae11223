"""Searches places for pods of several sizes. It knows GPUs, amounts and rules, and ends when the tries are used up.

The nodes are filled one after another. What counts after some nodes is how many pods of each group have no place yet,
so that of equal states only one is kept. Where rules look at pods of other nodes, such as those of a zone, the pods are
first divided among the zones. Where each node counts by itself, one pod is placed after another, and the last ones are
moved if a later one has no place.
"""

from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.contents import Content, Contents, Counts
from gpuscheduler.core.jobs.places.groups import Group
from gpuscheduler.core.jobs.places.one_by_one import MOST_MOVED, Filled, OneByOne
from gpuscheduler.core.node_usage import NodeUsage

MOST_STATES = 300
"""States that are kept after each node. A job of three groups has fewer, unless it is large."""
MOST_REGIONS = 8
"""Regions among which pods are divided. With more, the pods are placed one after another."""
_STEPS_A_TRY = 4
"""States that are compared in the time of one try."""


class _Filling(NamedTuple):
    """How nodes were filled: the pods of each group on the last one, and how those before it were."""

    name: str
    counts: Counts
    before: "_Filling | None"


class _Quota(NamedTuple):
    """Pods of a group that go to certain nodes.

    Attributes:
        number: of the group.
        pods: how many of them.
        accepted: names of the nodes.
    """

    number: int
    pods: int
    accepted: Collection[str]


class Search:
    """A search for places of all pods.

    Args:
        groups: of the pods.
        accepted: by group, the nodes that its pods may be on.
        admission: of the pods.
        tries: of the plan.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        accepted: Sequence[Mapping[str, NodeUsage]],
        admission: Admission,
        tries: Tries,
    ) -> None:
        # The largest pods first: those that come later have the choice.
        self._groups = sorted(groups, key=_size, reverse=True)
        self._accepted = [accepted[group.number] for group in self._groups]
        self._admission = admission
        self._tries = tries
        self._free = Contents(self._groups, tries)
        nodes: dict[str, NodeUsage] = {}
        for of_group in self._accepted:
            nodes.update(of_group)
        self._contents = self._free.on(nodes)

    def filled(self) -> Iterable[Filled]:
        """Where all pods go; nothing if no places were found."""
        numbers = range(len(self._groups))
        regional = [number for number in numbers if self._admission.is_regional(self._groups[number].kind)]
        regions = self._regions() if regional else {}
        if regions is None:
            one_by_one = OneByOne(
                self._groups,
                self._accepted,
                self._contents,
                self._free,
                self._admission,
                self._tries,
            )
            return one_by_one.filled()
        quotas = [_Quota(number, len(group.pods), accepted) for number, group, accepted in self._all()]
        if not regional:
            return self._node_by_node(quotas)
        return self._region_by_region(regional, regions, quotas)

    def _all(self) -> Iterator[tuple[int, Group, Collection[str]]]:
        for number, (group, accepted) in enumerate(zip(self._groups, self._accepted, strict=True)):
            yield number, group, accepted

    # -- region by region ------------------------------------------------------------------------------------------

    def _regions(self) -> dict[Hashable, list[str]] | None:
        """The nodes by region; None if these are too many, or each node is one."""
        regions: dict[Hashable, list[str]] = {}
        for name in self._contents:
            region = self._admission.region(name)
            if region is None:
                return None
            regions.setdefault(region, []).append(name)
        return regions if len(regions) <= MOST_REGIONS else None

    def _region_by_region(
        self,
        regional: Sequence[int],
        regions: Mapping[Hashable, Sequence[str]],
        quotas: Sequence[_Quota],
    ) -> list[Filled]:
        """Choose first how many pods go to each region, and then the nodes there."""
        names = list(regions.values())
        others = [quota for quota in quotas if quota.number not in regional]
        with closing(self._divisions(regional, names)) as divisions:
            for divided in divisions:
                of_regions: list[_Quota] = []
                for (number, region), pods in divided.items():
                    accepted = self._accepted[number].keys() & set(names[region])
                    of_regions.append(_Quota(number, pods, accepted))
                filled = self._node_by_node([*of_regions, *others])
                if filled or self._tries.gave_up:
                    return filled
        return []

    def _divisions(
        self,
        regional: Sequence[int],
        regions: Sequence[Sequence[str]],
    ) -> Generator[dict[tuple[int, int], int], None, None]:
        """Ways to divide the pods of these groups among the regions, by group and region."""
        accepted = self._accepted_in(regional, regions)
        # Any node of a region stands for it.
        nodes = {key: names[0] for key, names in accepted.items()}
        most: dict[tuple[int, int], int] = {}
        for key, names in accepted.items():
            number, _ = key
            most[key] = sum(self._alone(number, name) for name in names)
        wanted = {number: len(self._groups[number].pods) for number in regional}
        seen: set[Counts] = set()
        placed = dict.fromkeys(nodes, 0)

        def divide(remaining: int) -> Iterator[dict[tuple[int, int], int]]:
            state = tuple(placed.values())
            if state in seen or not self._tries.spend():
                return
            seen.add(state)
            if not remaining:
                yield {key: count for key, count in placed.items() if count}
                return
            for key, name in nodes.items():
                number, _ = key
                kind = self._groups[number].kind
                is_full = not wanted[number] or placed[key] >= most[key]
                if is_full or not self._admission.accepts(kind, name, local=False):
                    continue
                self._admission.place_in_region(kind, name)
                placed[key] += 1
                wanted[number] -= 1
                try:
                    yield from divide(remaining - 1)
                finally:
                    # The caller ends at the first way that is good.
                    wanted[number] += 1
                    placed[key] -= 1
                    self._admission.place_in_region(kind, name, -1)

        if sum(wanted.values()) <= MOST_MOVED:
            yield from divide(sum(wanted.values()))

    def _accepted_in(
        self,
        regional: Sequence[int],
        regions: Sequence[Sequence[str]],
    ) -> dict[tuple[int, int], list[str]]:
        """The nodes of a region that the pods of a group may be on, by group and region, where there are any."""
        accepted: dict[tuple[int, int], list[str]] = {}
        for number in regional:
            for region, names in enumerate(regions):
                of_region = [name for name in names if name in self._accepted[number]]
                if of_region:
                    accepted[number, region] = of_region
        return accepted

    def _alone(self, number: int, name: str) -> int:
        """How many pods of a group a node takes without the others."""
        content = self._contents[name]
        count = 0
        while count < len(self._groups[number].pods):
            after = self._free.after(number, content)
            if after is None:
                break
            content = after
            count += 1
        return count

    # -- node by node ----------------------------------------------------------------------------------------------

    def _node_by_node(self, quotas: Sequence[_Quota]) -> list[Filled]:
        wanted = tuple(quota.pods for quota in quotas)
        states: dict[Counts, _Filling | None] = {wanted: None}
        known: dict[Hashable, list[Counts]] = {}
        for name in sorted(self._contents, key=self._room_of, reverse=True):
            patterns = self._patterns(name, quotas, known)
            steps = len(states) * len(patterns)
            if not self._tries.spend(1 + steps // _STEPS_A_TRY):
                break
            states = _filled_further(states, name, patterns)
            done = next((filling for remaining, filling in states.items() if not any(remaining)), None)
            if done:
                return list(self._fillings(done, quotas))
        return []

    def _room_of(self, name: str) -> tuple[object, ...]:
        """The nodes with the most room come first, so that the search may end early."""
        content = self._contents[name]
        return content.gpus.room.gpus + len(content.gpus.room.unused), content.free, name

    def _fillings(self, filling: _Filling | None, quotas: Sequence[_Quota]) -> Iterator[Filled]:
        while filling:
            for quota, count in zip(quotas, filling.counts, strict=True):
                if count:
                    yield self._groups[quota.number], count, filling.name
            filling = filling.before

    def _patterns(
        self,
        name: str,
        quotas: Sequence[_Quota],
        known: dict[Hashable, list[Counts]],
    ) -> list[Counts]:
        """How many pods of each quota the node takes together; only those patterns to which no pod can be added."""
        content = self._contents[name]
        accepted = tuple(name in quota.accepted for quota in quotas)
        has_rules = any(self._admission.depends_on_pods(group.kind) for group in self._groups)
        alike = (id(content.gpus), content.free, accepted, name if has_rules else "")
        if alike not in known:
            patterns: list[Counts] = []
            self._extend(name, content, quotas, (), patterns)
            known[alike] = _maximal(patterns)
        return known[alike]

    def _extend(
        self,
        name: str,
        content: Content,
        quotas: Sequence[_Quota],
        pattern: Counts,
        patterns: list[Counts],
    ) -> None:
        """Add pods of the next quota to a pattern, as many as there is room for, or fewer."""
        if len(pattern) == len(quotas):
            patterns.append(pattern)
            return
        quota = quotas[len(pattern)]
        kind = self._groups[quota.number].kind
        most = quota.pods if name in quota.accepted else 0
        contents = [content]
        while len(contents) <= most and self._admission.accepts(kind, name, local=True):
            after = self._free.after(quota.number, contents[-1])
            if after is None:
                break
            contents.append(after)
            self._admission.place(kind, name)
        for count in range(len(contents) - 1, -1, -1):
            if self._tries.spend():
                self._extend(name, contents[count], quotas, (*pattern, count), patterns)
            if count:
                self._admission.place(kind, name, -1)


def _size(group: Group) -> tuple[object, ...]:
    request = group.request
    return request.gpus, request.need, group.requests.cpu, group.requests.memory


def _filled_further(
    states: Mapping[Counts, _Filling | None],
    name: str,
    patterns: Iterable[Counts],
) -> dict[Counts, _Filling | None]:
    """The states after a further node: how many pods of each group have no place yet, and how the nodes were filled.

    Of states that differ in the last group only, the one with the fewest pods left is kept.
    """
    best: dict[Counts, tuple[int, _Filling | None]] = {}
    for remaining, filling in states.items():
        *others, last = remaining
        best[tuple(others)] = last, filling
    for remaining, filling in states.items():
        for pattern in patterns:
            counts = tuple(map(min, remaining, pattern))
            *others, last = map(int.__sub__, remaining, counts)
            kept = best.get(tuple(others))
            if kept is None or last < kept[0]:
                best[tuple(others)] = last, _Filling(name, counts, filling)
    # Those with the fewest of the largest pods come first.
    in_order = sorted(best.items(), key=lambda state: (state[0], state[1][0]))
    return {(*others, last): filling for others, (last, filling) in in_order[:MOST_STATES]}


def _maximal(patterns: Sequence[Counts]) -> list[Counts]:
    """The patterns that are in no other one."""
    maximal: list[Counts] = []
    # A pattern comes after all that have more of its first groups.
    for pattern in patterns:
        is_part = any(all(map(int.__le__, pattern, other)) for other in maximal)
        if not is_part:
            maximal.append(pattern)
    return maximal
