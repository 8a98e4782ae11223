"""The rank of every set of GPUs, computed once for a matrix of bandwidths.

A set is a bit mask with GPU 0 as the highest bit. So of two sets of one size, the one with the lower indexes is the
larger number. Interchangeable GPUs, such as all GPUs behind one NVSwitch or PCIe switch, are one *sort*. One mask, with
the first GPUs of each sort, represents all sets with the same number of each sort. On a node with 16 interchangeable
GPUs, 17 of 65,536 masks remain.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import product

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
            self._firsts.append([((1 << n) - 1) << (end - n) for n in range(len(members) + 1)])
            end -= len(members)
        sizes: list[list[int]] = [[] for _ in range(self._count + 1)]
        for parts in product(*self._firsts):
            mask = sum(parts)
            sizes[mask.bit_count()].append(mask)
        self._weakest, self.total = self._added_up([[mbps[i][j] for j in order] for i in order], sizes)
        self.rank = self._ranked(sizes)
        self.by_size = [array("H", sorted(masks, key=self.rank.__getitem__)) for masks in sizes]
        self.plain = self._plain()
        self.later = self._later(sizes)
        self.others = self._others(sizes)

    def firsts(self, counts: Sequence[int]) -> int:
        """The mask with the first `counts[n]` GPUs of sort `n`."""
        return sum(firsts[count] for firsts, count in zip(self._firsts, counts, strict=True))

    def counts(self, mask: int) -> list[int]:
        """How many GPUs of each sort `mask` has."""
        return [(mask & firsts[-1]).bit_count() for firsts in self._firsts]

    def _table(self, kind: str, value: int = 0) -> "array[int]":
        return array(kind, [value]) * (1 << self._count)

    def _added_up(self, rows: list[list[int]], sizes: list[list[int]]) -> "tuple[array[int], array[int]]":
        """Weakest link and total of every set, each from the set without its last GPU."""
        weakest = self._table("L", max((speed for row in rows for speed in row), default=0) + 1)
        total = self._table("L")
        for mask in (mask for masks in sizes[2:] for mask in masks):
            rest = mask & (mask - 1)
            row = rows[self._count - (mask ^ rest).bit_length()]
            links = [row[self._count - bit] for bit in _bits(rest)]
            weakest[mask] = min(weakest[rest], *links)
            total[mask] = total[rest] + sum(links)
        return weakest, total

    def _ranked(self, sizes: list[list[int]]) -> "array[int]":
        rank = self._table("H")
        for masks in sizes:
            worths = {mask: (self._weakest[mask], self.total[mask]) for mask in masks}
            ranks = {worth: place for place, worth in enumerate(sorted(set(worths.values()), reverse=True))}
            for mask, worth in worths.items():
                rank[mask] = ranks[worth]
        return rank

    def _plain(self) -> "array[int]":
        plain = self._table("H")
        for firsts in self._firsts:
            first, *_, all_of_it = firsts[1], firsts[-1]
            lowest = all_of_it & -all_of_it
            for mask in range(lowest, 2 * first, lowest):
                plain[mask] = firsts[(mask & all_of_it).bit_count()]
        # Every mask is a part of one sort, and a rest of the sorts before it.
        for firsts in self._firsts:
            all_of_it = firsts[-1]
            lowest = all_of_it & -all_of_it
            above = 2 * firsts[1]
            for rest in range(above, 1 << self._count, above):
                for part in range(0, above, lowest):
                    plain[rest | part] = plain[rest] | plain[part]
        return plain

    def _later(self, sizes: list[list[int]]) -> "array[int]":
        number = self._table("Q")
        for size in LATER:
            best = self._best_within(size, sizes) if size <= self._count else self._table("H")
            for mask in (mask for masks in sizes for mask in masks):
                number[mask] = number[mask] << 16 | best[mask]
        return array("Q", (number[plain] for plain in self.plain))

    def _others(self, sizes: list[list[int]]) -> "array[int]":
        everyone = (1 << self._count) - 1
        place = self._table("H")
        for masks in sizes:
            left = {mask: self.plain[everyone ^ mask] for mask in masks}
            worths = {mask: (self.later[rest], -self.total[rest]) for mask, rest in left.items()}
            places = {worth: number for number, worth in enumerate(sorted(set(worths.values())))}
            for mask, worth in worths.items():
                place[mask] = places[worth]
        return place

    def _best_within(self, size: int, sizes: list[list[int]]) -> "array[int]":
        """For every set, the rank of its best subset of `size` GPUs."""
        best = self._table("H", _NONE)
        for mask in sizes[size]:
            best[mask] = self.rank[mask]
        for mask in (mask for masks in sizes[size + 1 :] for mask in masks):
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


def sorts_of(mbps: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group interchangeable GPUs: both of any two have the same links to every third GPU."""
    sorts: list[list[int]] = []
    everyone = range(len(mbps))
    for gpu in everyone:
        for members in sorts:
            one = members[0]
            if all(mbps[gpu][x] == mbps[one][x] for x in everyone if x not in {gpu, one}):
                members.append(gpu)
                break
        else:
            sorts.append([gpu])
    return sorts


def _bits(mask: int) -> Iterator[int]:
    """Places of the bits that are set, 1 for the lowest."""
    while mask:
        yield mask.bit_length()
        mask ^= 1 << (mask.bit_length() - 1)
