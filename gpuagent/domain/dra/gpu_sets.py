"""Sets of linked GPUs as devices of their own: a claim for four linked GPUs is then a claim for one device.

A set consumes a counter of each of its GPUs, and so does a GPU of which a claim has a share or all. So the scheduler
gives a GPU as itself or in one set.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations
from zlib import crc32

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.placement.best_sets import MOST_GPUS, BestSets

SIZES = (2, 4, 8)
PART = 64
"""Devices that consume counters in one slice, at most."""
MOST_SETS = 2 * PART
"""Sets of one size. Eight GPUs have fewer."""

Mbps = tuple[tuple[int, ...], ...]
Set = tuple[int, ...]


def set_name(uuids: Iterable[str]) -> str:
    """The name of a set in slices and allocations. It follows from the GPUs alone."""
    members = sorted(uuids)
    return f"gpus-{len(members)}-{key_of(','.join(members))}"


def members_of(name: str, uuids: Iterable[str]) -> tuple[str, ...]:
    """UUIDs of the set's GPUs, which are among `uuids`; empty if it has others, or is none."""
    known = sorted(uuids)
    size = next((size for size in SIZES if name.startswith(f"gpus-{size}-")), 0)
    every = combinations(known, size) if size and len(known) <= MOST_GPUS else ()
    return next((some for some in every if set_name(some) == name), ())


@lru_cache(maxsize=4)
def best_sets(mbps: Mbps) -> BestSets:
    """The chooser for a matrix of bandwidths."""
    return BestSets(mbps)


@lru_cache(maxsize=16)
def worth_having(mbps: Mbps, size: int) -> tuple[Set, ...]:
    """Sets of `size` GPUs that a claim for linked GPUs may get, by index, best links first; at most `MOST_SETS`.

    These are the sets in a ring of links that are faster than the node's slowest ones. If all links are equally fast,
    or the set is the whole node, it is worth having too.
    """
    if not size <= len(mbps) <= MOST_GPUS:
        return ()
    sets = best_sets(mbps)
    slowest = min((mbps[i][j] for i, j in combinations(range(len(mbps)), 2)), default=0)
    fast = [sum(1 << j for j, speed in enumerate(row) if j != i and speed > slowest) for i, row in enumerate(mbps)]
    every = combinations(range(len(mbps)), size)
    linked = [some for some in every if not any(fast) or size == len(mbps) or _is_linked(some, fast)]

    def rank(some: Set) -> tuple[int, int, bool]:
        """Of equal sets, those that fill the node without a rest are first."""
        return -(sets.weakest(some) or 0), -sets.total(some), some[0] % size > 0 or some[-1] - some[0] >= size

    # The numbers spread a choice among equal sets over all GPUs.
    best = sorted(linked, key=lambda some: (*rank(some), crc32(bytes(some))))[:MOST_SETS]
    return tuple(sorted(best, key=lambda some: (*rank(some), some)))


def _is_linked(some: Set, fast: list[int]) -> bool:
    """Whether each GPU has fast links to two others of the set, or to the one, and they lead to all."""
    mask = sum(1 << gpu for gpu in some)
    if any((fast[gpu] & mask).bit_count() < min(2, len(some) - 1) for gpu in some):
        return False
    reached, former = 1 << some[0], 0
    while reached != former:
        former = reached
        for gpu in some:
            if former >> gpu & 1:
                reached |= fast[gpu] & mask
    return reached == mask


@lru_cache(maxsize=64)
def singles(mbps: Mbps, free: frozenset[int]) -> tuple[int, ...]:
    """The free GPUs in the order in which single ones should be taken, so that good sets are left."""
    left, found = set(free), list[int]()
    while left:
        found.extend(best_sets(mbps).choose(left, 1))
        left.discard(found[-1])
    return tuple(found)


@lru_cache(maxsize=256)
def in_order(mbps: Mbps, size: int, part: int, free: frozenset[int]) -> tuple[Set, ...]:
    """The sets of one part of `worth_having`, the one to take first; none if there is no such part.

    A part has the sets of one slice, which are the same whatever GPUs are free.
    """
    some = worth_having(mbps, size)[part * PART : (part + 1) * PART]
    return tuple(best_sets(mbps).ranked(free, some))
