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
    by_size = _shares_by_size(shares)
    ascending = sorted(by_size)
    sizes = np.array(ascending)
    weights = np.array([by_size[size] for size in ascending])
    weights /= weights.sum()
    waste = np.zeros(STEPS + 1)
    # Each value follows from those of less free space, so they are worked out in this order.
    for free in range(1, STEPS + 1):
        fitting = int(sizes.searchsorted(free, side="right"))
        weights_fitting = weights[:fitting]
        remaining = free - sizes[:fitting]
        of_leaving = LEAVING * free / STEPS
        after_a_pod = float(weights_fitting @ waste[remaining])
        all_weights = LEAVING + float(weights_fitting.sum())
        waste[free] = (of_leaving + after_a_pod) / all_weights
    return on_grid(waste)


def _shares_by_size(shares: Mapping[Demand, float]) -> dict[int, float]:
    """Share of the pods by the steps that they take of a GPU."""
    by_size: dict[int, float] = {}
    for demand, share in shares.items():
        if demand.gpus:
            # A size of 0 would leave as much as before, and the waste would follow from itself.
            size = max(round(demand.fraction * STEPS), 1)
            by_size[size] = by_size.get(size, 0.0) + share
    return by_size


def steps_free(free: Floats) -> Ints:
    """The index of a free part in `expected_waste`."""
    nearest = free * STEPS + 0.5
    return np.asarray(nearest.astype(np.int64))
