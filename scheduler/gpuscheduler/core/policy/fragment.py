"""The expected fragment of a node: the free part of its GPUs that the next pod of the mix cannot use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 4.2.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import EPSILON, Demand, Floats, Ints


@dataclass(frozen=True, slots=True)
class Fragments:
    """The expected fragment for demands with weights.

    A demand that fits on a node can use the GPUs with at least its fraction free, and the rest is its fragment; one
    that does not fit can use none. So the fragment is all that is free, less the usable part by each demand's weight.
    Demands of equal GPUs are one shape: on a node, the cores left and the model decide how much of its weight counts.

    Attributes:
        total: sum of the weights, those of demands without GPUs included.
        gpus, fraction: of each shape. Shape (shapes,).
        cores: the cores that any demand asks for, ascending.
        weights: by model, number of `cores` that a node has free, and shape. Model 0 stands for all that are not named.
        named: index in `weights` by model.
    """

    total: float
    gpus: Ints
    fraction: Floats
    cores: Floats
    weights: Floats
    named: Ints

    @classmethod
    def of(cls, weights: Mapping[Demand, float]) -> "Fragments":
        """The fragment for a demand with the probability `weights`."""
        demands = [demand for demand in weights if demand.gpus]
        shapes = sorted({(demand.gpus, demand.fraction) for demand in demands})
        cores = sorted({demand.cpu for demand in demands})
        models = _named_models(demands)
        table = np.zeros((len(models) + 1, len(cores) + 1, len(shapes)))
        for demand in demands:
            # Whoever accepts any model also accepts those that are not named, which have index 0.
            accepted = slice(None) if demand.models is None else [1 + models.index(model) for model in demand.models]
            affordable = slice(cores.index(demand.cpu) + 1, None)
            shape = shapes.index((demand.gpus, demand.fraction))
            table[accepted, affordable, shape] += weights[demand]
        named = np.zeros(max(models, default=-1) + 2, dtype=np.int64)
        named[models] = np.arange(1, len(models) + 1)
        return cls(
            total=sum(weights.values()),
            gpus=np.array([gpus for gpus, _ in shapes]),
            fraction=np.array([fraction for _, fraction in shapes]),
            cores=np.array(cores),
            weights=table,
            named=named,
        )

    def rise(self, choices: Choices, model: Ints) -> Floats:
        """How much the expected fragment grows with each choice, in GPUs. `model` is of the rows."""
        # Shape (rows, GPUs, shapes): which GPUs each shape can use, before and if the choice takes the GPU.
        free = choices.free[..., None]
        left = choices.left[..., None]
        least = self.fraction - EPSILON
        usable = free >= least
        still_usable = left >= least
        # Shape (rows, shapes) before, and (rows, choices, shapes) after.
        parts = free * usable
        before = parts.sum(axis=1)
        after = before[:, None] + choices.over(left * still_usable - parts)
        count = np.count_nonzero(usable, axis=1)
        lost = (usable & ~still_usable).astype(np.float64)
        count_after = count[:, None] - choices.over(lost)
        # A shape uses nothing on a node with fewer usable GPUs than it needs.
        used = (count >= self.gpus) * before
        still_used = (count_after >= self.gpus) * after
        weighted = self._weights(choices.cpu_free, model) * used
        still_weighted = self._weights(choices.cpu_left, model)[:, None] * still_used
        fall = weighted.sum(axis=1)[:, None] - still_weighted.sum(axis=2)
        return np.asarray(fall - self.total * choices.need)

    def _weights(self, cpu: Floats, model: Ints) -> Floats:
        """The weight of each shape on nodes with these free cores and models: of the demands that they can serve."""
        affordable = self.cores.searchsorted(cpu + EPSILON, side="right")
        known = np.minimum(model, len(self.named) - 1)
        return self.weights[self.named[known], affordable]


def _named_models(demands: Iterable[Demand]) -> list[int]:
    """The models that any demand asks for by name, ascending."""
    models = set[int]()
    for demand in demands:
        models.update(demand.models or ())
    return sorted(models)
