"""How evenly pods must be spread over the domains of a cluster, such as its zones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mappings, number, text
from gpuscheduler.core.constraints.labels import Labels
from gpuscheduler.core.constraints.node_rules import NodeRules
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.selectors import Requirement, Selector, TooLarge, label_selector

MOST_CONSTRAINTS = 16
"""Constraints of a pod that are read."""


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint that keeps pods off nodes.

    Attributes:
        key: of the label of nodes whose values are the domains.
        selector: of the pods that are counted, in the pod's namespace.
        max_skew: how many more pods a domain may have than the one with the fewest.
        min_domains: with fewer domains, the fewest pods count as none.
        honors_affinity: only nodes that the pod's selector and node affinity accept are counted.
        honors_taints: only nodes whose taints the pod tolerates are counted.
    """

    key: str
    selector: Selector
    max_skew: int
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False

    def counts(self, labels: Labels) -> bool:
        """Whether a pod on a node counts. With an empty selector, kube-scheduler counts none."""
        return not self.selector.is_empty and self.selector.matches(labels)

    def counts_on(self, nodes: NodeRules, site: NodeSite) -> bool:
        """Whether pods on a node count for a pod with these rules about nodes."""
        if self.honors_affinity and not nodes.selects(site):
            return False
        return not self.honors_taints or nodes.tolerates(site)


def spread_constraints(spec: Mapping[str, Any], labels: Labels) -> tuple[SpreadConstraint, ...]:
    """The constraints of a pod with these labels that keep it off nodes."""
    constraints: list[SpreadConstraint] = []
    for constraint in mappings(spec.get("topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") != "DoNotSchedule":
            continue
        if len(constraints) >= MOST_CONSTRAINTS:
            raise TooLarge(MOST_CONSTRAINTS, "topology spread constraints")
        selector = label_selector(constraint.get("labelSelector"))
        constraints.append(
            SpreadConstraint(
                key=text(constraint.get("topologyKey")),
                selector=_with_own_labels(selector, constraint.get("matchLabelKeys"), labels),
                max_skew=number(constraint.get("maxSkew")) or 0,
                min_domains=number(constraint.get("minDomains")) or 1,
                honors_affinity=constraint.get("nodeAffinityPolicy") != "Ignore",
                honors_taints=constraint.get("nodeTaintsPolicy") == "Honor",
            )
        )
    return tuple(constraints)


def _with_own_labels(selector: Selector, keys: object, labels: Labels) -> Selector:
    """The selector for pods that have the same values of these labels, too, as far as the pod has them."""
    if selector.nothing or not isinstance(keys, list):
        return selector
    if len(keys) > MOST_CONSTRAINTS:
        raise TooLarge(MOST_CONSTRAINTS, "keys in matchLabelKeys")
    own: list[Requirement] = []
    for key in keys:
        value = labels.get(key) if isinstance(key, str) else None
        if value is not None:
            own.append(Requirement(key, "In", frozenset([value])))
    return Selector((*own, *selector.requirements))
