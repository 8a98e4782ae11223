"""Every order of events of a small world to a depth, breadth first: the first way to a broken promise is a shortest."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from simworld.small.model import Scope, World, first_world
from simworld.small.quiet import broken_in_quiet

_clock = time.monotonic


@dataclass(slots=True)
class Result:
    """What a search has seen.

    Attributes:
        depth: longest way to a world whose next moves were all followed.
        states: different worlds, names left out.
        named: different worlds, where each name counts.
        transitions: moves that were followed.
        merged: moves that led to a world that was there already.
        quiet: worlds in which nothing was on its way; each was left in peace and held against the promises.
        complete: whether no world is left whose next moves were not followed.
        broken: promises that are broken at the end of `story`; empty if none is.
        story: the moves of a shortest way there.
    """

    depth: int = 0
    states: int = 1
    named: int = 1
    transitions: int = 0
    merged: int = 0
    quiet: int = 0
    seconds: float = 0.0
    complete: bool = False
    broken: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """How a world was reached first: the number of the world before, and the move."""

    before: int
    what: str


def search(
    scope: Scope, depth: int, most_s: float = float("inf"), tell: Callable[[Result], None] | None = None
) -> Result:
    """Follow every move from the first world on, to a depth, or until seconds have passed.

    `tell` is called after each depth.
    """
    began = _clock()
    first = first_world(scope)
    seen = _Seen(first, began)
    level: _Level | None = [(0, first)]
    while level and seen.result.depth < depth:
        level = seen.next_level(level, most_s)
        if level is not None and tell is not None:
            tell(seen.counted())
    return seen.counted()


_Level = list[tuple[int, World]]
"""Worlds that are reached by the same number of moves, each with its own number."""


class _Seen:
    """The worlds of a search.

    Args:
        first: has the number 0.
        began: moment of the clock at which the search began.

    Attributes:
        result: of the search. `counted` has its last figures.
    """

    def __init__(self, first: World, began: float) -> None:
        self.result = Result()
        self._began = began
        names, key = first.keys()
        self._keys = {key}
        self._named = {names}
        # By number of the world.
        self._steps = [_Step(-1, "")]

    def next_level(self, level: _Level, most_s: float) -> _Level | None:
        """The new worlds one move after those of a level; None if the time is over or a promise is broken."""
        following: _Level = []
        for number, world in level:
            if self._seconds() > most_s:
                return None
            for move in world.moves():
                after = world.after(move)
                if not self._is_new(after):
                    continue
                self._steps.append(_Step(number, move.what))
                following.append((len(self._steps) - 1, after))
                self.result.broken = self._broken(after)
                if self.result.broken:
                    self.result.story = self._story()
                    return None
        self.result.depth += 1
        self.result.complete = not following
        return following

    def counted(self) -> Result:
        """The result with the figures of now."""
        self.result.states = len(self._keys)
        self.result.named = len(self._named)
        self.result.seconds = self._seconds()
        return self.result

    def _seconds(self) -> float:
        return _clock() - self._began

    def _is_new(self, world: World) -> bool:
        """Count a world that a move led to; whether no world like it was there."""
        names, key = world.keys()
        self.result.transitions += 1
        self._named.add(names)
        if key in self._keys:
            self.result.merged += 1
            return False
        self._keys.add(key)
        return True

    def _broken(self, world: World) -> list[str]:
        """Promises that are broken in a world; if nothing is on its way there, also those of a quiet one."""
        if world.broken:
            return list(world.broken)
        if any(move.is_message for move in world.moves()):
            return []
        self.result.quiet += 1
        return list(broken_in_quiet(world))

    def _story(self) -> list[str]:
        """The moves to the last world."""
        story = []
        number = len(self._steps) - 1
        while number > 0:
            step = self._steps[number]
            story.append(step.what)
            number = step.before
        return story[::-1]
