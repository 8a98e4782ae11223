"""The numbers that a policy rates: nodes as arrays, and a demand."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_GPUS = 16
"""GPUs of a node that the scheduler uses."""
EPSILON = 1e-9
"""Parts of a GPU that differ by less are equal: sums of parts carry rounding errors."""

GRID = 2.0**-32
"""Parts of a GPU and cores are rated in whole steps of this size, so that their sums are exact in any order."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, one row each.

    Attributes:
        free: the free part of each GPU, 0 to 1; 0 where the GPU takes no pod. Shape (rows, GPUs), with as many GPUs as
            any node has, at most `MOST_GPUS`.
        gpus: number of usable GPUs.
        cpu_free, cpu_total: cores.
        model: index of the GPUs' model.
    """

    free: Floats
    gpus: Ints
    cpu_free: Floats
    cpu_total: Floats
    model: Ints


@dataclass(frozen=True, slots=True)
class Demand:
    """The needs of a pod.

    Attributes:
        gpus: number of GPUs.
        fraction: of each, above 0, at most 1.
        cpu: cores.
        models: indexes of the models that it accepts; None for any.
    """

    gpus: int
    fraction: float
    cpu: float = 0.0
    models: frozenset[int] | None = None


class CostPolicy(Protocol):
    """Rates choices. It is deterministic, and finite for every row on which the demand fits.

    A row fits if enough of its GPUs have the fraction free. Cores count in the costs and refuse no row: kube-scheduler
    checks them.
    """

    def costs(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
    ) -> tuple[Floats, Ints]:
        """Cost of the cheapest choice on each of the rows, infinite where it does not fit, and its (first) GPU."""


def on_grid(values: Floats) -> Floats:
    """Parts of a GPU or cores, in whole steps of `GRID`."""
    steps = np.rint(values / GRID)
    return np.asarray(steps * GRID)
