"""Makes a failing scenario short: the fewest actions, nodes and seconds with which the same promise is still broken."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from simworld.scenario import Action, Scenario

Fails = Callable[[Scenario], str]
"""Plays a scenario; the first promise that it breaks, in words, or an empty text."""


def shrunk(scenario: Scenario, fails: Fails, most_tries: int) -> Scenario:
    """The shortest scenario that was found with at most so many tries.

    A scenario fails in the same way if the first broken promise differs only in names and numbers.
    """
    wanted = kind_of(fails(scenario))
    if not wanted:
        return scenario
    tries = _Tries(fails, wanted, most_tries)
    shortest = scenario
    size = max(1, len(shortest.actions) // 2)
    while size and not tries.are_over:
        smaller = _without_a_part(shortest, size, tries)
        if smaller is None:
            size //= 2
        else:
            shortest = smaller
            size = min(size, max(1, len(shortest.actions) // 2))
    return _with_fewer_nodes(shortest, tries)


def kind_of(broken: str) -> str:
    """The words of a broken promise without names and numbers."""
    without_ids = re.sub(r"GPU-[0-9a-f-]+|[0-9a-f]{8}-[0-9a-f-]+|[a-z0-9]{10}-\w\w-\d+", "…", broken)
    return re.sub(r"\d+", "#", without_ids)[:120]


class _Tries:
    """Counts what is tried."""

    def __init__(self, fails: Fails, wanted: str, most: int) -> None:
        self._fails = fails
        self._wanted = wanted
        self._left = most

    @property
    def are_over(self) -> bool:
        return self._left <= 0

    def fails(self, scenario: Scenario) -> bool:
        """Whether the scenario fails in the same way."""
        if self.are_over:
            return False
        self._left -= 1
        return kind_of(self._fails(scenario)) == self._wanted


def _without_a_part(scenario: Scenario, size: int, tries: _Tries) -> Scenario | None:
    """The scenario without so many actions in a row; None if each of them is needed."""
    actions = scenario.actions
    # The last actions first: most of them come after what matters.
    for begin in range(max(0, len(actions) - size), -1, -size):
        remaining = (*actions[:begin], *actions[begin + size :])
        smaller = replace(scenario, actions=remaining, lasts_s=_end_of(remaining, scenario.lasts_s))
        if tries.fails(smaller):
            return smaller
    return None


def _end_of(actions: Sequence[Action], lasts_s: float) -> float:
    """A while after the last action, when its effects are over."""
    last = max((action.at for action in actions), default=0.0)
    return min(lasts_s, last + 40.0)


def _with_fewer_nodes(scenario: Scenario, tries: _Tries) -> Scenario:
    for count in range(1, len(scenario.nodes)):
        smaller = replace(scenario, nodes=scenario.nodes[:count])
        if tries.fails(smaller):
            return smaller
    return scenario
