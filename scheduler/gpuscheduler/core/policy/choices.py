"""The sets of GPUs among which a policy chooses on each node."""

from dataclasses import dataclass

import numpy as np

from gpuscheduler.core.policy.fleet import EPSILON, GRID, Bools, Demand, Fleet, Floats, Ints, on_grid

COST_DIGITS = 9
"""Decimals of a cost. Costs that differ only by errors of rounding are equal."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The GPUs that a demand may take on each of some rows: a part of any GPU, or the several GPUs with the least free.

    Attributes:
        free: the free part of each GPU. Shape (rows, GPUs).
        left: the same if the demand takes the GPU.
        need: GPUs that the demand takes in all.
        fits: whether the choice is possible. Shape (rows, choices).
        first: the first GPU of each choice. Shape (rows, choices).
        taken: the GPUs of the only choice, shape (rows, GPUs); None if there is one choice for each GPU.
        cpu_free: cores, at least 0. Shape (rows,).
        cpu_left: the same with the demand on the row.
    """

    free: Floats
    left: Floats
    need: float
    fits: Bools
    first: Ints
    taken: Bools | None
    cpu_free: Floats
    cpu_left: Floats

    @classmethod
    def of(cls, fleet: Fleet, rows: Ints, demand: Demand) -> "Choices":
        """The choices for `demand` on `rows`."""
        free = fleet.free[rows]
        roomy = free >= demand.fraction - EPSILON
        taken: Bools | None = None
        if demand.gpus == 1 and demand.fraction < 1:
            fits = roomy
            first = np.zeros(free.shape, dtype=np.int64)
            first += np.arange(free.shape[1])
        else:
            # All sets of several GPUs would be too many. The fullest ones that have room leave most to later pods.
            has_enough = np.count_nonzero(roomy, axis=1) >= demand.gpus
            fits = has_enough[:, None]
            fullest_first = np.where(roomy, free, np.inf).argsort(axis=1, kind="stable")
            first = fullest_first[:, :1]
            taken = np.zeros(free.shape, dtype=np.bool_)
            np.put_along_axis(taken, fullest_first[:, : demand.gpus], values=True, axis=1)
        if demand.models is not None:
            models = list(demand.models)
            accepted = np.isin(fleet.model[rows], models)
            fits = fits & accepted[:, None]
        free = on_grid(free)
        part = round(demand.fraction / GRID) * GRID
        cpu = on_grid(fleet.cpu_free[rows])
        return cls(
            free=free,
            left=np.maximum(free - part, 0.0),
            need=demand.gpus * part,
            fits=fits,
            first=first,
            taken=taken,
            # More may be asked for than a node has, because kube-scheduler alone checks the cores.
            cpu_free=np.maximum(cpu, 0.0),
            cpu_left=np.maximum(cpu - demand.cpu, 0.0),
        )

    def over(self, values: Floats) -> Floats:
        """Values of GPUs added up over each choice: shape (rows, GPUs, ...) to (rows, choices, ...)."""
        if self.taken is None:
            return values
        total = np.einsum("rg,rg...->r...", self.taken, values)
        return np.asarray(total[:, None])

    def cheapest(self, costs: Floats) -> tuple[Floats, Ints]:
        """Cost and first GPU of each row's cheapest choice, of `costs` of every choice; infinite where none fits."""
        rounded = costs.round(COST_DIGITS)
        possible = np.where(self.fits, rounded, np.inf)
        best = possible.argmin(axis=1)
        rows = np.arange(len(best))
        cost = possible[rows, best]
        first_gpu = self.first[rows, best]
        return cost, first_gpu
