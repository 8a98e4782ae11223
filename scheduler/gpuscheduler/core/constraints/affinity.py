"""Which pods a pod must have near it, and which it must not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping_at, mappings, text
from gpuscheduler.core.constraints.labels import Labels
from gpuscheduler.core.constraints.selectors import NOTHING, Selector, TooLarge, label_selector

MOST_TERMS = 32
"""Terms of one kind of affinity that are read."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label that each namespace has with its name."""


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Pods that share a domain, which are the nodes with equal values of one label.

    Attributes:
        key: of the label of nodes.
        selector: of the pods.
        namespaces: of the pods, by name.
        namespace_selector: of further namespaces of the pods.
    """

    key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector = NOTHING

    @property
    def size(self) -> int:
        """How many steps it takes to compare it with a pod."""
        return 1 + len(self.selector.requirements)

    @property
    def known_namespaces(self) -> frozenset[str] | None:
        """The namespaces of the pods that it may select; None if these may be any."""
        return self.namespaces if self.namespace_selector.nothing else None

    @property
    def is_certain(self) -> bool:
        """Whether it is known which namespaces are meant: only their names are known here, not all of their labels."""
        return all(wanted.key == NAMESPACE_NAME for wanted in self.namespace_selector.requirements)

    def matches(self, namespace: str, labels: Labels) -> bool:
        """Whether it selects a pod with these labels."""
        return self.has_namespace(namespace) and self.selector.matches(labels)

    def may_match(self, namespace: str, labels: Labels) -> bool:
        """Whether it may select a pod with these labels, some of which have a value that is not kept."""
        return self.has_namespace(namespace) and self.selector.may_match(labels)

    def has_namespace(self, namespace: str) -> bool:
        """Whether it selects pods of a namespace."""
        if namespace in self.namespaces:
            return True
        if self.namespace_selector.nothing or not self.is_certain:
            return False
        return self.namespace_selector.matches(Labels((NAMESPACE_NAME,), (namespace,)))


def affinity_terms(spec: Mapping[str, Any], kind: str, namespace: str) -> tuple[AffinityTerm, ...]:
    """The required terms of a pod: `kind` is `podAffinity` or `podAntiAffinity`."""
    required = mapping_at(spec, "affinity", kind).get("requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(_terms(required, namespace))


def _terms(required: object, namespace: str) -> Iterator[AffinityTerm]:
    for number, term in enumerate(mappings(required)):
        if number >= MOST_TERMS:
            raise TooLarge(MOST_TERMS, "terms of affinity to pods")
        named = term.get("namespaces")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        namespace_selector = term.get("namespaceSelector")
        is_own = not names and namespace_selector is None
        yield AffinityTerm(
            key=text(term.get("topologyKey")),
            selector=label_selector(term.get("labelSelector")),
            namespaces=frozenset([namespace] if is_own else names),
            namespace_selector=label_selector(namespace_selector),
        )
