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
        parts: the free part of each GPU, and what is left of it if the demand takes the GPU. Shape (2, rows, GPUs): to
            work out both in one step takes half as long, because most calls are about few rows.
        cores: free cores, at least 0, and the same with the demand on the row. Shape (2, rows).
        need: GPUs that the demand takes in all.
        fits: whether the choice is possible. Shape (rows, choices).
        fullest: the first GPU of the only choice. Shape (rows, 1); None if there is one choice for each GPU.
        taken: the GPUs of the only choice. Shape (rows, GPUs); None if there is one choice for each GPU.
    """

    parts: Floats
    cores: Floats
    need: float
    fits: Bools
    fullest: Ints | None
    taken: Bools | None

    @classmethod
    def of(cls, fleet: Fleet, rows: Ints, demand: Demand) -> "Choices":
        """The choices for `demand` on `rows`."""
        free = fleet.free[rows]
        roomy = free >= demand.fraction - EPSILON
        fullest: Ints | None = None
        taken: Bools | None = None
        if demand.gpus == 1 and demand.fraction < 1:
            fits = roomy
        else:
            # All sets of several GPUs would be too many. The fullest ones that have room leave most to later pods.
            has_enough = np.count_nonzero(roomy, axis=1) >= demand.gpus
            fits = has_enough[:, None]
            fullest_first = np.where(roomy, free, np.inf).argsort(axis=1, kind="stable")
            fullest = fullest_first[:, :1]
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
            parts=np.maximum((free, free - part), 0.0),
            # More may be asked for than a node has, because kube-scheduler alone checks the cores.
            cores=np.maximum((cpu, cpu - demand.cpu), 0.0),
            need=demand.gpus * part,
            fits=fits,
            fullest=fullest,
            taken=taken,
        )

    @property
    def free(self) -> Floats:
        """The free part of each GPU. Shape (rows, GPUs)."""
        return np.asarray(self.parts[0])

    @property
    def left(self) -> Floats:
        """The same if the demand takes the GPU."""
        return np.asarray(self.parts[1])

    @property
    def first(self) -> Ints:
        """The first GPU of each choice. Shape (rows, choices)."""
        if self.fullest is not None:
            return self.fullest
        every_gpu = np.arange(self.fits.shape[1])
        return np.broadcast_to(every_gpu, self.fits.shape)

    @property
    def cpu_left(self) -> Floats:
        """Cores that are left with the demand on the row. Shape (rows,)."""
        return np.asarray(self.cores[1])

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
        cost = np.minimum.reduce(possible, axis=1)
        # One choice for each GPU has the number of the GPU.
        first_gpu = best if self.fullest is None else self.fullest[:, 0]
        return cost, first_gpu
