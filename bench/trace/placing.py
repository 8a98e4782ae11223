"""The part of a cluster's GPUs that each policy allocates, on every variant of the trace in a folder.

Without departures: the published experiment (Weng et al., USENIX ATC 2023, section 6). Pods arrive until they ask for
130 % of the GPUs; each is placed at once or lost, and stays. With departures: pods come and go at a load of 1.0.

The policies alone choose and pack in a model (`cluster`), also for pods without GPUs. What an installation places is
measured through the product's own path (`product`).
"""

import heapq
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.result import Results, Say
from bench.trace.cluster import Cluster
from bench.trace.product import CpuPods, Product
from bench.trace.published import BestFit, GpuPacking, Random
from bench.trace.trace import Arrival, Pod, Trace, read, variants, with_departures, without_departures
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
APART = CpuPods.APART.value
SET_UPS = tuple(cpu_pods.value for cpu_pods in CpuPods)
"""Who places pods without GPUs in an installation."""
PRODUCT = "strand"
"""The product's default policy."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation.

    Attributes:
        set_up: one of `SET_UPS`, through the product; empty for the policy alone.
    """

    folder: Path
    variant: str
    policy: str
    seed: int
    departures: bool
    set_up: str = ""


@dataclass(frozen=True, slots=True)
class Allocated:
    """Percent of the GPUs.

    Attributes:
        at_100: when the pods had asked for all GPUs once; the mean over time with departures.
        at_end: at the end; the mean over time with departures.
        lost: percent of the pods that were not placed, by kind.
    """

    at_100: float
    at_end: float
    lost: Mapping[str, float] = field(default_factory=dict)


def measure(results: Results, folder: Path, seeds: int, say: Say) -> None:
    """Run every policy on every variant, and keep a row for each variant."""
    found = variants(folder)
    for departures in (False, True):
        policies = ["FGD", *NAMES] if departures else [*PUBLISHED, *NAMES]
        runs = _runs(folder, found, policies, seeds, departures=departures)
        say(f"{len(runs)} runs {'with' if departures else 'without'} departures")
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            outcomes = dict(zip(runs, pool.map(simulate, runs), strict=True))
        for variant in found:
            of_policies = {policy: _of(outcomes, variant, policy) for policy in policies}
            _row(results, variant, of_policies, departures=departures)
            of_product = {set_up: _of(outcomes, variant, PRODUCT, set_up) for set_up in SET_UPS}
            _product_row(results, variant, of_product, of_policies["FGD"], departures=departures)


def _runs(
    folder: Path,
    found: Sequence[str],
    policies: Sequence[str],
    seeds: int,
    *,
    departures: bool,
) -> list[Run]:
    kinds = [(policy, "") for policy in policies]
    kinds += [(PRODUCT, set_up) for set_up in SET_UPS]
    runs: list[Run] = []
    for variant in found:
        for policy, set_up in kinds:
            runs += [
                Run(
                    folder,
                    variant,
                    policy,
                    seed,
                    departures,
                    set_up,
                )
                for seed in range(seeds)
            ]
    return runs


def _of(
    outcomes: Mapping[Run, Allocated],
    variant: str,
    policy: str,
    set_up: str = "",
) -> list[Allocated]:
    """The outcomes of one kind of run, with all seeds."""
    wanted = variant, policy, set_up
    return [outcome for run, outcome in outcomes.items() if (run.variant, run.policy, run.set_up) == wanted]


def _product_row(
    results: Results,
    variant: str,
    outcomes: Mapping[str, Sequence[Allocated]],
    fgd: Sequence[Allocated],
    *,
    departures: bool,
) -> None:
    """What an installation places, with the bars for the documented set-up, and which pods it loses."""
    kind = "with departures" if departures else "at 130 %"
    ends: dict[str, float] = {}
    for set_up, got in outcomes.items():
        percents = [outcome.at_end for outcome in got]
        results.keep(f"product {kind}, {variant}, {set_up}", percents)
        ends[set_up] = float(np.mean(percents))
    fgd_end = float(np.mean([outcome.at_end for outcome in fgd]))
    texts = [f"{set_up} {percent:.2f}" for set_up, percent in ends.items()]
    text = ", ".join([*texts, f"FGD alone {fgd_end:.2f}"])
    least = fgd_end - BAR_DEPARTURES if departures else fgd_end
    bar = f"{APART} > FGD - {BAR_DEPARTURES}" if departures else f"{APART} > FGD"
    results.row(f"product {kind}, {variant}", text, bar, ends[APART] > least)
    if departures:
        return
    at_100: list[str] = []
    for set_up, got in outcomes.items():
        mean = np.mean([outcome.at_100 for outcome in got])
        at_100.append(f"{set_up} {mean:.2f}")
    results.row(f"product at 100 %, {variant}", ", ".join(at_100))
    first = outcomes[APART][0]
    lost = [f"{kind} {percent:.1f}" for kind, percent in first.lost.items()]
    results.row(f"percent of pods lost, {variant}, {APART}", ", ".join(lost))


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
    cluster: Cluster | Product
    learned = mix if run.policy in NAMES else None
    if run.set_up:
        cluster = Product(trace.nodes, policy, mix, rng, cpu_pods=CpuPods(run.set_up))
        # The product learns the mix by itself.
        learned = None
    else:
        cluster = Cluster(trace.nodes, policy, mix, rng, draw=rng if run.policy == "Random" else None)
    gpus = float(trace.nodes.gpus.sum())
    return _churn(cluster, arrivals, learned, gpus) if run.departures else _fill(cluster, arrivals, learned, gpus)


def _policy(name: str, mix: Mix, rng: np.random.Generator) -> CostPolicy:
    if name in NAMES:
        return named(name, mix)
    published: dict[str, CostPolicy] = {"Random": Random(rng), "BestFit": BestFit(), "GpuPacking": GpuPacking()}
    return published.get(name) or Fgd(mix)


def _fill(cluster: Cluster | Product, arrivals: Sequence[Arrival], learned: Mix | None, gpus: float) -> Allocated:
    asked = allocated = at_100 = 0.0
    came: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for arrival in arrivals:
        if learned is not None:
            learned.saw(arrival.pod.demand)
        came.update(_kinds(arrival.pod))
        if cluster.place(arrival.pod):
            allocated += arrival.pod.gpus
        else:
            lost.update(_kinds(arrival.pod))
        asked += arrival.pod.gpus
        if asked <= gpus:
            at_100 = allocated
    percents = {kind: 100 * lost[kind] / count for kind, count in sorted(came.items())}
    return Allocated(100 * at_100 / gpus, 100 * allocated / gpus, percents)


def _kinds(pod: Pod) -> list[str]:
    """What a pod is counted as, for who is lost."""
    demand = pod.demand
    if not demand.gpus:
        return ["CPU only"]
    size = "several GPUs"
    if demand.gpus == 1:
        size = "a whole GPU" if demand.fraction == 1 else "a share"
    return [size] if demand.models is None else [size, "names a model"]


def _churn(cluster: Cluster | Product, arrivals: Sequence[Arrival], learned: Mix | None, gpus: float) -> Allocated:
    allocated = total = 0.0
    now = WARM
    ends: list[tuple[float, int, Any]] = []

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
