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
Free = frozenset[int]
"""Numbers of the GPUs that a claim can have whole."""
Rank = tuple[int, int, bool]
"""Of a set; the lowest is the best: the bandwidth of the weakest link and of all links, both negative, and whether the
set leaves a rest."""


def set_name(uuids: Iterable[str]) -> str:
    """The name of a set in slices and allocations. It follows from the GPUs alone."""
    members = sorted(uuids)
    key = key_of(",".join(members))
    return f"gpus-{len(members)}-{key}"


def members_of(name: str, uuids: Iterable[str]) -> tuple[str, ...]:
    """UUIDs of the set's GPUs, which are among `uuids`; empty if it has others, or if the name is not of a set."""
    known = sorted(uuids)
    if len(known) > MOST_GPUS:
        return ()
    for size in SIZES:
        if not name.startswith(f"gpus-{size}-"):
            continue
        # The name is a hash of the members, so the only way back is to try all sets.
        for members in combinations(known, size):
            if set_name(members) == name:
                return members
    return ()


@lru_cache(maxsize=4)
def best_sets(mbps: Mbps) -> BestSets:
    """The chooser for a matrix of bandwidths."""
    return BestSets(mbps)


@lru_cache(maxsize=16)
def offered_sets(mbps: Mbps, size: int) -> tuple[Set, ...]:
    """Sets of `size` GPUs that a claim for linked GPUs may get, by index, best links first; at most `MOST_SETS`.

    These are the sets in a ring of links that are faster than the node's slowest ones. If all links are equally fast,
    or the set is the whole node, it is worth having too.
    """
    count = len(mbps)
    if not size <= count <= MOST_GPUS:
        return ()
    sets = best_sets(mbps)
    candidates: Iterable[Set] = combinations(range(count), size)
    fast = _fast_links(mbps)
    if any(fast) and size < count:
        candidates = [members for members in candidates if _is_linked(members, fast)]

    def spread(members: Set) -> tuple[Rank, int]:
        # The numbers spread a choice among equal sets over all GPUs.
        number = crc32(bytes(members))
        return _rank(members, sets), number

    def by_members(members: Set) -> tuple[Rank, Set]:
        return _rank(members, sets), members

    best = sorted(candidates, key=spread)[:MOST_SETS]
    best.sort(key=by_members)
    return tuple(best)


def _rank(members: Set, sets: BestSets) -> Rank:
    weakest = sets.weakest(members) or 0
    total = sets.total(members)
    leaves_rest = not _fills_up(members)
    return -weakest, -total, leaves_rest


def _fills_up(members: Set) -> bool:
    """Whether a set is one of those that fill the node without a rest: GPUs 0 to 3, 4 to 7 and so on."""
    size = len(members)
    first = members[0]
    last = members[-1]
    starts_at_multiple = first % size == 0
    has_no_gap = last - first < size
    return starts_at_multiple and has_no_gap


def _fast_links(mbps: Mbps) -> list[int]:
    """Of each GPU, a mask of those to which its link is faster than the slowest of the node."""
    count = len(mbps)
    pairs = list(combinations(range(count), 2))
    bandwidths = [mbps[gpu][other] for gpu, other in pairs]
    slowest = min(bandwidths, default=0)
    fast = [0] * count
    for gpu, other in pairs:
        if mbps[gpu][other] > slowest:
            fast[gpu] |= 1 << other
            fast[other] |= 1 << gpu
    return fast


def _is_linked(members: Set, fast: list[int]) -> bool:
    """Whether each GPU has fast links to two others of the set, or to the only other, and they lead to all."""
    mask = sum(1 << gpu for gpu in members)
    links = {gpu: fast[gpu] & mask for gpu in members}
    others = len(members) - 1
    needed = min(2, others)
    for peers in links.values():
        if peers.bit_count() < needed:
            return False
    # Go along the links from the first GPU until no new one is reached.
    reached = 1 << members[0]
    former = 0
    while reached != former:
        former = reached
        for gpu, peers in links.items():
            if former >> gpu & 1:
                reached |= peers
    return reached == mask


@lru_cache(maxsize=64)
def single_gpus_first(mbps: Mbps, free: Free) -> tuple[int, ...]:
    """The free GPUs in the order in which single ones should be taken, so that good sets are left."""
    remaining = set(free)
    ordered: list[int] = []
    while remaining:
        (gpu,) = best_sets(mbps).choose(remaining, 1)
        ordered.append(gpu)
        remaining.discard(gpu)
    return tuple(ordered)


@lru_cache(maxsize=256)
def ranked_sets(mbps: Mbps, size: int, part: int, free: Free) -> tuple[Set, ...]:
    """The sets of one part of `offered_sets`, the one to take first; none if there is no such part.

    A part has the sets of one slice, which are the same whatever GPUs are free.
    """
    start = part * PART
    end = start + PART
    sets = offered_sets(mbps, size)[start:end]
    ranked = best_sets(mbps).ranked(free, sets)
    return tuple(ranked)
