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

_Sizes = list[list[int]]
"""Masks by the number of their GPUs."""


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

    def __init__(
        self,
        mbps: Sequence[Sequence[int]],
        sorts: Sequence[Sequence[int]],
    ) -> None:
        order = list(chain.from_iterable(sorts))
        self._count = len(order)
        self._firsts = _firsts_of(sorts, self._count)
        sizes = self._masks_by_size()
        rows = []
        for gpu in order:
            speeds = mbps[gpu]
            rows.append([speeds[other] for other in order])
        # A set of one GPU has no link, and counts as faster than any other.
        no_link = _fastest(rows) + 1
        self._weakest = self._table("L", no_link)
        self.total = self._table("L")
        self._add_up(rows, sizes)
        self.rank = self._ranked(sizes)
        self.by_size = [self._best_first(masks) for masks in sizes]
        self.plain = self._plain()
        self.later = self._later(sizes)
        self.others = self._others(sizes)

    def _masks_by_size(self) -> _Sizes:
        """The representative masks with no GPU, with one, and so on."""
        sizes: _Sizes = []
        for _ in range(self._count + 1):
            sizes.append([])
        # A mask has some of the first GPUs of each sort.
        for parts in product(*self._firsts):
            mask = sum(parts)
            size = mask.bit_count()
            sizes[size].append(mask)
        return sizes

    def firsts(self, counts: Sequence[int]) -> int:
        """The mask with the first `counts[n]` GPUs of sort `n`."""
        mask = 0
        for firsts, count in zip(self._firsts, counts, strict=True):
            mask |= firsts[count]
        return mask

    def counts(self, mask: int) -> list[int]:
        """How many GPUs of each sort `mask` has."""
        counts = []
        for firsts in self._firsts:
            of_sort = mask & firsts[-1]
            counts.append(of_sort.bit_count())
        return counts

    def _table(self, kind: str, value: int = 0) -> "array[int]":
        return array(kind, [value]) * (1 << self._count)

    def _add_up(self, rows: list[list[int]], sizes: list[list[int]]) -> None:
        """Weakest link and total of every set, each from the set without its last GPU."""
        count = self._count
        # In the order of their sizes, so that the smaller set is known already.
        with_links = sizes[2:]
        for mask in chain.from_iterable(with_links):
            rest = mask & (mask - 1)
            last = mask ^ rest
            row = rows[count - last.bit_length()]
            links = [row[count - bit] for bit in _bits(rest)]
            weakest = min(links)
            total = sum(links)
            self._weakest[mask] = min(self._weakest[rest], weakest)
            self.total[mask] = self.total[rest] + total

    def _ranked(self, sizes: list[list[int]]) -> "array[int]":
        rank = self._table("H")
        for masks in sizes:
            worths = []
            for mask in masks:
                weakest = self._weakest[mask]
                worths.append((-weakest, -self.total[mask]))
            _put_places(rank, masks, worths)
        return rank

    def _best_first(self, masks: list[int]) -> "array[int]":
        by_rank = sorted(masks, key=self.rank.__getitem__)
        return array("H", by_rank)

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
            # The ranks of all sizes are digits of one number, the most important size first.
            for mask in chain.from_iterable(sizes):
                number[mask] = number[mask] << 16 | best[mask]
        of_every_mask = (number[plain] for plain in self.plain)
        return array("Q", of_every_mask)

    def _others(self, sizes: list[list[int]]) -> "array[int]":
        everyone = (1 << self._count) - 1
        place = self._table("H")
        for masks in sizes:
            worths = []
            for mask in masks:
                rest = self.plain[everyone ^ mask]
                worths.append((self.later[rest], -self.total[rest]))
            _put_places(place, masks, worths)
        return place

    def _best_within(self, size: int, sizes: list[list[int]]) -> "array[int]":
        """For every set, the rank of its best subset of `size` GPUs."""
        best = self._table("H", _NONE)
        for mask in sizes[size]:
            best[mask] = self.rank[mask]
        larger = sizes[size + 1 :]
        for mask in chain.from_iterable(larger):
            # `size` GPUs miss at least one of any `size` + 1, so no more need to be taken away in turn.
            ranks = [best[less] for less in self._one_less(mask, size + 1)]
            best[mask] = min(ranks)
        return best

    def _one_less(self, mask: int, enough: int) -> Iterator[int]:
        """`mask` without one GPU, in turn of each sort, until those sorts have `enough` GPUs together."""
        for firsts in self._firsts:
            part = mask & firsts[-1]
            if not part:
                continue
            lowest = part & -part
            yield mask ^ lowest
            enough -= part.bit_count()
            if enough <= 0:
                return


def _firsts_of(sorts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Of each sort, the bits of its first n GPUs, for n from 0. The first sort has the highest of `count` bits."""
    firsts: list[list[int]] = []
    end = count
    for members in sorts:
        masks = []
        for number in range(len(members) + 1):
            ones = (1 << number) - 1
            masks.append(ones << (end - number))
        firsts.append(masks)
        end -= len(members)
    return firsts


def _put_places(
    table: "array[int]",
    masks: list[int],
    worths: list[tuple[int, int]],
) -> None:
    """Write the place of each mask into `table`. The lowest worth is first, and equal worths share a place."""
    best_first = sorted(set(worths))
    place_of = {worth: place for place, worth in enumerate(best_first)}
    pairs = zip(masks, worths, strict=True)
    for mask, worth in pairs:
        table[mask] = place_of[worth]


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


def _are_interchangeable(
    mbps: Sequence[Sequence[int]],
    gpu: int,
    other: int,
) -> bool:
    speeds = mbps[gpu]
    other_speeds = mbps[other]
    thirds = set(range(len(mbps))) - {gpu, other}
    return all(speeds[third] == other_speeds[third] for third in thirds)


def _bits(mask: int) -> Iterator[int]:
    """Places of the bits that are set, 1 for the lowest."""
    while mask:
        yield mask.bit_length()
        mask ^= 1 << (mask.bit_length() - 1)
