"""The best set of k out of the free GPUs: exact, the same for the same question, and in less than a millisecond.

The rank of a set depends on the bandwidths alone. So `SetTables` ranks all sets once for a topology, and a request
searches a sorted list.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, combinations
from math import comb, prod

from gpuagent.domain.placement.ring import best_ring
from gpuagent.domain.placement.set_tables import SetTables, sorts_of

MOST_GPUS = 16
"""Bits of a mask. On a node with more GPUs, a set grows GPU by GPU."""

AT_ONCE = 1 << 13
"""Number of sets up to which the constructor computes the tables, in about 0.1 s; beyond it, only `work_out` does."""

FEW = 300
"""Number of sets up to which trying each set is faster than a search of the sorted list."""


class BestSets:
    """The chooser of GPU sets for one matrix of bandwidths.

    Args:
        mbps: square matrix of MB/s between two GPUs, whole numbers, symmetric; the diagonal does not matter.

    Raises:
        ValueError: `mbps` is not square, or not the same both ways.
    """

    def __init__(self, mbps: Sequence[Sequence[int]]) -> None:
        _check(mbps)
        self._mbps = mbps
        self._sorts = sorts_of(mbps)
        self._all_differ = len(self._sorts) == len(mbps)
        self._rings: dict[frozenset[int], tuple[int, ...]] = {}
        self._tables: SetTables | None = None
        if prod(len(sort) + 1 for sort in self._sorts) <= AT_ONCE:
            self.work_out()

    @property
    def exact(self) -> bool:
        """Whether the answers are the best sets; otherwise, they are sets grown GPU by GPU."""
        return self._tables is not None

    def work_out(self) -> None:
        """Make the answers exact, for up to 16 GPUs. This takes half a second if no two GPUs are interchangeable.

        It may run while other threads call `choose`.
        """
        if self._tables is None and len(self._mbps) <= MOST_GPUS:
            self._tables = SetTables(self._mbps, self._sorts)

    def choose(
        self, free: Collection[int], size: int, must: Collection[int] = (), job_gpus: Collection[int] = ()
    ) -> tuple[int, ...]:
        """The best `size` of the GPUs in `free`, with all of `must` among them; ascending.

        Each criterion decides between sets that are equal by those before it:

        - the fastest weakest link, then the highest total bandwidth, both together with the GPUs in `job_gpus`;
        - if there are GPUs in `job_gpus`: weakest link and total of the set alone;
        - the best remaining sets of 8, 4 and 2 GPUs (weakest link, total) among the free GPUs;
        - the best remaining sets of these sizes among all GPUs, then the highest total of all remaining GPUs;
        - the highest total of the remaining free GPUs, then the lowest indexes.

        Raises:
            ValueError: there is no such set, or a GPU is unknown, named twice, or both free and in `job_gpus`.
        """
        self._check_question(free, size, must, job_gpus)
        if len(free) == size:
            return tuple(sorted(free))
        tables = self._tables
        if tables is None:
            return self._grown(free, size, must, job_gpus)
        had = self._mask({*job_gpus}, tables)
        everything, needed = self._mask({*free, *job_gpus}, tables), self._mask({*must, *job_gpus}, tables)
        few = self._all_differ and comb(len(free) - len(must), size - len(must)) <= FEW
        find = _first_of_few if few else _first
        found = find(tables, everything, needed, size + len(job_gpus))
        if job_gpus:
            found = _least(found, [tables.rank[tables.plain[mask ^ had]] for mask in found])
        found = _least(found, [tables.later[everything ^ mask] for mask in found])
        found = _least(found, [tables.others[mask] for mask in found])
        found = _least(found, [-tables.total[tables.plain[everything ^ mask]] for mask in found])
        free, must = frozenset((*free, *job_gpus)), frozenset((*must, *job_gpus))
        return tuple(gpu for gpu in self._lowest(found, tables, free, must) if gpu not in job_gpus)

    def ranked(self, free: Collection[int], sets: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Sets of one size, best first: those within `free` by the criteria of `choose`, then the rest by their links.

        Sets that are equal by these keep their order.
        """
        everything = frozenset(free)

        def links(members: tuple[int, ...]) -> tuple[int, ...]:
            return -(self.weakest(members) or 0), -self.total(members)

        def key(members: tuple[int, ...]) -> tuple[int, ...]:
            tables = self._tables
            if not everything.issuperset(members):
                return (1, *links(members))
            if tables is None:
                return (0, *links(members))
            mask, rest = self._mask(members, tables), self._mask(everything.difference(members), tables)
            return 0, tables.rank[mask], tables.later[rest], tables.others[mask], -tables.total[tables.plain[rest]]

        return sorted(sets, key=key)

    def _mask(self, gpus: Collection[int], tables: SetTables) -> int:
        return tables.firsts([sum(gpu in gpus for gpu in sort) for sort in self._sorts])

    def _lowest(
        self, found: list[int], tables: SetTables, free: frozenset[int], must: frozenset[int]
    ) -> tuple[int, ...]:
        """The GPUs with the lowest indexes among the sets that the masks `found` represent."""
        bit = {gpu: 1 << (len(self._mbps) - 1 - gpu) for gpu in free}
        if not self._all_differ:
            sums: list[list[int]] = []
            for sort in self._sorts:
                mine = sorted(free.intersection(sort), key=lambda gpu: (gpu not in must, gpu))
                sums.append([0, *accumulate(bit[gpu] for gpu in mine)])
            found = [sum(bits[n] for bits, n in zip(sums, tables.counts(mask), strict=True)) for mask in found]
        mask = max(found)
        return tuple(gpu for gpu in sorted(free) if mask & bit[gpu])

    def ring(self, members: frozenset[int]) -> tuple[int, ...]:
        """A set in the order of the best ring through it (see `best_ring`); searched once."""
        if members not in self._rings:
            self._rings[members] = best_ring(self._mbps, members)
        return self._rings[members]

    def weakest(self, members: Collection[int]) -> int | None:
        """MB/s of the slowest link inside a set; None for a single GPU."""
        return min((self._mbps[i][j] for i in members for j in members if i < j), default=None)

    def total(self, members: Collection[int]) -> int:
        """MB/s of all links inside a set together."""
        return sum(self._mbps[i][j] for i in members for j in members if i < j)

    def _grown(
        self, free: Collection[int], size: int, must: Collection[int], job_gpus: Collection[int]
    ) -> tuple[int, ...]:
        """A good set if there are too many to rank: starts with the best link and adds one GPU at a time."""
        chosen = {*must, *job_gpus} or {min(free)}
        if not must and not job_gpus and size > 1:
            pairs = ((self._mbps[i][j], -i, -j) for i in free for j in free if i < j)
            chosen = {-gpu for gpu in max(pairs)[1:]}
        while len(chosen) < size + len(job_gpus):
            links = {gpu: [self._mbps[gpu][other] for other in chosen] for gpu in free if gpu not in chosen}
            chosen.add(max(links, key=lambda gpu: (min(links[gpu]), sum(links[gpu]), -gpu)))
        return tuple(sorted(chosen.difference(job_gpus)))

    def _check_question(
        self, free: Collection[int], size: int, must: Collection[int], job_gpus: Collection[int]
    ) -> None:
        for what, gpus in (("free", free), ("must", must), ("job_gpus", job_gpus)):
            if len(set(gpus)) != len(gpus):
                raise ValueError(f"{what} names a GPU twice: {sorted(gpus)}")
        if both := set(free).intersection(job_gpus):
            raise ValueError(f"GPU {min(both)} is free, and its job has it")
        if strangers := {*free, *job_gpus} - set(range(len(self._mbps))):
            raise ValueError(f"there is no GPU {min(strangers)}: the topology has {len(self._mbps)} GPUs")
        if missing := set(must) - set(free):
            raise ValueError(f"GPU {min(missing)} must be included and is not free")
        if size < 1:
            raise ValueError(f"a set has 1 GPU or more, not {size}")
        if not len(must) <= size <= len(free):
            fixed = f", {len(must)} of them fixed," if must else ""
            raise ValueError(f"a set of {size} GPUs{fixed} cannot be had out of {len(free)}")


