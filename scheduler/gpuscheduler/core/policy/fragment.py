"""The expected fragment of a node: the free part of its GPUs that the next pod of the mix cannot use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 4.2.
"""

from collections.abc import Mapping
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
        demands = [one for one in weights if one.gpus]
        shapes = sorted({(one.gpus, one.fraction) for one in demands})
        cores = sorted({one.cpu for one in demands})
        models = sorted({model for one in demands for model in one.models or ()})
        table = np.zeros((len(models) + 1, len(cores) + 1, len(shapes)))
        for one in demands:
            accepting = slice(None) if one.models is None else [1 + models.index(model) for model in one.models]
            table[accepting, cores.index(one.cpu) + 1 :, shapes.index((one.gpus, one.fraction))] += weights[one]
        named = np.zeros(max(models, default=-1) + 2, dtype=np.int64)
        named[models] = np.arange(1, len(models) + 1)
        gpus, fraction = [gpus for gpus, _ in shapes], [fraction for _, fraction in shapes]
        return cls(sum(weights.values()), np.array(gpus), np.array(fraction), np.array(cores), table, named)

    def rise(self, choices: Choices, model: Ints) -> Floats:
        """How much the expected fragment grows with each choice, in GPUs. `model` is of the rows."""
        free, left = choices.free[..., None], choices.left[..., None]
        usable, still_usable = free >= self.fraction - EPSILON, left >= self.fraction - EPSILON
        parts = free * usable
        before = parts.sum(axis=1)
        after = before[:, None] + choices.over(left * still_usable - parts)
        count = np.count_nonzero(usable, axis=1)
        count_after = count[:, None] - choices.over((usable & ~still_usable).astype(np.float64))
        used = self._weights(choices.cpu_free, model) * (count >= self.gpus) * before
        still_used = self._weights(choices.cpu_left, model)[:, None] * (count_after >= self.gpus) * after
        return np.asarray(used.sum(axis=1)[:, None] - still_used.sum(axis=2) - self.total * choices.need)

    def _weights(self, cpu: Floats, model: Ints) -> Floats:
        """The weight of each shape on nodes with these free cores and models: of the demands that they can serve."""
        affordable = self.cores.searchsorted(cpu + EPSILON, side="right")
        return self.weights[self.named[np.minimum(model, len(self.named) - 1)], affordable]
