"""Searches places for one pod after another. If a later one has no place, the last ones are moved."""

from collections.abc import Hashable, Mapping, Sequence

from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.contents import Content, Contents
from gpuscheduler.core.jobs.places.groups import Group
from gpuscheduler.core.node_usage import NodeUsage

MOST_MOVED = 200
"""Pods of a job that are moved one by one: the tries are too few for the search of a larger job."""
Filled = tuple[Group, int, str]
"""A group, how many of its pods, and the node that takes them."""


class OneByOne:
    """A search where each node counts by itself.

    Args:
        groups: of the pods, the largest pods first.
        accepted: by group, the nodes that its pods may be on.
        contents: what is free on each node.
        free: works that out for a node with one pod more.
        admission: of the pods.
        tries: of the plan.
    """

    def __init__(  # noqa: PLR0913 (what a search is made of)
        self,
        groups: Sequence[Group],
        accepted: Sequence[Mapping[str, NodeUsage]],
        contents: Mapping[str, Content],
        free: Contents,
        admission: Admission,
        tries: Tries,
    ) -> None:
        self._groups = groups
        self._accepted = accepted
        self._contents = dict(contents)
        self._free = free
        self._admission = admission
        self._tries = tries

    def filled(self) -> list[Filled]:
        """Where all pods go; nothing if no places were found."""
        remaining = [len(group.pods) for group in self._groups]
        filled: list[Filled] = []
        if sum(remaining) <= MOST_MOVED:
            self._place_rest(remaining, filled)
        # The caller places the pods itself.
        for group, _, name in filled:
            self._admission.place(group.kind, name, -1)
        return filled

    def _place_rest(self, remaining: list[int], filled: list[Filled]) -> bool:
        """Place the remaining pods after those in `filled`; False if they have no places."""
        if not any(remaining):
            return True
        for number, group in enumerate(self._groups):
            if not remaining[number]:
                continue
            candidates = self._candidates(number, {name for _, _, name in filled})
            for name, after in candidates:
                if self._tries.gave_up:
                    return False
                before = self._contents[name]
                self._contents[name] = after
                self._admission.place(group.kind, name)
                remaining[number] -= 1
                filled.append((group, 1, name))
                if self._place_rest(remaining, filled):
                    return True
                filled.pop()
                remaining[number] += 1
                self._admission.place(group.kind, name, -1)
                self._contents[name] = before
            may_wait = not candidates and self._admission.spans_nodes(group.kind)
            if not may_wait:
                return False
            # Its pods may have to be near those of another group, which come first then.
        return False

    def _candidates(self, number: int, used: set[str]) -> list[tuple[str, Content]]:
        """Nodes for a pod of a group, and what is free there afterwards; of nodes that are alike only one."""
        self._tries.spend(1 + len(self._accepted[number]) // 2)
        candidates: dict[Hashable, tuple[tuple[object, ...], str, Content]] = {}
        for name in self._accepted[number]:
            if not self._admission.accepts(self._groups[number].kind, name):
                continue
            after = self._free.after(number, self._contents[name])
            if after is None:
                continue
            alike = (id(after.gpus), after.free, self._admission.state(name))
            room = after.gpus.room
            tightness = (name not in used, len(room.unused), room.total, after.free, name)
            candidates.setdefault(alike, (tightness, name, after))
        tightest_first = sorted(candidates.values(), key=lambda candidate: candidate[0])
        return [(name, after) for _, name, after in tightest_first]