def _first_of_few(tables: SetTables, everything: int, needed: int, size: int) -> list[int]:
    """The result of `_first` for GPUs of which no two are interchangeable, by trying all sets within `everything`."""
    bits = [1 << place for place in range(everything.bit_length()) if (everything ^ needed) >> place & 1]
    masks = [needed | sum(some) for some in combinations(bits, size - needed.bit_count())]
    return _least(masks, [tables.rank[mask] for mask in masks])


def _first(tables: SetTables, everything: int, needed: int, size: int) -> list[int]:
    """The best sets of that size within `everything` that have `needed`, all equally good."""
    fixed, rank = ~everything | needed, tables.rank
    masks = iter(tables.by_size[size])
    found = [next(mask for mask in masks if mask & fixed == needed)]
    place = rank[found[0]]
    for mask in masks:
        if rank[mask] != place:
            break
        if mask & fixed == needed:
            found.append(mask)
    return found


def _least(masks: list[int], numbers: list[int]) -> list[int]:
    """The masks with the least number."""
    least = min(numbers)
    return [mask for mask, number in zip(masks, numbers, strict=True) if number == least]


def _check(mbps: Sequence[Sequence[int]]) -> None:
    for i, row in enumerate(mbps):
        if len(row) != len(mbps):
            raise ValueError(f"the matrix is not square: {len(mbps)} rows, and row {i} has {len(row)} entries")
    for i, row in enumerate(mbps):
        for j, speed in enumerate(row[:i]):
            if speed < 0:
                raise ValueError(f"between GPU {j} and GPU {i} it says {speed} MB/s; 0 is the least")
            if speed != mbps[j][i]:
                raise ValueError(f"between GPU {j} and GPU {i} it says {mbps[j][i]} one way and {speed} the other")
