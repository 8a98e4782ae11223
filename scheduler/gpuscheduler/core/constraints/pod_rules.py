"""All rules of one pod, read once. Pods of one template share them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from gpuagent.domain.pods.json_values import mapping
from gpuscheduler.core.constraints.affinity import AffinityTerm, affinity_terms
from gpuscheduler.core.constraints.host_ports import HostPort, host_ports
from gpuscheduler.core.constraints.labels import Labels
from gpuscheduler.core.constraints.node_rules import ANY_NODE, NodeRules, Toleration, node_rules, tolerations
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.selectors import TooLarge, Unreadable
from gpuscheduler.core.constraints.spread import SpreadConstraint, spread_constraints

_Read = TypeVar("_Read")
_KEYS = ("affinity", "nodeSelector", "topologySpreadConstraints")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MOST_PARTS = 2048
"""Texts, lists and so on in the rules of a pod that waits. With more, only kube-scheduler checks them."""
MOST_PARTS_ON_NODE = 512
"""The same of a pod on a node, which are kept for as long as it runs. There may be tens of thousands."""
MOST_LIGHT = 32
"""Requirements, tolerations and ports of light rules. Hardly any pod has more."""


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
        unread: what it has too much of, so that only kube-scheduler checks some of its rules; empty if all are here.
    """

    nodes: NodeRules = NodeRules()
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    ports: tuple[HostPort, ...] = ()
    refused: str = ""
    unread: str = ""

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
        affinity = sum(term.size for term in self.affinity)
        anti_affinity = sum(term.size for term in self.anti_affinity)
        spread = sum(1 + len(constraint.selector.requirements) for constraint in self.spread)
        return self.nodes.size + affinity + anti_affinity + spread + len(self.ports)

    @property
    def are_light(self) -> bool:
        """Whether they are few enough to be compared with tens of nodes for one pod."""
        return self.size <= MOST_LIGHT

    @property
    def depend_on_pods(self) -> bool:
        """Whether the nodes that it may be on depend on where other pods are."""
        return bool(self.affinity or self.anti_affinity or self.spread or self.ports)


NO_RULES = PodRules()


def pod_rules(spec: Mapping[str, Any], namespace: str, labels: Labels) -> PodRules:
    """Read the rules of a pod. A pod on a node keeps only those that concern other pods."""
    is_on_node = bool(spec.get("nodeName"))
    reader = _Reader()
    no_ports: tuple[HostPort, ...] = ()
    ports = reader.read(lambda: host_ports(spec), no_ports)
    try:
        if not any(map(spec.get, _KEYS)):
            # Most pods have tolerations alone, which Kubernetes has added.
            tolerated = () if is_on_node else reader.read(lambda: tolerations(spec), ANY_NODE.tolerations)
            return _tolerating(tolerated, ports, reader.unread)
        _check_size(spec, MOST_PARTS_ON_NODE if is_on_node else MOST_PARTS)
        return _first(_rules(spec, namespace, labels, ports, reader))
    except TooLarge as too_large:
        return _first(PodRules(ANY_NODE, ports=ports, unread=str(too_large)))
    except Unreadable as unreadable:
        if is_on_node:
            return NO_RULES
        return PodRules(refused=f"a rule cannot be read: {unreadable}")


def _rules(
    spec: Mapping[str, Any],
    namespace: str,
    labels: Labels,
    ports: tuple[HostPort, ...],
    reader: "_Reader",
) -> PodRules:
    no_terms: tuple[AffinityTerm, ...] = ()
    no_constraints: tuple[SpreadConstraint, ...] = ()
    anti_affinity = reader.read(lambda: affinity_terms(spec, "podAntiAffinity", namespace), no_terms)
    on_node = PodRules(anti_affinity=anti_affinity, ports=ports)
    if spec.get("nodeName"):
        return on_node
    rules = replace(
        on_node,
        nodes=reader.read(lambda: node_rules(spec), ANY_NODE),
        affinity=reader.read(lambda: affinity_terms(spec, "podAffinity", namespace), no_terms),
        spread=reader.read(lambda: spread_constraints(spec, labels), no_constraints),
    )
    return replace(rules, unread=reader.unread)


class _Reader:
    """Reads the rules of a pod one by one.

    Attributes:
        unread: what a rule has too much of to be checked here; empty if all could be read.
    """

    def __init__(self) -> None:
        self.unread = ""

    def read(self, read: Callable[[], _Read], nothing: _Read) -> _Read:
        """The rule; `nothing` if it is too large, so that only kube-scheduler checks it."""
        try:
            return read()
        except TooLarge as too_large:
            self.unread = str(too_large)
            return nothing


def _check_size(spec: Mapping[str, Any], most: int) -> None:
    """Count all parts of the rules, before each is made a value: one pod may have hundreds of thousands."""
    affinity = mapping(spec.get("affinity"))
    # Preferences are not read.
    required = [mapping(of_kind).get(_REQUIRED) for of_kind in affinity.values()]
    waiting = [*required, spec.get("nodeSelector"), spec.get("topologySpreadConstraints"), spec.get("tolerations")]
    parts = 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
        parts += 1
        if parts > most:
            raise TooLarge(most, "parts in its rules about nodes and other pods")


@lru_cache(maxsize=1024)
def _tolerating(tolerated: tuple[Toleration, ...], ports: tuple[HostPort, ...], unread: str) -> PodRules:
    return PodRules(NodeRules(tolerations=tolerated), ports=ports, unread=unread)


@lru_cache(maxsize=1024)
def _first(rules: PodRules) -> PodRules:
    """The first value that was equal to this one."""
    return rules
