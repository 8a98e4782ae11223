"""How much of a GPU is likely to stay unused in the end, by how much of it is free."""

from collections.abc import Mapping

import numpy as np

from gpuscheduler.core.policy.fleet import Demand, Floats, Ints, on_grid

STEPS = 960
"""The free part of a GPU is looked up in these steps: even parts of GPUs with 16, 24, 32, 40, 48, 80, 96 units."""
LEAVING = 0.012
"""Weight of the case that no pod comes any more, against one for a pod of the mix. Measured: docs/placement.md."""


def expected_waste(shares: Mapping[Demand, float]) -> Floats:
    """The expected final waste of a GPU by free steps, in GPUs. Shape (STEPS + 1,).

    With r free, two cases have weights. In the first, of weight LEAVING, all of r is wasted. In the second, a pod of a
    size q <= r comes, with its share p(q) as weight, and leaves r - q:
    waste(r) = (LEAVING r + sum p(q) waste(r - q)) / (LEAVING + sum p(q)).
    """
    sizes: dict[int, float] = {}
    for demand, share in shares.items():
        if demand.gpus:
            size = max(round(demand.fraction * STEPS), 1)
            sizes[size] = sizes.get(size, 0.0) + share
    ascending = sorted(sizes)
    steps = np.array(ascending)
    weights = np.array([sizes[size] for size in ascending])
    weights /= weights.sum()
    waste = np.zeros(STEPS + 1)
    for free in range(1, STEPS + 1):
        fitting = int(steps.searchsorted(free, side="right"))
        weights_fitting = weights[:fitting]
        remaining = free - steps[:fitting]
        after_a_pod = float(weights_fitting @ waste[remaining])
        all_weights = LEAVING + float(weights_fitting.sum())
        waste[free] = (LEAVING * free / STEPS + after_a_pod) / all_weights
    return on_grid(waste)


def steps_free(free: Floats) -> Ints:
    """The index of a free part in `expected_waste`."""
    return np.asarray((free * STEPS + 0.5).astype(np.int64))
