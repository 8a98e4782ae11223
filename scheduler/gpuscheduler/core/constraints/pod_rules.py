"""All rules of one pod, read once. Pods of one template share them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from gpuscheduler.core.constraints.affinity import AffinityTerm, affinity_terms
from gpuscheduler.core.constraints.host_ports import HostPort, host_ports
from gpuscheduler.core.constraints.labels import Labels
from gpuscheduler.core.constraints.node_rules import ANY_NODE, NodeRules, Toleration, node_rules, tolerations
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.selectors import TooLarge, Unreadable
from gpuscheduler.core.constraints.spread import SpreadConstraint, spread_constraints

_Read = TypeVar("_Read")
_KEYS = ("affinity", "nodeSelector", "topologySpreadConstraints")


@dataclass(frozen=True, slots=True)
class PodRules:
    """What kube-scheduler checks for a pod on a node, besides its amounts.

    Attributes:
        nodes: which nodes it may be on.
        affinity: pods that have to be in its domains.
        anti_affinity: pods that must not be in its domains.
        spread: how evenly it has to be spread.
        ports: of the node.
        refused: why kube-scheduler places the pod nowhere; empty if it may.
    """

    nodes: NodeRules = NodeRules()
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    ports: tuple[HostPort, ...] = ()
    refused: str = ""

    def obstacle(self, site: NodeSite) -> str:
        """Why the pod may not be on a node, whatever other pods are there; empty if it may."""
        nodes = self.nodes
        if self.refused:
            return f"cannot serve a pod of which {self.refused}"
        if site.cordoned and not nodes.tolerates_cordon(site):
            return "were unschedulable"
        if site.taints and not nodes.tolerates(site):
            return "had taints that it does not tolerate"
        return "" if nodes.selects(site) else "did not match its node selector or node affinity"

    @property
    def size(self) -> int:
        """How many steps it takes to look through them."""
        of_pods = sum(term.size for term in (*self.affinity, *self.anti_affinity))
        spread = sum(1 + len(constraint.selector.requirements) for constraint in self.spread)
        return self.nodes.size + of_pods + spread + len(self.ports)

    @property
    def depend_on_pods(self) -> bool:
        """Whether the nodes that it may be on depend on where other pods are."""
        return bool(self.affinity or self.anti_affinity or self.spread or self.ports)


NO_RULES = PodRules()


def pod_rules(spec: Mapping[str, Any], namespace: str, labels: Labels) -> PodRules:
    """Read the rules of a pod. A pod on a node keeps only those that concern other pods."""
    ports = host_ports(spec)
    is_on_node = bool(spec.get("nodeName"))
    try:
        if not any(map(spec.get, _KEYS)):
            # Most pods have tolerations alone, which Kubernetes has added.
            return _tolerating(() if is_on_node else _kept(lambda: tolerations(spec), ANY_NODE.tolerations), ports)
        return _first(_rules(spec, namespace, labels, ports))
    except Unreadable as unreadable:
        if is_on_node:
            return NO_RULES
        return PodRules(refused=f"a rule cannot be read: {unreadable}")


def _rules(spec: Mapping[str, Any], namespace: str, labels: Labels, ports: tuple[HostPort, ...]) -> PodRules:
    no_terms: tuple[AffinityTerm, ...] = ()
    no_constraints: tuple[SpreadConstraint, ...] = ()
    anti_affinity = _kept(lambda: affinity_terms(spec, "podAntiAffinity", namespace), no_terms)
    on_node = PodRules(anti_affinity=anti_affinity, ports=ports)
    if spec.get("nodeName"):
        return on_node
    return replace(
        on_node,
        nodes=_kept(lambda: node_rules(spec), ANY_NODE),
        affinity=_kept(lambda: affinity_terms(spec, "podAffinity", namespace), no_terms),
        spread=_kept(lambda: spread_constraints(spec, labels), no_constraints),
    )


def _kept(read: Callable[[], _Read], nothing: _Read) -> _Read:
    """The rule; `nothing` if it is too large, so that only kube-scheduler checks it."""
    try:
        return read()
    except TooLarge:
        return nothing


@lru_cache(maxsize=1024)
def _tolerating(tolerated: tuple[Toleration, ...], ports: tuple[HostPort, ...]) -> PodRules:
    return PodRules(NodeRules(tolerations=tolerated), ports=ports)


@lru_cache(maxsize=1024)
def _first(rules: PodRules) -> PodRules:
    """The first value that was equal to this one."""
    return rules
