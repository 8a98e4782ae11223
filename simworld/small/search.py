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
    result = Result()
    began = _clock()
    first = first_world(scope)
    names, key = first.keys()
    seen = {key}
    named = {names}
    steps = [_Step(-1, "")]
    level = [(0, first)]
    while level and result.depth < depth and not result.broken:
        following: list[tuple[int, World]] = []
        for number, world in level:
            if _clock() - began > most_s:
                break
            for move in world.moves():
                after = world.after(move)
                result.transitions += 1
                names, key = after.keys()
                named.add(names)
                if key in seen:
                    result.merged += 1
                    continue
                seen.add(key)
                steps.append(_Step(number, move.what))
                following.append((len(steps) - 1, after))
                result.broken = _broken(after, result)
                if result.broken:
                    result.story = _story(steps)
                    break
            if result.broken:
                break
        else:
            result.depth += 1
            level = following
            result.complete = not following
            result.states = len(seen)
            result.named = len(named)
            result.seconds = _clock() - began
            if tell is not None:
                tell(result)
            continue
        break
    result.states = len(seen)
    result.named = len(named)
    result.seconds = _clock() - began
    return result


def _broken(world: World, result: Result) -> list[str]:
    if world.broken:
        return list(world.broken)
    if any(move.is_message for move in world.moves()):
        return []
    result.quiet += 1
    return list(broken_in_quiet(world))


def _story(steps: list[_Step]) -> list[str]:
    """The moves to the last world."""
    story = []
    number = len(steps) - 1
    while number > 0:
        story.append(steps[number].what)
        number = steps[number].before
    return story[::-1]
