"""Published policies beside the scheduler's own, as the authors of FGD implemented them for their experiments.

Source: github.com/hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin. Costs are minus the scores there,
with their rounding: among equals the first node in the order of the run wins.
"""

import numpy as np

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import EPSILON, Demand, Fleet, Floats, Ints

BEST = 100
"""Highest score."""
MOST_CORES, MOST_GPUS = 128.0, 8.0
"""The largest node of the trace."""


class Random:
    """A random node, and a random GPU of it. Every choice costs the same, the simulation draws the node."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def costs(self, fleet: Fleet, rows: Ints, demand: Demand) -> tuple[Floats, Ints]:
        """0 where the demand fits."""
        choices = Choices.of(fleet, rows, demand)
        costs, _ = choices.cheapest(np.zeros(choices.fits.shape))
        _, drawn = choices.cheapest(self._rng.random(choices.fits.shape))
        return costs, drawn


class BestFit:
    """The least cores and GPUs left on the node, each against the largest node; the GPU with the least left."""

    def costs(self, fleet: Fleet, rows: Ints, demand: Demand) -> tuple[Floats, Ints]:
        """Whole percents, which leave ties."""
        choices = Choices.of(fleet, rows, demand)
        left = choices.cpu_left / MOST_CORES + (choices.free.sum(axis=1) - choices.need) / MOST_GPUS
        return _tightest(choices, -np.floor(BEST * (1 - left / 2) + EPSILON)[:, None])


class GpuPacking:
    """GPUs in use first, then empty GPUs of nodes in use, then the empty node with the fewest GPUs (MLaaS, NSDI'22)."""

    def costs(self, fleet: Fleet, rows: Ints, demand: Demand) -> tuple[Floats, Ints]:
        """Three ranges of whole numbers; 0 for pods without GPUs."""
        choices = Choices.of(fleet, rows, demand)
        if not demand.gpus:
            return choices.cheapest(np.zeros(choices.fits.shape))
        full = choices.free >= 1 - EPSILON
        empty_gpus = choices.over(full.astype(np.float64))
        on_used = np.maximum(BEST - choices.over(np.floor(BEST * choices.free + EPSILON)) // 10, BEST // 2)
        on_empty = np.maximum(BEST // 2 - empty_gpus, BEST // 3)
        score = np.where(empty_gpus > 0, on_empty, on_used)
        whole = np.count_nonzero(full, axis=1)
        of_node = np.maximum(BEST // 3 - whole, whole)[:, None]
        return _tightest(choices, -np.where((whole == fleet.gpus[rows])[:, None], of_node, score))


def _tightest(choices: Choices, costs: Floats) -> tuple[Floats, Ints]:
    """The score of the GPU with the least free that has room, and this GPU."""
    free = np.take_along_axis(choices.free, choices.first, axis=1)
    tightest = np.where(choices.fits, free, np.inf).argmin(axis=1)
    rows = np.arange(len(tightest))
    costs = np.broadcast_to(costs, choices.fits.shape)
    return np.where(choices.fits[rows, tightest], costs[rows, tightest], np.inf), choices.first[rows, tightest]
