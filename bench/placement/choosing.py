"""Choosing the best set: the time for every possible question, and a comparison with trying every set."""

import random
import time
import tracemalloc
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench.node import BenchError
from bench.placement.topologies import Square, random_square
from gpuagent.domain.placement.best_sets import BestSets

Question = tuple[tuple[int, ...], int]

ASK_AGAIN_US = 500.0
"""Slower questions are repeated twice after all others, and the fastest answer counts: pauses do not recur."""
_VALUES = ((1,), (1, 2), (10, 25, 50), tuple(range(1, 100)))


@dataclass(frozen=True, slots=True)
class Timed:
    """Microseconds of every question, and how many were asked again."""

    us: Sequence[float]
    again: int


@dataclass(frozen=True, slots=True)
class Tables:
    """The cost of the tables that are computed once for a topology."""

    seconds: float
    mib: float
    peak_mib: float


def questions(gpus: int, sample: int | None = None) -> Iterable[Question]:
    """Every set of free GPUs with every size that it has; of those a random sample, the same every time."""
    masks = range(1, 1 << gpus)
    if sample is None:
        return ((free, size) for free in map(_members, masks) for size in range(1, len(free) + 1))
    rng = random.Random(gpus)  # noqa: S311
    frees = [_members(mask) for mask in rng.choices(masks, k=sample)]
    return [(free, rng.randint(1, len(free))) for free in frees]


def timed(sets: BestSets, asked: Iterable[Question]) -> Timed:
    """Ask every question, one after the other; those that took long twice more at the end."""
    clock, choose = time.perf_counter_ns, sets.choose

    def ask(free: tuple[int, ...], size: int) -> float:
        began = clock()
        choose(free, size)
        return (clock() - began) / 1000

    times = array("d")
    slow: list[tuple[int, Question]] = []
    for number, question in enumerate(asked):
        times.append(ask(*question))
        if times[-1] > ASK_AGAIN_US:
            slow.append((number, question))
    for number, question in slow * 2:
        times[number] = min(times[number], ask(*question))
    return Timed(times, len(slow))


def exact_sets(mbps: Square) -> BestSets:
    """The answers for a topology, with all tables worked out."""
    sets = BestSets(mbps)
    sets.work_out()
    return sets


def tables(mbps: Square) -> tuple[BestSets, Tables]:
    """The answers for a topology, with the time to work them out; their memory is taken on a second copy."""
    began = time.perf_counter()
    sets = exact_sets(mbps)
    seconds = time.perf_counter() - began
    tracemalloc.start()
    try:
        copy = exact_sets(mbps)
        kept, peak = tracemalloc.get_traced_memory()
        del copy
    finally:
        tracemalloc.stop()
    return sets, Tables(seconds, kept / 2**20, peak / 2**20)


# -- equality ------------------------------------------------------------------------------------------------------


def compare(samples: int) -> int:
    """How many questions were compared with trying every set.

    Raises:
        BenchError: an answer differs. The text has the question.
    """
    compared = 0
    for mbps, asked in _compared(samples):
        sets, rule = exact_sets(mbps), Rule(mbps)
        for free, size, must in asked:
            got, right = sets.choose(free, size, must), rule.choose(free, size, must)
            if got != right:
                raise BenchError(
                    f"{size} of {free} with {must}: the choice is {got}, trying every set finds {right}; "
                    f"bandwidths {mbps}"
                )
            compared += 1
    return compared


def _compared(samples: int) -> Iterator[tuple[Square, list[tuple[tuple[int, ...], int, tuple[int, ...]]]]]:
    """Squares of up to 10 GPUs with ten questions each, and some of 16 GPUs with questions for small sets."""
    rng = random.Random(samples)  # noqa: S311
    for _ in range(samples // 10):
        gpus = rng.randint(2, 10)
        yield random_square(gpus, rng, rng.choice(_VALUES)), [_question(rng, gpus, gpus) for _ in range(10)]
    for values in _VALUES[1:]:
        yield random_square(16, rng, values), [_question(rng, 16, 3) for _ in range(samples // 100)]


def _question(rng: random.Random, gpus: int, most: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    free = rng.sample(range(gpus), rng.randint(1, gpus))
    size = rng.randint(1, min(most, len(free)))
    must = rng.sample(free, rng.choice((0, 0, rng.randint(0, size))))
    return tuple(sorted(free)), size, tuple(sorted(must))


class Rule:
    """The rule of `BestSets.choose`, word by word, on nothing but the bandwidths."""

    def __init__(self, mbps: Square) -> None:
        self._mbps = mbps

    def choose(self, free: Sequence[int], size: int, must: Collection[int]) -> tuple[int, ...]:
        able = [some for some in combinations(free, size) if set(must) <= set(some)]
        worths = {some: self._worth(some) for some in able}
        best = max(worths.values())
        # The remaining GPUs decide only among equals, so only for those are they rated.
        return max(
            (some for some in able if worths[some] == best),
            key=lambda some: (
                self._later(_without(free, some)),
                self._later(_without(range(len(self._mbps)), some)),
                self._worth(_without(range(len(self._mbps)), some))[1],
                self._worth(_without(free, some))[1],
                [-gpu for gpu in some],
            ),
        )

    def _later(self, left: Sequence[int]) -> list[tuple[float, int]]:
        return [max(map(self._worth, combinations(left, size)), default=(-1, -1)) for size in (8, 4, 2)]

    def _worth(self, some: Sequence[int]) -> tuple[float, int]:
        links = [self._mbps[one][other] for one, other in combinations(some, 2)]
        return min(links, default=float("inf")), sum(links)


def _without(gpus: Iterable[int], some: Collection[int]) -> list[int]:
    return [gpu for gpu in gpus if gpu not in some]


def _members(mask: int) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
