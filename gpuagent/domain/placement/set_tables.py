"""The rank of every set of GPUs, computed once for a matrix of bandwidths.

A set is a bit mask with GPU 0 as the highest bit. So of two sets of one size, the one with the lower indexes is the
larger number. Interchangeable GPUs, such as all GPUs behind one NVSwitch or PCIe switch, are one *sort*. One mask, with
the first GPUs of each sort, represents all sets with the same number of each sort. On a node with 16 interchangeable
GPUs, 17 of 65,536 masks remain.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, product

LATER = (8, 4, 2)
"""Sizes of future requests that need good sets, most important first. For size 1, all GPUs are equal."""

_NONE = 0xFFFF
"""A rank below all others: there is no such set."""


class SetTables:
    """Ranks of the representative sets, and the best smaller sets that each contains.

    Args:
        mbps: square matrix of MB/s between two GPUs, symmetric.
        sorts: the GPUs, with interchangeable ones grouped (see `sorts_of`).

    Attributes:
        by_size: masks of each size, best first: by weakest link, then by total.
        rank: mask to its place among those of its size; equally good masks share a rank.
        total: mask to the MB/s of all its links together.
        plain: any mask to its representative mask.
        later: any mask to a number, which is smaller if the mask contains better sets of the sizes in `LATER`.
        others: mask to its place among those of its size by `later`, then by total, of all GPUs that are not in it.
    """

    def __init__(self, mbps: Sequence[Sequence[int]], sorts: Sequence[Sequence[int]]) -> None:
        order = [gpu for members in sorts for gpu in members]
        self._count = len(order)
        # Of each sort: the bits of its first n GPUs, for n from 0.
        self._firsts: list[list[int]] = []
        end = self._count
        for members in sorts:
            counts = range(len(members) + 1)
            self._firsts.append([((1 << n) - 1) << (end - n) for n in counts])
            end -= len(members)
        sizes: list[list[int]] = [[] for _ in range(self._count + 1)]
        for parts in product(*self._firsts):
            mask = sum(parts)
            sizes[mask.bit_count()].append(mask)
        rows = [[mbps[gpu][other] for other in order] for gpu in order]
        self._weakest = self._table("L", _fastest(rows) + 1)
        self.total = self._table("L")
        self._add_up(rows, sizes)
        self.rank = self._ranked(sizes)
        self.by_size = [self._best_first(masks) for masks in sizes]
        self.plain = self._plain()
        self.later = self._later(sizes)
        self.others = self._others(sizes)

    def firsts(self, counts: Sequence[int]) -> int:
        """The mask with the first `counts[n]` GPUs of sort `n`."""
        pairs = zip(self._firsts, counts, strict=True)
        return sum(firsts[count] for firsts, count in pairs)

    def counts(self, mask: int) -> list[int]:
        """How many GPUs of each sort `mask` has."""
        return [(mask & firsts[-1]).bit_count() for firsts in self._firsts]

    def _table(self, kind: str, value: int = 0) -> "array[int]":
        return array(kind, [value]) * (1 << self._count)

    def _add_up(self, rows: list[list[int]], sizes: list[list[int]]) -> None:
        """Weakest link and total of every set, each from the set without its last GPU."""
        count = self._count
        for mask in chain.from_iterable(sizes[2:]):
            rest = mask & (mask - 1)
            last = mask ^ rest
            row = rows[count - last.bit_length()]
            links = [row[count - bit] for bit in _bits(rest)]
            self._weakest[mask] = min(self._weakest[rest], *links)
            self.total[mask] = self.total[rest] + sum(links)

    def _ranked(self, sizes: list[list[int]]) -> "array[int]":
        rank = self._table("H")
        for masks in sizes:
            worths = [(-self._weakest[mask], -self.total[mask]) for mask in masks]
            _put_places(rank, masks, worths)
        return rank

    def _best_first(self, masks: list[int]) -> "array[int]":
        return array("H", sorted(masks, key=self.rank.__getitem__))

    def _plain(self) -> "array[int]":
        plain = self._table("H")
        for firsts in self._firsts:
            every = firsts[-1]
            lowest = every & -every
            above = 2 * firsts[1]
            for mask in range(lowest, above, lowest):
                count = (mask & every).bit_count()
                plain[mask] = firsts[count]
        # Every mask is a part of one sort, and a rest of the sorts before it.
        for firsts in self._firsts:
            every = firsts[-1]
            lowest = every & -every
            above = 2 * firsts[1]
            for rest in range(above, 1 << self._count, above):
                for part in range(0, above, lowest):
                    plain[rest | part] = plain[rest] | plain[part]
        return plain

    def _later(self, sizes: list[list[int]]) -> "array[int]":
        number = self._table("Q")
        for size in LATER:
            best = self._table("H")
            if size <= self._count:
                best = self._best_within(size, sizes)
            for mask in chain.from_iterable(sizes):
                number[mask] = number[mask] << 16 | best[mask]
        return array("Q", (number[plain] for plain in self.plain))

    def _others(self, sizes: list[list[int]]) -> "array[int]":
        everyone = (1 << self._count) - 1
        place = self._table("H")
        for masks in sizes:
            rests = [self.plain[everyone ^ mask] for mask in masks]
            worths = [(self.later[rest], -self.total[rest]) for rest in rests]
            _put_places(place, masks, worths)
        return place

    def _best_within(self, size: int, sizes: list[list[int]]) -> "array[int]":
        """For every set, the rank of its best subset of `size` GPUs."""
        best = self._table("H", _NONE)
        for mask in sizes[size]:
            best[mask] = self.rank[mask]
        for mask in chain.from_iterable(sizes[size + 1 :]):
            # `size` GPUs miss at least one of any `size` + 1, so no more need to be taken away in turn.
            best[mask] = min([best[less] for less in self._one_less(mask, size + 1)])
        return best

    def _one_less(self, mask: int, enough: int) -> Iterator[int]:
        """`mask` without one GPU, in turn of each sort, until those sorts have `enough` GPUs together."""
        for firsts in self._firsts:
            if part := mask & firsts[-1]:
                yield mask ^ (part & -part)
                enough -= part.bit_count()
                if enough <= 0:
                    return


def _put_places(table: "array[int]", masks: list[int], worths: list[tuple[int, int]]) -> None:
    """Write the place of each mask into `table`. The lowest worth is first, and equal worths share a place."""
    places = {worth: place for place, worth in enumerate(sorted(set(worths)))}
    for mask, worth in zip(masks, worths, strict=True):
        table[mask] = places[worth]


def _fastest(rows: list[list[int]]) -> int:
    return max(map(max, rows), default=0)


def sorts_of(mbps: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group interchangeable GPUs: two GPUs are interchangeable if they have equal links to every other GPU."""
    sorts: list[list[int]] = []
    for gpu in range(len(mbps)):
        for members in sorts:
            if _are_interchangeable(mbps, gpu, members[0]):
                members.append(gpu)
                break
        else:
            sorts.append([gpu])
    return sorts


def _are_interchangeable(mbps: Sequence[Sequence[int]], gpu: int, other: int) -> bool:
    thirds = set(range(len(mbps))) - {gpu, other}
    return all(mbps[gpu][third] == mbps[other][third] for third in thirds)


def _bits(mask: int) -> Iterator[int]:
    """Places of the bits that are set, 1 for the lowest."""
    while mask:
        yield mask.bit_length()
        mask ^= 1 << (mask.bit_length() - 1)
