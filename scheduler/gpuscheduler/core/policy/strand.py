"""The default policy: keeps GPUs from being stranded, that is left free where no pod of the mix can use them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import EPSILON, Demand, Fleet, Floats, Ints
from gpuscheduler.core.policy.fragment import Fragments
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.waste import expected_waste, steps_free

# The weights are measured: docs/placement.md. Costs are in GPUs, as far as they have a unit.
STRANDED = 2.0
"""Of GPUs that become stranded because their node has too few cores left for them."""
WASTE = 1.6
"""Of the rise of the GPUs' expected final waste."""
ROOM = 1.0
"""Of the loss of room for pods of several GPUs."""
CORES_LEFT = 0.001
"""Of a core that is left free on the node: fuller nodes first."""
GPUS_LEFT = 0.00625
"""Of a GPU that is left free on the node."""
EMPTY_NODE = 0.02
"""Of the first pod on a node of 8 GPUs, of a larger node by the square of its size."""
PRICE = 1.2
"""Of a GPU, or the cores that belong to it, of a model that pods ask for by name, by the root of the model's price.

By the price itself, either the models that few pods name are given away, or pods crowd on the models that none names,
where those of several GPUs then find no node.
"""
FEWEST_CORES = 0.1
"""Least cores to a GPU that are assumed, also where the mix asks for none."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """Tables derived from the mix.

    Attributes:
        cores: that the mix asks for with each GPU.
        waste: expected final waste by free part, see `expected_waste`.
        room: weights each demand of several GPUs by its part of all GPUs asked for.
        named: models that pods ask for by name to their part of all GPUs asked for.
    """

    cores: float
    waste: Floats
    room: Fragments
    named: Mapping[frozenset[int], float]

    @classmethod
    def of(cls, shares: Mapping[Demand, float]) -> "_Tables":
        asked: dict[Demand, float] = {}
        for demand, share in shares.items():
            if demand.gpus:
                asked[demand] = share * demand.gpus * demand.fraction
        total = sum(asked.values())
        parts = {demand: gpus / total for demand, gpus in asked.items()}
        cores = sum(shares[demand] * demand.cpu for demand in asked)
        several = {demand: part for demand, part in parts.items() if demand.gpus > 1}
        return cls(
            cores=max(cores / total, FEWEST_CORES),
            waste=expected_waste(shares),
            room=Fragments.of(several),
            named=_parts_of_models(parts),
        )


def _parts_of_models(parts: Mapping[Demand, float]) -> dict[frozenset[int], float]:
    """The models that demands name, and how much of all GPUs asked for is asked for of them."""
    named: dict[frozenset[int], float] = {}
    for demand, part in parts.items():
        if demand.models is not None:
            earlier = named.get(demand.models, 0.0)
            named[demand.models] = earlier + part
    return named


class Strand:
    """Rates a choice by how much it strands, now and in the end, and by the room that it takes from rarer demands."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._version = -1

    def costs(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
    ) -> tuple[Floats, Ints]:
        """The weighted sum of the parts above."""
        # The tables take milliseconds, and hold until the mix is another one.
        if self._version != self._mix.version:
            self._version = self._mix.version
            self._tables = _Tables.of(self._mix.shares)
        choices = Choices.of(fleet, rows, demand)
        node_cost = self._of_nodes(fleet, rows, demand, choices)
        waste_before, waste_after = self._tables.waste[steps_free(choices.parts)]
        wasted = choices.over(waste_after - waste_before)
        models = fleet.model[rows]
        room_lost = self._tables.room.rise(choices, models)
        choice_cost = WASTE * wasted + ROOM * room_lost
        return choices.cheapest(node_cost[:, None] + choice_cost)

    def _of_nodes(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
        choices: Choices,
    ) -> Floats:
        """The part of the cost that is equal for all choices on a node. Shape (rows,)."""
        cores = self._tables.cores
        gpus = fleet.gpus[rows]
        free = np.add.reduce(choices.free, axis=1)
        left = free - choices.need
        # The free GPUs that the node's free cores do not suffice for.
        served = choices.cores / cores
        stranded_before, stranded_after = np.maximum((free, left) - served, 0.0)
        cost = STRANDED * (stranded_after - stranded_before)
        cost = cost + CORES_LEFT * choices.cpu_left + GPUS_LEFT * left
        is_empty = free >= gpus - EPSILON
        size = (gpus / 8) ** 2
        cost += EMPTY_NODE * is_empty * size
        if self._tables.named:
            used = max(choices.need, demand.cpu / cores)
            prices = self._prices(fleet)
            price = prices[fleet.model[rows]]
            cost += PRICE * used * np.sqrt(price)
        return np.asarray(cost)

    def _prices(self, fleet: Fleet) -> Floats:
        """By model, how much of the demand names it, against its part of the GPUs that the demand could have."""
        supply = np.bincount(fleet.model, weights=fleet.gpus)
        all_gpus = supply.sum()
        prices = np.zeros(len(supply))
        for models, part in self._tables.named.items():
            # Pods may name models of which the cluster has no node any more.
            known = [model for model in models if model < len(supply)]
            offered = supply[known].sum()
            if offered:
                prices[known] += part * all_gpus / offered
        return prices
