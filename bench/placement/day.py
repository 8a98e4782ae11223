"""A day of requests for GPUs that come, stay and go, on one box: the bandwidth that each policy allocates."""

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log, sqrt
from statistics import NormalDist, fmean, stdev

from bench.node import BenchError
from bench.placement.choosing import exact_sets
from bench.placement.published import BestPartition, PairSum, Policy, first_fit, remembered
from gpuagent.domain.gpus.topology import Topology

HOURS = 24.0
SIZES = (1, 1, 1, 2, 2, 4, 8)
"""Drawn from evenly; those that the box does not have are left out."""
MEAN_STAY_H = 1 / 3
SPREAD = 1.0
"""Spread of the logarithm of a request's duration: one in a hundred lasts six times as long as the mean one."""
OFFERED = 2.5
"""GPUs requested at a time, as a multiple of the box: requests that do not fit are refused, mostly large ones."""

OURS = "ours"
OTHERS = ("first fit", "pair sum", "best partition")


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `size` GPUs; times in hours since the beginning of the day."""

    arrives_h: float
    leaves_h: float
    size: int


@dataclass(frozen=True, slots=True)
class Handed:
    """The bandwidth that one policy allocated in one day, in sets of two GPUs and more: means, in GB/s."""

    weakest: float
    total: float


@dataclass(frozen=True, slots=True)
class Lead:
    """By how much one policy is better than another one, in GB/s: mean of all days, and half a 95 % interval."""

    over: str
    mean: float
    half: float

    @property
    def verdict(self) -> str:
        if self.mean == 0 == self.half:
            return "equal every day"
        if abs(self.mean) <= self.half:
            return "no difference seen"
        return "ahead" if self.mean > 0 else "behind"


@dataclass(frozen=True, slots=True)
class Days:
    """All days on one box. `busy` is the share of the GPUs in use, `sets` the number of sets of two GPUs and more."""

    handed: Mapping[str, Sequence[Handed]]
    busy: float
    sets: int

    def mean(self, policy: str, measure: Callable[[Handed], float]) -> float:
        return fmean(map(measure, self.handed[policy]))

    def lead(self, measure: Callable[[Handed], float]) -> Lead:
        """The lead of this project's policy over the best of the others, day by day."""
        best = max(OTHERS, key=lambda other: self.mean(other, measure))
        days = zip(self.handed[OURS], self.handed[best], strict=True)
        differences = [measure(mine) - measure(other) for mine, other in days]
        half = NormalDist().inv_cdf(0.975) * stdev(differences) / sqrt(len(differences))
        return Lead(best, fmean(differences), half)


def requests(gpus: int, seed: int) -> list[Request]:
    """A day's requests, in the order in which they arrive: a Poisson process, stays of lognormal length."""
    rng = random.Random(seed)  # noqa: S311 (the same every time is the point)
    sizes = [size for size in SIZES if size <= gpus]
    per_hour = OFFERED * gpus / (fmean(sizes) * MEAN_STAY_H)
    middle = log(MEAN_STAY_H) - SPREAD**2 / 2
    wanted: list[Request] = []
    now = rng.expovariate(per_hour)
    while now < HOURS:
        wanted.append(Request(now, now + rng.lognormvariate(middle, SPREAD), rng.choice(sizes)))
        now += rng.expovariate(per_hour)
    return wanted


def served(gpus: int, wanted: Sequence[Request], choose: Policy) -> list[tuple[int, ...]]:
    """The GPUs that each request gets; none where fewer GPUs are free than it needs.

    Raises:
        BenchError: the policy gave too few GPUs, or some that are not free.
    """
    free = set(range(gpus))
    leaving: list[tuple[float, tuple[int, ...]]] = []
    given: list[tuple[int, ...]] = []
    for request in wanted:
        while leaving and leaving[0][0] <= request.arrives_h:
            free.update(heapq.heappop(leaving)[1])
        got: tuple[int, ...] = ()
        if request.size <= len(free):
            got = choose(free, request.size)
            if len(set(got)) != request.size or not free.issuperset(got):
                raise BenchError(f"asked for {request.size} of {sorted(free)}, a policy gave {got}")
            free.difference_update(got)
            heapq.heappush(leaving, (request.leaves_h, got))
        given.append(got)
    return given


def policies(topology: Topology) -> dict[str, Policy]:
    """Every policy by name, the others first."""
    others: tuple[Policy, ...] = (first_fit, PairSum(topology), BestPartition(topology))
    everyone = dict(zip(OTHERS, others, strict=True)) | {OURS: exact_sets(topology.mbps).choose}
    return {name: remembered(policy) for name, policy in everyone.items()}


def days(topology: Topology, count: int) -> Days:
    """`count` days, each with requests of its own that are the same for every policy.

    Raises:
        BenchError: two policies did not serve the same requests.
    """
    gpus = len(topology.gpus)
    everyone = policies(topology)
    handed: dict[str, list[Handed]] = {name: [] for name in everyone}
    used_h, sets = 0.0, 0
    for seed in range(count):
        wanted = requests(gpus, seed)
        taken = None
        for name, choose in everyone.items():
            given = served(gpus, wanted, choose)
            if taken is None:
                taken = list(map(bool, given))
                used_h += sum(_hours(request) for request, is_taken in zip(wanted, taken, strict=True) if is_taken)
            elif taken != list(map(bool, given)):
                raise BenchError(f"day {seed}: {name} did not serve the requests that {OTHERS[0]} served")
            handed[name].append(judged(topology, given))
        sets += sum(len(got) > 1 for got in given)
    return Days(handed, used_h / (count * gpus * HOURS), sets)


def judged(topology: Topology, given: Sequence[tuple[int, ...]]) -> Handed:
    """Mean weakest link and mean sum of the links of all sets of two GPUs and more, by the true bandwidths."""
    links = [[topology.mbps[i][j] / 1000 for i, j in combinations(some, 2)] for some in given if len(some) > 1]
    return Handed(fmean(map(min, links)), fmean(map(sum, links)))


def _hours(request: Request) -> float:
    """GPU hours of the day."""
    return request.size * (min(request.leaves_h, HOURS) - request.arrives_h)
