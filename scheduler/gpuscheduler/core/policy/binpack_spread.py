"""Two simple policies, which need no mix of pods."""

import numpy as np

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import EPSILON, MOST_GPUS, Demand, Fleet, Floats, Ints

EMPTY_NODE = 32.0
"""The cost of the first pod on a node. The free part of a node costs 1 at most."""
EMPTY_GPU = 2.0
"""The cost of the first pod on a GPU."""


class Binpack:
    """The least free left: on the node, then on the GPU. Empty nodes come last, and before them empty GPUs."""

    def costs(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
    ) -> tuple[Floats, Ints]:
        """The free parts of the node and of the GPUs of the choice, with penalties for empty ones."""
        choices = Choices.of(fleet, rows, demand)
        is_full = choices.free >= 1 - EPSILON
        full_gpus = np.count_nonzero(is_full, axis=1)
        is_empty_node = full_gpus >= fleet.gpus[rows]
        left = choices.free.sum(axis=1) - choices.need
        node_cost = EMPTY_NODE * is_empty_node + left / MOST_GPUS
        # Divided once more, so that the rest of the GPUs decides only between nodes with equally much left.
        gpu_cost = EMPTY_GPU * is_full + choices.left / MOST_GPUS**2
        choice_cost = choices.over(gpu_cost)
        return choices.cheapest(node_cost[:, None] + choice_cost)


class Spread:
    """The most free: on the GPU, then on the node."""

    def costs(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
    ) -> tuple[Floats, Ints]:
        """Minus what is free: on the first GPU of the choice, and a small part of the node's mean."""
        choices = Choices.of(fleet, rows, demand)
        first = np.take_along_axis(choices.free, choices.first, axis=1)
        gpus = np.maximum(fleet.gpus[rows], 1)
        mean = choices.free.sum(axis=1) / gpus
        # The mean decides between nodes whose emptiest GPUs have equally much free.
        node_cost = mean[:, None] / MOST_GPUS
        return choices.cheapest(-first - node_cost)
