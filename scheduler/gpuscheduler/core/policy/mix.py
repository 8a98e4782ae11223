"""Which pods come: learned from those that came, so that a policy can keep room for the next ones."""

from collections.abc import Iterable, Mapping

from gpuscheduler.core.policy.fleet import Demand

PRIOR: Mapping[Demand, float] = {
    Demand(1, 1.0, 10.0): 0.45,
    Demand(1, 0.75, 8.0): 0.10,
    Demand(1, 0.5, 6.0): 0.20,
    Demand(1, 0.25, 4.0): 0.15,
    Demand(2, 1.0, 20.0): 0.04,
    Demand(4, 1.0, 40.0): 0.03,
    Demand(8, 1.0, 80.0): 0.03,
}
"""Shares of pods before any came: a guess, with ten cores to a GPU."""
PRIOR_PODS = 100.0
"""The guess counts as much as this many pods."""
MEMORY_PODS = 2000.0
"""A pod counts 1/e of a new one after this many others."""
CHECK_PODS = 64
"""The shares are compared with those in use whenever this many pods came."""
DRIFT = 0.1
"""Shares in use are replaced when this part of the pods is of other demands. All costs change with them."""
MOST_DEMANDS = 256
"""Different demands that are counted. The rarest are forgotten."""


class Mix:
    """Counts pods by demand, older ones less. The same pods in the same order make the same mix; nothing is stored.

    Attributes:
        shares: share of each demand in use, in the order of their counts.
        version: of `shares`. Costs of another version are out of date.
    """

    def __init__(
        self,
        prior: Mapping[Demand, float] = PRIOR,
        prior_pods: float = PRIOR_PODS,
    ) -> None:
        self._counts = {demand: share * prior_pods for demand, share in prior.items()}
        self._step = 1.0
        self._pods = 0
        self.version = 0
        self._publish()

    def saw(self, demand: Demand) -> None:
        """Count a pod."""
        # A larger step for the new pod is a smaller count for all before, and touches none of them.
        self._step *= 1 + 1 / MEMORY_PODS
        self._counts[demand] = self._counts.get(demand, 0.0) + self._step
        self._pods += 1
        if self._pods % CHECK_PODS == 0:
            self._forget()
            if self._drift() > DRIFT:
                self._publish()

    def _forget(self) -> None:
        """Keep the most frequent demands, in counts of new pods."""
        counts = sorted(self._counts.items(), key=_by_count)
        most_frequent = counts[:MOST_DEMANDS]
        # The step grows with every pod. Without this it would grow beyond what a float can hold.
        self._counts = {demand: count / self._step for demand, count in most_frequent}
        self._step = 1.0

    def _drift(self) -> float:
        """The part of the pods that is of other demands than the shares in use: the total variation distance."""
        total = sum(self._counts.values())
        drift = 0.0
        for demand, count in self._counts.items():
            rise = count / total - self.shares.get(demand, 0.0)
            # The falls add up to as much as the rises, so only these count.
            drift += max(rise, 0.0)
        return drift

    def _publish(self) -> None:
        """Have the counts as they are now in use."""
        counts = sorted(self._counts.items(), key=_by_count)
        self.shares = shares(counts)
        self.version += 1


def shares(counts: Iterable[tuple[Demand, float]]) -> Mapping[Demand, float]:
    """Counts as parts of their sum."""
    counts = list(counts)
    total = sum(count for _, count in counts)
    return {demand: count / total for demand, count in counts}


def _by_count(entry: tuple[Demand, float]) -> tuple[float, ...]:
    """The most frequent first. Equal counts have an order, too, so that the same pods make the same mix."""
    demand, count = entry
    models = sorted(demand.models) if demand.models is not None else ()
    return (-count, demand.gpus, demand.fraction, demand.cpu, *models)
