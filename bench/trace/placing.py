"""The part of a cluster's GPUs that each policy allocates, on every variant of the trace in a folder.

Without departures: the published experiment (Weng et al., USENIX ATC 2023, section 6). Pods arrive until they ask for
130 % of the GPUs; each is placed at once or lost, and stays. With departures: pods come and go at a load of 1.0.
"""

import heapq
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.result import Results, Say
from bench.trace.cluster import Cluster, Placed
from bench.trace.published import BestFit, GpuPacking, Random
from bench.trace.trace import Arrival, Trace, read, variants, with_departures, without_departures
from gpuscheduler.core.policy.fgd import Fgd
from gpuscheduler.core.policy.fleet import CostPolicy
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import NAMES, named

PUBLISHED = {"Random": 87.47, "BestFit": 93.08, "GpuPacking": 92.00, "FGD": 95.39}
"""Percent of the GPUs at 130 % arrivals on the default trace, mean of ten seeds (the authors' repository)."""
ARRIVED = 1.3
LOAD, WARM, UNTIL = 1.0, 2.0, 4.0
"""Departures: load, and mean lifetimes from the empty cluster to the first and the last measured moment."""
BAR_DEFAULT, BAR_DEPARTURES = 95.9, 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    folder: Path
    variant: str
    policy: str
    seed: int
    departures: bool


@dataclass(frozen=True, slots=True)
class Allocated:
    """Percent of the GPUs.

    Attributes:
        at_100: when the pods had asked for all GPUs once; the mean over time with departures.
        at_end: at the end; the mean over time with departures.
    """

    at_100: float
    at_end: float


def measure(results: Results, folder: Path, seeds: int, say: Say) -> None:
    """Run every policy on every variant, and keep a row for each variant."""
    found = variants(folder)
    for departures in (False, True):
        policies = ["FGD", *NAMES] if departures else [*PUBLISHED, *NAMES]
        runs = [
            Run(folder, one, policy, seed, departures) for one in found for policy in policies for seed in range(seeds)
        ]
        say(f"{len(runs)} runs {'with' if departures else 'without'} departures")
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            outcomes = dict(zip(runs, pool.map(simulate, runs), strict=True))
        for variant in found:
            _row(results, variant, {
                policy: [got for run, got in outcomes.items() if (run.variant, run.policy) == (variant, policy)]
                for policy in policies
            }, departures=departures)  # fmt: skip


def _row(results: Results, variant: str, outcomes: dict[str, list[Allocated]], *, departures: bool) -> None:
    kind = "with departures" if departures else "at 130 %"
    ends, at_100 = {}, {}
    for policy, got in outcomes.items():
        ends[policy] = float(np.mean([one.at_end for one in got]))
        at_100[policy] = float(np.mean([one.at_100 for one in got]))
        results.keep(f"placement {kind}, {variant}, {policy}", [one.at_end for one in got])
    text = ", ".join(f"{policy} {percent:.2f}" for policy, percent in ends.items())
    if departures:
        bar, holds = f"strand >= FGD - {BAR_DEPARTURES}", ends["strand"] >= ends["FGD"] - BAR_DEPARTURES
    else:
        least = BAR_DEFAULT if variant == "default" else 0.0
        bar = f"strand > FGD{f', >= {least}' if least else ''}"
        holds = ends["strand"] > ends["FGD"] and ends["strand"] >= least
        hundred = ", ".join(f"{policy} {percent:.2f}" for policy, percent in at_100.items())
        results.row(f"placed at 100 %, {variant}", hundred)
    results.row(f"placed {kind}, {variant}", text, bar, holds)


def simulate(run: Run) -> Allocated:
    """One run; equal runs give equal results."""
    trace = _trace(run.folder, run.variant)
    rng = np.random.default_rng(run.seed)
    arrivals = with_departures(trace, LOAD, UNTIL, rng) if run.departures else without_departures(trace, ARRIVED, rng)
    mix = Mix(trace.shares) if run.policy == "FGD" else Mix()
    policy = _policy(run.policy, mix, rng)
    cluster = Cluster(trace.nodes, policy, mix, rng, draw=rng if run.policy == "Random" else None)
    learned = mix if run.policy in NAMES else None
    gpus = float(trace.nodes.gpus.sum())
    return _churn(cluster, arrivals, learned, gpus) if run.departures else _fill(cluster, arrivals, learned, gpus)


def _policy(name: str, mix: Mix, rng: np.random.Generator) -> CostPolicy:
    if name in NAMES:
        return named(name, mix)
    published: dict[str, CostPolicy] = {"Random": Random(rng), "BestFit": BestFit(), "GpuPacking": GpuPacking()}
    return published.get(name) or Fgd(mix)


def _fill(cluster: Cluster, arrivals: Sequence[Arrival], learned: Mix | None, gpus: float) -> Allocated:
    asked = allocated = at_100 = 0.0
    for arrival in arrivals:
        if learned is not None:
            learned.saw(arrival.pod.demand)
        if cluster.place(arrival.pod):
            allocated += arrival.pod.gpus
        asked += arrival.pod.gpus
        if asked <= gpus:
            at_100 = allocated
    return Allocated(100 * at_100 / gpus, 100 * allocated / gpus)


def _churn(cluster: Cluster, arrivals: Sequence[Arrival], learned: Mix | None, gpus: float) -> Allocated:
    allocated = total = 0.0
    now = WARM
    ends: list[tuple[float, int, Placed]] = []

    def advance(time: float) -> None:
        nonlocal total, now
        if time > now:
            total += allocated * (time - now)
            now = time

    for number, arrival in enumerate(arrivals):
        while ends and ends[0][0] <= arrival.time:
            end, _, ended = heapq.heappop(ends)
            advance(end)
            cluster.release(ended)
            allocated -= ended.pod.gpus
        advance(arrival.time)
        if learned is not None:
            learned.saw(arrival.pod.demand)
        if (placed := cluster.place(arrival.pod)) is not None:
            heapq.heappush(ends, (arrival.time + arrival.lifetime, number, placed))
            allocated += arrival.pod.gpus
    mean = 100 * total / (now - WARM) / gpus
    return Allocated(mean, mean)


@cache
def _trace(folder: Path, variant: str) -> Trace:
    return read(folder, variant)
