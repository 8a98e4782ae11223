"""The numbers that a policy rates: nodes as arrays, and a demand."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MOST_GPUS = 16
"""GPUs of a node that the scheduler uses."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, one row each.

    Attributes:
        free: the free part of each GPU, 0 to 1; 0 where the GPU takes no pod. Shape (rows, MOST_GPUS).
        gpus: number of usable GPUs.
        cpu_free, cpu_total: cores.
        model: index of the GPUs' model.
    """

    free: NDArray[np.float64]
    gpus: NDArray[np.int64]
    cpu_free: NDArray[np.float64]
    cpu_total: NDArray[np.float64]
    model: NDArray[np.int64]


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


class Policy(Protocol):
    """Rates choices. It is deterministic, and finite for every row on which the demand fits."""

    def costs(
        self, fleet: Fleet, rows: NDArray[np.int64], demand: Demand
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Cost of the cheapest choice on each of the rows, infinite where it does not fit, and its (first) GPU."""
