"""The best set of k out of the free GPUs: exact, the same for the same question, and in less than a millisecond.

The rank of a set depends on the bandwidths alone. So `SetTables` ranks all sets once for a topology, and a request
searches a sorted list.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
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
        # Of each sort, a mask has none of the GPUs, the first, the first two, and so on.
        choices = [len(sort) + 1 for sort in self._sorts]
        masks = prod(choices)
        if masks <= AT_ONCE:
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
        self,
        free: Collection[int],
        size: int,
        must: Collection[int] = (),
        job_gpus: Collection[int] = (),
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
        # The set is chosen together with the GPUs of the job, which are then taken out again.
        pool = frozenset((*free, *job_gpus))
        fixed = frozenset((*must, *job_gpus))
        pool_mask = self._mask(pool, tables)
        fixed_mask = self._mask(fixed, tables)
        size_with_job = size + len(job_gpus)
        # Trying each set is only right where a mask stands for one set: where no two GPUs are interchangeable.
        choices = comb(len(free) - len(must), size - len(must))
        has_few_choices = self._all_differ and choices <= FEW
        find = _first_of_few if has_few_choices else _first
        masks = find(tables, pool_mask, fixed_mask, size_with_job)
        if job_gpus:
            job_mask = self._mask(frozenset(job_gpus), tables)
            masks = _best_alone(tables, masks, job_mask)
        masks = _best_for_later(tables, masks, pool_mask)
        chosen = self._lowest(masks, tables, pool, fixed)
        return tuple(gpu for gpu in chosen if gpu not in job_gpus)

    def ranked(
        self,
        free: Collection[int],
        sets: Iterable[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Sets of one size, best first: those within `free` by the criteria of `choose`, then the rest by their links.

        Sets that are equal by these keep their order.
        """
        pool = frozenset(free)

        def key(members: tuple[int, ...]) -> tuple[int, ...]:
            is_free = pool.issuperset(members)
            if is_free and self._tables:
                ranks = self._ranks(members, pool, self._tables)
                return 0, *ranks
            # The lowest comes first, so that faster links have to be lower numbers.
            weakest = self.weakest(members) or 0
            total = self.total(members)
            group = 0 if is_free else 1
            return group, -weakest, -total

        return sorted(sets, key=key)

    def _ranks(
        self,
        members: tuple[int, ...],
        pool: frozenset[int],
        tables: SetTables,
    ) -> tuple[int, ...]:
        """What `choose` compares of a set within `pool`; lower is better."""
        mask = self._mask(frozenset(members), tables)
        remaining = pool.difference(members)
        rest = self._mask(remaining, tables)
        plain_rest = tables.plain[rest]
        return (
            tables.rank[mask],
            tables.later[rest],
            tables.others[mask],
            -tables.total[plain_rest],
        )

    def _mask(self, gpus: frozenset[int], tables: SetTables) -> int:
        """The mask that represents this set."""
        counts = []
        for sort in self._sorts:
            of_sort = gpus.intersection(sort)
            counts.append(len(of_sort))
        return tables.firsts(counts)

    def _lowest(
        self,
        masks: list[int],
        tables: SetTables,
        free: frozenset[int],
        must: frozenset[int],
    ) -> tuple[int, ...]:
        """The GPUs with the lowest indexes among the sets that the masks represent."""
        highest = len(self._mbps) - 1
        bits = {gpu: 1 << (highest - gpu) for gpu in free}
        if not self._all_differ:
            # A mask may represent several sets. Of each sort, take what must be taken, then the lowest indexes.
            first_bits = [_first_bits(sort, bits, must) for sort in self._sorts]
            masks = [_own_mask(first_bits, tables.counts(mask)) for mask in masks]
        # GPU 0 is the highest bit, so the largest number has the lowest indexes.
        lowest = max(masks)
        return tuple(gpu for gpu in sorted(free) if lowest & bits[gpu])

    def ring(self, members: frozenset[int]) -> tuple[int, ...]:
        """A set in the order of the best ring through it (see `best_ring`); searched once."""
        if members not in self._rings:
            self._rings[members] = best_ring(self._mbps, members)
        return self._rings[members]

    def weakest(self, members: Collection[int]) -> int | None:
        """MB/s of the slowest link inside a set; None for a single GPU."""
        return min(self._links(members), default=None)

    def total(self, members: Collection[int]) -> int:
        """MB/s of all links inside a set together."""
        return sum(self._links(members))

    def _links(self, members: Collection[int]) -> list[int]:
        """MB/s of each link inside a set."""
        links = []
        for gpu, other in combinations(members, 2):
            speeds = self._mbps[gpu]
            links.append(speeds[other])
        return links

    def _grown(
        self,
        free: Collection[int],
        size: int,
        must: Collection[int],
        job_gpus: Collection[int],
    ) -> tuple[int, ...]:
        """A good set if there are too many to rank: starts with the best link and adds one GPU at a time."""
        chosen = {*must, *job_gpus}
        if not chosen:
            chosen = self._best_pair(free) if size > 1 else {min(free)}
        wanted = size + len(job_gpus)
        while len(chosen) < wanted:
            candidates = [gpu for gpu in free if gpu not in chosen]
            nearest = self._nearest(candidates, chosen)
            chosen.add(nearest)
        chosen.difference_update(job_gpus)
        return tuple(sorted(chosen))

    def _best_pair(self, free: Collection[int]) -> set[int]:
        """The two GPUs with the fastest link; of several pairs, the one with the lowest indexes."""

        def speed(pair: tuple[int, int]) -> int:
            gpu, other = pair
            return self._mbps[gpu][other]

        pairs = combinations(sorted(free), 2)
        # `max` keeps the first of equal pairs, and the pairs ascend.
        best = max(pairs, key=speed)
        return set(best)

    def _nearest(self, candidates: Iterable[int], chosen: Collection[int]) -> int:
        """The GPU with the fastest weakest link to those chosen, then the highest total, then the lowest index."""

        def rank(gpu: int) -> tuple[int, int, int]:
            speeds = self._mbps[gpu]
            links = [speeds[other] for other in chosen]
            weakest = min(links)
            total = sum(links)
            return weakest, total, -gpu

        return max(candidates, key=rank)

    def _check_question(
        self,
        free: Collection[int],
        size: int,
        must: Collection[int],
        job_gpus: Collection[int],
    ) -> None:
        _check_once("free", free)
        _check_once("must", must)
        _check_once("job_gpus", job_gpus)
        both = set(free).intersection(job_gpus)
        if both:
            raise ValueError(f"GPU {min(both)} is free, and its job has it")
        count = len(self._mbps)
        unknown = {*free, *job_gpus}.difference(range(count))
        if unknown:
            raise ValueError(f"there is no GPU {min(unknown)}: the topology has {count} GPUs")
        missing = set(must).difference(free)
        if missing:
            raise ValueError(f"GPU {min(missing)} must be included and is not free")
        if size < 1:
            raise ValueError(f"a set has 1 GPU or more, not {size}")
        is_possible = len(must) <= size <= len(free)
        if not is_possible:
            fixed = f", {len(must)} of them fixed," if must else ""
            raise ValueError(f"a set of {size} GPUs{fixed} cannot be had out of {len(free)}")


