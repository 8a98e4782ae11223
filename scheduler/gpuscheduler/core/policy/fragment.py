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
        gpus: of each shape. Shape (shapes,).
        least: the free part with which a GPU has room for each shape. Shape (shapes,).
        cores: the cores that any demand asks for, ascending.
        weights: by model, number of `cores` that a node has free, and shape. Model 0 stands for all that are not named.
        named: index in `weights` by model.
    """

    total: float
    gpus: Ints
    least: Floats
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
            accepted = _accepted(demand, models)
            # A demand counts on nodes with its cores or more.
            affordable = slice(cores.index(demand.cpu) + 1, None)
            shape = shapes.index((demand.gpus, demand.fraction))
            table[accepted, affordable, shape] += weights[demand]
        # One more entry than there are models: higher indexes are looked up in the last one, which is 0.
        highest = max(models, default=-1)
        named = np.zeros(highest + 2, dtype=np.int64)
        named[models] = np.arange(1, len(models) + 1)
        return cls(
            total=sum(weights.values()),
            gpus=np.array([gpus for gpus, _ in shapes]),
            least=np.array([fraction - EPSILON for _, fraction in shapes]),
            cores=np.array(cores),
            weights=table,
            named=named,
        )

    def rise(self, choices: Choices, model: Ints) -> Floats:
        """How much the expected fragment grows with each choice, in GPUs. `model` is of the rows."""
        # Shape (2, rows, GPUs, shapes): which GPUs each shape can use, before and if the choice takes the GPU.
        parts = choices.parts[..., None]
        usable = parts >= self.least
        usable_parts = parts * usable
        # Shape (rows, shapes) before, and (rows, choices, shapes) after.
        parts_before, parts_left = usable_parts
        before = np.add.reduce(parts_before, axis=1)
        after = before[:, None] + choices.over(parts_left - parts_before)
        usable_before, still_usable = usable
        count = np.add.reduce(usable_before, axis=1, dtype=np.int64)
        # What is usable after the choice was so before.
        lost = (usable_before ^ still_usable).astype(np.int64)
        count_after = count[:, None] - choices.over(lost)
        # A shape uses nothing on a node with fewer usable GPUs than it needs.
        used = (count >= self.gpus) * before
        still_used = (count_after >= self.gpus) * after
        weights, weights_left = self._weights(choices.cores, model)
        weighted = weights * used
        still_weighted = weights_left[:, None] * still_used
        of_row = np.add.reduce(weighted, axis=1)
        fall = of_row[:, None] - np.add.reduce(still_weighted, axis=2)
        # What the pod itself takes is not free any more, for no demand.
        taken = self.total * choices.need
        return np.asarray(fall - taken)

    def _weights(self, cpu: Floats, model: Ints) -> Floats:
        """The weight of each shape on nodes with these free cores and models: of the demands that they can serve.

        Shape (..., rows) to (..., rows, shapes).
        """
        affordable = self.cores.searchsorted(cpu + EPSILON, side="right")
        names_no_model = len(self.weights) == 1
        if names_no_model:
            return np.asarray(self.weights[0, affordable])
        known = np.minimum(model, len(self.named) - 1)
        return self.weights[self.named[known], affordable]


def _accepted(demand: Demand, models: list[int]) -> slice | list[int]:
    """Rows of the table of weights for the models that the demand accepts. Row 0 is of models that no pod names."""
    if demand.models is None:
        return slice(None)
    return [1 + models.index(model) for model in demand.models]


def _named_models(demands: Iterable[Demand]) -> list[int]:
    """The models that any demand asks for by name, ascending."""
    models = set[int]()
    for demand in demands:
        models.update(demand.models or ())
    return sorted(models)
