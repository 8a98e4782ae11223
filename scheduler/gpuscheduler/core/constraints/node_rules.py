"""Which nodes a pod may be on: its node selector, its required node affinity, and the taints that it tolerates."""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuscheduler.core.constraints.node_site import UNSCHEDULABLE, NodeSite, Taint
from gpuscheduler.core.constraints.selectors import (
    MOST_REQUIREMENTS,
    Requirement,
    TooLarge,
    Unreadable,
    node_requirements,
    requirement,
)

MOST_TERMS = 64
"""Terms of a node affinity, and tolerations, that are read."""
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class Toleration(NamedTuple):
    """Taints that a pod tolerates."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Whether the pod may be on a node with this taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case "Lt" | "Gt":
                return self._compares(taint)
            case _:
                return False

    def _compares(self, taint: Taint) -> bool:
        """Whether the taint's number is less, or greater: Kubernetes stores such a toleration only where it counts."""
        are_numbers = _INTEGER.fullmatch(self.value) and _INTEGER.fullmatch(taint.value)
        if not are_numbers:
            return False
        difference = int(taint.value) - int(self.value)
        return difference < 0 if self.operator == "Lt" else difference > 0


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One alternative of a node affinity.

    Attributes:
        labels: what the labels of the node must be.
        names: what the name of the node must be.
    """

    labels: tuple[Requirement, ...]
    names: tuple[Requirement, ...]

    def accepts(self, site: NodeSite) -> bool:
        """Whether the node is one of those that the term names."""
        for wanted in self.labels:
            if not wanted.matches(site.labels.get(wanted.key)):
                return False
        return all(wanted.matches(site.name) for wanted in self.names)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes a pod may be on.

    Attributes:
        selector: what the labels of the node must be in any case.
        terms: of the node affinity, of which one has to accept the node; None without one.
        tolerations: of the pod.
    """

    selector: tuple[Requirement, ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def names_nodes(self) -> bool:
        """Whether it has a selector or an affinity."""
        return bool(self.selector) or self.terms is not None

    @property
    def size(self) -> int:
        """How many steps it takes to compare it with a node."""
        terms = self.terms or ()
        of_terms = sum(1 + len(term.labels) + len(term.names) for term in terms)
        return 1 + len(self.selector) + of_terms + len(self.tolerations)

    def label_keys(self) -> set[str]:
        """The labels of nodes at which it looks."""
        keys = {wanted.key for wanted in self.selector}
        for term in self.terms or ():
            keys.update(wanted.key for wanted in term.labels)
        return keys

    @property
    def looks_at_names(self) -> bool:
        """Whether it looks at names of nodes."""
        return any(term.names for term in self.terms or ())

    def selects(self, site: NodeSite) -> bool:
        """Whether the node selector and the node affinity accept the node."""
        for wanted in self.selector:
            if not wanted.matches(site.labels.get(wanted.key)):
                return False
        if self.terms is None:
            return True
        return any(term.accepts(site) for term in self.terms)

    def tolerates(self, site: NodeSite) -> bool:
        """Whether the pod tolerates all taints of the node."""
        return all(map(self._tolerates, site.taints))

    def tolerates_cordon(self, site: NodeSite) -> bool:
        """Whether the node takes pods, or the pod tolerates that it does not."""
        if not site.cordoned:
            return True
        return self._tolerates(Taint(UNSCHEDULABLE, "", "NoSchedule"))

    def _tolerates(self, taint: Taint) -> bool:
        return any(toleration.tolerates(taint) for toleration in self.tolerations)


ANY_NODE = NodeRules(tolerations=(Toleration("", "Exists", "", ""),))
"""Rules that are not known here, so that kube-scheduler checks them alone."""


def alike_sites(rules: NodeRules, sites: Iterable[NodeSite]) -> list[list[NodeSite]]:
    """The nodes, in lists of those that are alike to the rules: thousands of nodes are of a few kinds."""
    wanted = rules.label_keys()
    are_named = rules.looks_at_names
    # Most nodes share the value of their keys, so that these are looked through once.
    positions: dict[int, list[int]] = {}
    alike: dict[Hashable, list[NodeSite]] = {}
    for site in sites:
        keys = site.labels.keys
        if id(keys) not in positions:
            positions[id(keys)] = [position for position, key in enumerate(keys) if key in wanted]
        values = [site.labels.values[position] for position in positions[id(keys)]]
        name = site.name if are_named else ""
        seen = (id(keys), tuple(values), site.taints, site.cordoned, name)
        alike.setdefault(seen, []).append(site)
    return list(alike.values())


def node_rules(spec: Mapping[str, Any]) -> NodeRules:
    """Read the rules of a pod."""
    written = mapping(spec.get("nodeSelector"))
    if len(written) > MOST_REQUIREMENTS:
        raise TooLarge(MOST_REQUIREMENTS, "labels in its node selector")
    selector: list[Requirement] = []
    for key, value in written.items():
        values = frozenset([text(value)])
        selector.append(Requirement(key, "In", values))
    affinity = mapping_at(spec, "affinity", "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None if required is None else _terms(mapping(required))
    return NodeRules(tuple(selector), terms, tolerations(spec))


def _terms(required: Mapping[str, Any]) -> tuple[NodeTerm, ...]:
    terms: list[NodeTerm] = []
    for number, term in enumerate(mappings(required.get("nodeSelectorTerms"))):
        if number >= MOST_TERMS:
            raise TooLarge(MOST_TERMS, "terms of node affinity")
        has_any = term.get("matchExpressions") or term.get("matchFields")
        if not has_any:
            # An empty term selects no node.
            continue
        try:
            labels = node_requirements(term.get("matchExpressions"))
            names = _names(term)
        except Unreadable:
            # kube-scheduler passes over such a term.
            continue
        terms.append(NodeTerm(labels, names))
    return tuple(terms)


def _names(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """What the name of the node must be: the one field of nodes that Kubernetes knows."""
    names: list[Requirement] = []
    for field in mappings(term.get("matchFields")):
        wanted = requirement(field, {"In", "NotIn"})
        if wanted.key != "metadata.name" or len(wanted.values) != 1:
            raise Unreadable("a field must be metadata.name with one value")
        names.append(wanted)
        if len(names) > MOST_REQUIREMENTS:
            raise TooLarge(MOST_REQUIREMENTS, "fields in one term of node affinity")
    return tuple(names)


def tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    """The tolerations of a pod. Kubernetes adds some to each pod, and a few more to those of a DaemonSet."""
    read: list[Toleration] = []
    for number, toleration in enumerate(mappings(spec.get("tolerations"))):
        if number >= MOST_TERMS:
            raise TooLarge(MOST_TERMS, "tolerations")
        read.append(
            Toleration(
                key=text(toleration.get("key")),
                operator=text(toleration.get("operator")),
                value=text(toleration.get("value")),
                effect=text(toleration.get("effect")),
            )
        )
    return tuple(read)