def _best_alone(tables: SetTables, masks: list[int], job_mask: int) -> list[int]:
    """The masks that are best without the GPUs of the job, which all of them have."""
    ranks = []
    for mask in masks:
        own = tables.plain[mask ^ job_mask]
        ranks.append(tables.rank[own])
    return _least(masks, ranks)


def _best_for_later(tables: SetTables, masks: list[int], pool: int) -> list[int]:
    """The masks that leave the best sets to later pods. Each step keeps those that are best by the next criterion."""
    among_free = [tables.later[pool ^ mask] for mask in masks]
    masks = _least(masks, among_free)
    among_all = [tables.others[mask] for mask in masks]
    masks = _least(masks, among_all)
    totals = []
    for mask in masks:
        rest = tables.plain[pool ^ mask]
        totals.append(-tables.total[rest])
    return _least(masks, totals)


def _first_of_few(
    tables: SetTables,
    pool: int,
    fixed: int,
    size: int,
) -> list[int]:
    """The result of `_first` for GPUs of which no two are interchangeable, by trying all sets within `pool`."""
    optional = pool ^ fixed
    bits = []
    for place in range(pool.bit_length()):
        bit = 1 << place
        if optional & bit:
            bits.append(bit)
    missing = size - fixed.bit_count()
    masks = [fixed | sum(added) for added in combinations(bits, missing)]
    ranks = [tables.rank[mask] for mask in masks]
    return _least(masks, ranks)


def _first(
    tables: SetTables,
    pool: int,
    fixed: int,
    size: int,
) -> list[int]:
    """The best sets of that size within `pool` that have `fixed`, all equally good."""
    rank = tables.rank
    # These bits decide: a bit outside of `pool` must be 0, and one of `fixed` must be 1.
    decisive = ~pool | fixed
    masks = iter(tables.by_size[size])
    first = next(mask for mask in masks if mask & decisive == fixed)
    best_rank = rank[first]
    best = [first]
    # The masks are sorted by rank, so that the first one of another rank ends the search.
    for mask in masks:
        if rank[mask] != best_rank:
            break
        if mask & decisive == fixed:
            best.append(mask)
    return best


def _first_bits(
    sort: Sequence[int],
    bits: Mapping[int, int],
    must: frozenset[int],
) -> list[int]:
    """The bits of the first n free GPUs of a sort, for n from 0. Those that must be taken come first."""
    free = [gpu for gpu in sort if gpu in bits]
    free.sort(key=lambda gpu: (gpu not in must, gpu))
    mask = 0
    masks = [mask]
    for gpu in free:
        mask |= bits[gpu]
        masks.append(mask)
    return masks


def _own_mask(first_bits: list[list[int]], counts: list[int]) -> int:
    """The mask with the first `counts[n]` free GPUs of sort `n`."""
    mask = 0
    for bits, count in zip(first_bits, counts, strict=True):
        mask |= bits[count]
    return mask


def _least(masks: list[int], numbers: list[int]) -> list[int]:
    """The masks with the least number."""
    least = min(numbers)
    pairs = zip(masks, numbers, strict=True)
    return [mask for mask, number in pairs if number == least]


def _check_once(name: str, gpus: Collection[int]) -> None:
    if len(set(gpus)) != len(gpus):
        raise ValueError(f"{name} names a GPU twice: {sorted(gpus)}")


def _check(mbps: Sequence[Sequence[int]]) -> None:
    count = len(mbps)
    for gpu, row in enumerate(mbps):
        if len(row) != count:
            raise ValueError(f"the matrix is not square: {count} rows, and row {gpu} has {len(row)} entries")
    for gpu, row in enumerate(mbps):
        earlier = row[:gpu]
        for other, speed in enumerate(earlier):
            back = mbps[other][gpu]
            pair = f"between GPU {other} and GPU {gpu}"
            if speed < 0:
                raise ValueError(f"{pair} it says {speed} MB/s; 0 is the least")
            if speed != back:
                raise ValueError(f"{pair} it says {back} one way and {speed} the other")
