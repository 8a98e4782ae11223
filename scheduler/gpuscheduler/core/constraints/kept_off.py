"""Which domains pods on nodes keep other pods out of, by their anti-affinity.

Kept by term, because pods of one template share theirs. A tenant may write thousands of pods with terms that select
pods of others, so that the terms of each namespace are compared with the pods of a plan up to a limit.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.labels import Labels
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant

MOST_COMPARED = 50_000
"""Requirements of the pods of one namespace that are compared for one plan. kube-scheduler alone checks the others."""


class Domain(NamedTuple):
    """The nodes that have a label with this value."""

    key: str
    value: str


Pod = tuple[str, Labels]
"""Namespace and labels."""


class KeptOff:
    """The anti-affinity terms of pods on nodes."""

    def __init__(self) -> None:
        self._terms: dict[str, dict[AffinityTerm, Counter[str]]] = {}
        """By namespace of the pods that have them: each term, and how many of these pods are on each node."""

    def change(self, occupant: Occupant, names: Iterable[str], count: int) -> None:
        """Count a pod on nodes; -1 takes it back."""
        if not occupant.anti_affinity:
            return
        terms = self._terms.setdefault(occupant.namespace, {})
        on = list(names)
        for term in occupant.anti_affinity:
            nodes = terms.setdefault(term, Counter())
            for name in on:
                nodes[name] += count
                if not nodes[name]:
                    del nodes[name]
            if not nodes:
                del terms[term]
        if not terms:
            del self._terms[occupant.namespace]

    def domains(self, pods: Sequence[Pod], sites: Mapping[str, NodeSite]) -> list[frozenset[Domain]]:
        """For each of the pods, the domains that it is kept out of."""
        kept_off: list[frozenset[Domain]] = [frozenset()] * len(pods)
        if not self._terms:
            return kept_off
        keys = _label_keys(sites)
        namespaces = {namespace for namespace, _ in pods}
        for terms in self._terms.values():
            near = _near(terms, keys, namespaces)
            if near:
                by_pod = _Comparison(near, terms, sites).domains(pods)
                for number, domains in enumerate(by_pod):
                    kept_off[number] |= domains
        return kept_off


class _Comparison:
    """Compares the terms of one namespace with pods, up to the limit."""

    def __init__(
        self,
        near: Sequence[AffinityTerm],
        terms: Mapping[AffinityTerm, Collection[str]],
        sites: Mapping[str, NodeSite],
    ) -> None:
        self._near = near
        self._terms = terms
        self._sites = sites
        self._domains: dict[AffinityTerm, frozenset[Domain]] = {}

    def domains(self, pods: Sequence[Pod]) -> list[frozenset[Domain]]:
        """For each of the pods, the domains that it is kept out of."""
        keys = {wanted.key for term in self._near for wanted in term.selector.requirements}
        alike = [(namespace, labels.only(keys)) for namespace, labels in pods]
        different = set(alike)
        # Each has an equal part of the limit.
        most = MOST_COMPARED // len(different)
        kept_off = {pod: self._domains_for(pod, most) for pod in different}
        return [kept_off[pod] for pod in alike]

    def _domains_for(self, pod: Pod, most: int) -> frozenset[Domain]:
        namespace, labels = pod
        domains: set[Domain] = set()
        compared = 0
        for term in self._near:
            compared += 1 + len(term.selector.requirements)
            if compared > most:
                break
            if term.matches(namespace, labels):
                domains |= self._domains_of(term)
        return frozenset(domains)

    def _domains_of(self, term: AffinityTerm) -> frozenset[Domain]:
        """Where the pods with a term are."""
        domains = self._domains.get(term)
        if domains is None:
            values = {_value(self._sites.get(name), term.key) for name in self._terms[term]}
            domains = frozenset(Domain(term.key, value) for value in values if value is not None)
            self._domains[term] = domains
        return domains


def _near(
    terms: Iterable[AffinityTerm],
    keys: Collection[str],
    namespaces: Collection[str],
) -> list[AffinityTerm]:
    """The terms that may concern pods of these namespaces: one whose label no node has keeps no pod off."""
    compared = islice(terms, MOST_COMPARED)
    on_nodes = [term for term in compared if term.key in keys]
    return [term for term in on_nodes if any(map(term.has_namespace, namespaces))]


def _label_keys(sites: Mapping[str, NodeSite]) -> set[str]:
    """The labels that nodes have."""
    # Most nodes share the value of their keys.
    different = {id(site.labels.keys): site.labels.keys for site in sites.values()}
    keys: set[str] = set()
    for of_node in different.values():
        keys.update(of_node)
    return keys


def _value(site: NodeSite | None, key: str) -> str | None:
    return None if site is None else site.labels.get(key)
