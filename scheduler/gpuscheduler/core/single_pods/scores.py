"""How well nodes suit a pod that asks for no GPUs: so that it takes the CPU that GPU pods need least."""

from collections.abc import Collection, Container, Mapping

HIGHEST = 10
"""The highest score that kube-scheduler takes from an extender."""
BESIDE_OTHERS = 5
"""The highest score of a node with GPUs where nodes without GPUs are to be had. The gap is for the sum of what
kube-scheduler itself gives a node that is less full."""


def scores(costs: Mapping[str, float], names: Collection[str], with_devices: Container[str] = ()) -> dict[str, int]:
    """Score of each of `names`. Nodes without GPUs come first.

    Args:
        costs: node name to how much the pod costs GPU pods there.
        names: of the nodes that kube-scheduler accepts.
        with_devices: nodes whose GPUs are devices of claims. The pod costs there as much as on the worst other node.
    """
    cheapest = min(costs.values(), default=0.0)
    dearest = max(costs.values(), default=0.0)
    for_claims = dict.fromkeys([name for name in names if name in with_devices], dearest)
    costs = for_claims | dict(costs)
    highest = HIGHEST if len(costs) == len(names) else BESIDE_OTHERS
    range_of_costs = dearest - cheapest
    by_name: dict[str, int] = {}
    for name in names:
        cost = costs.get(name)
        if cost is None:
            by_name[name] = HIGHEST
        elif range_of_costs:
            by_name[name] = int(highest * (dearest - cost) / range_of_costs)
        else:
            by_name[name] = highest
    return by_name
