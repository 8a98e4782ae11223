"""The policy of the FGD paper: the choice after which the expected fragment has grown least."""

import numpy as np

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import EPSILON, Demand, Fleet, Floats, Ints
from gpuscheduler.core.policy.fragment import Fragments
from gpuscheduler.core.policy.mix import Mix, shares

TYPICAL = 0.95
"""Part of the pods whose demands are considered, the most frequent ones first (the authors' experiments)."""
SCORES = 100
"""Different scores. The authors round; among equals, kube-scheduler's fixed order fills one node before the next.
Without rounding the allocation is 0.5 to 0.8 points lower (docs/placement.md)."""


class Fgd:
    """Weng et al., USENIX ATC 2023, algorithm 1, with the authors' score and rounding.

    Source: github.com/hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin/fgd_score.go.
    """

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._version = -1

    def costs(
        self,
        fleet: Fleet,
        rows: Ints,
        demand: Demand,
    ) -> tuple[Floats, Ints]:
        """Minus the score: 0 to 100, a sigmoid of the expected fragment's fall."""
        # The weights hold until the mix is another one, and all nodes are rated with them.
        if self._version != self._mix.version:
            self._version = self._mix.version
            demands = typical(self._mix)
            self._fragments = Fragments.of(demands)
        choices = Choices.of(fleet, rows, demand)
        models = fleet.model[rows]
        rise = self._fragments.rise(choices, models)
        score = SCORES / (1 + np.exp(rise))
        # Without EPSILON, an error of rounding could move a choice to the next lower score.
        rounded = np.floor(score + EPSILON)
        return choices.cheapest(-rounded)


def typical(mix: Mix) -> dict[Demand, float]:
    """The most frequent demands and their shares among themselves."""
    counted = 0.0
    chosen = []
    for demand, share in mix.shares.items():
        if counted >= TYPICAL:
            break
        chosen.append((demand, share))
        counted += share
    return dict(shares(chosen))
