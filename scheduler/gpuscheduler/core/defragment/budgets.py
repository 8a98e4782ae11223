"""What PodDisruptionBudgets allow. The Eviction API decides; a plan that it would refuse is not begun."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, number, text
from gpuscheduler.core.constraints.selectors import Selector, TooLarge, Unreadable, label_selector
from gpuscheduler.core.pod_facts import PodFacts

MOST_OF_NAMESPACE = 1000
"""Budgets of one namespace that are looked at. Any author of budgets may write more; its pods then stay."""


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """One PodDisruptionBudget.

    Attributes:
        namespace: of the budget and of its pods.
        name: of the budget.
        uid: of the budget.
        selector: of its pods.
        allowed: how many of its pods may be evicted now.
    """

    namespace: str
    name: str
    uid: str
    selector: Selector
    allowed: int


def disruption_budget(written: Mapping[str, Any]) -> DisruptionBudget:
    """Read a PodDisruptionBudget (decoded JSON). One that cannot be read covers all pods and allows nothing."""
    metadata = mapping(written.get("metadata"))
    allowed = number(mapping(written.get("status")).get("disruptionsAllowed")) or 0
    try:
        selector = label_selector(mapping(written.get("spec")).get("selector"))
    except (TooLarge, Unreadable):
        selector = Selector()
        allowed = 0
    return DisruptionBudget(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        selector=selector,
        allowed=allowed,
    )


class Budgets:
    """The budgets of all namespaces.

    Attributes:
        are_read: whether they were read. Before that nothing is evicted.
    """

    def __init__(self) -> None:
        self.are_read = False
        self._namespace_of: dict[str, str] = {}
        self._by_namespace: dict[str, dict[str, DisruptionBudget]] = {}

    def seen(self, budget: DisruptionBudget) -> None:
        """Take a budget as it is now."""
        self._namespace_of[budget.uid] = budget.namespace
        of_namespace = self._by_namespace.setdefault(budget.namespace, {})
        of_namespace[budget.uid] = budget

    def gone(self, uid: str) -> None:
        """Forget a budget."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        of_namespace = self._by_namespace[namespace]
        del of_namespace[uid]
        if not of_namespace:
            del self._by_namespace[namespace]

    def clear(self) -> None:
        """Forget all budgets."""
        self._namespace_of.clear()
        self._by_namespace.clear()

    def obstacle(self, pods: Iterable[PodFacts]) -> str:
        """Why these pods may not all be evicted now, in words about one of them; empty if they may."""
        evicted = Counter[str]()
        for pod in pods:
            of_namespace = self._by_namespace.get(pod.name.namespace, {})
            if len(of_namespace) > MOST_OF_NAMESPACE:
                return f"namespace {pod.name.namespace} has more than {MOST_OF_NAMESPACE} PodDisruptionBudgets"
            covering = [budget for budget in of_namespace.values() if budget.selector.matches(pod.labels)]
            if len(covering) > 1:
                # The Eviction API refuses such a pod.
                return f"pod {pod.name} has {len(covering)} PodDisruptionBudgets, and may have one"
            for budget in covering:
                evicted[budget.uid] += 1
                if evicted[budget.uid] > budget.allowed:
                    return f"PodDisruptionBudget {budget.namespace}/{budget.name} allows {budget.allowed} evictions now"
        return ""
