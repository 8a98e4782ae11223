"""What one rule of a pod says about nodes, while pods are placed one after another."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.host_ports import have_conflict
from gpuscheduler.core.constraints.kept_off import Domain
from gpuscheduler.core.constraints.node_site import HOSTNAME, NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.spread import SpreadConstraint


class Kind(NamedTuple):
    """Pods that rules do not tell apart.

    Attributes:
        occupant: what others see of each.
        rules: of each.
        kept_off: domains that pods on nodes keep them out of.
    """

    occupant: Occupant
    rules: PodRules
    kept_off: frozenset[Domain] = frozenset()


@dataclass(slots=True)
class _Domains:
    """Numbers of pods by domain.

    Attributes:
        key: of the label of nodes that makes the domains.
        pods: value of the label to the number of pods in the domain.
    """

    key: str
    pods: dict[str, int] = field(default_factory=dict)

    def change(self, site: NodeSite, count: int) -> bool:
        """Count pods on a node; whether the node is in a domain."""
        value = site.labels.get(self.key)
        if value is None:
            return False
        self.pods[value] = self.pods.get(value, 0) + count
        return True

    def state(self, site: NodeSite) -> Hashable:
        """Equal for two nodes between which a pod may be exchanged."""
        # A node that is a domain of its own differs from others by its pods alone.
        return self.at(site) if self.key == HOSTNAME else site.labels.get(self.key)

    def at(self, site: NodeSite) -> int | None:
        """The pods in the domain of a node; None if it is in no domain."""
        value = site.labels.get(self.key)
        return None if value is None else self.pods.get(value, 0)


class Affinity:
    """The pods that all terms of a pod select."""

    obstacle = "did not match its affinity to pods"
    is_local = False

    def __init__(self, terms: Sequence[AffinityTerm]) -> None:
        # Whether other terms are kept is for kube-scheduler to say.
        self.terms = [term for term in terms if term.is_certain]
        self.keys = [term.key for term in self.terms]
        self.size = sum(term.size for term in self.terms)
        # All terms have to select a pod. Without any, each pod counts.
        self.namespaces = self.terms[0].known_namespaces if self.terms else None
        self._domains = [_Domains(term.key) for term in self.terms]
        self._pods = 0

    def counts(self, occupant: Occupant) -> bool:
        # A pod whose number in its template is not kept may be the one. kube-scheduler says so, and a plan that passed
        # over its node would find none.
        return all(term.may_match(occupant.namespace, occupant.labels) for term in self.terms)

    def change(self, site: NodeSite, count: int) -> None:
        for domains in self._domains:
            if domains.change(site, count):
                self._pods += count

    def accepts(self, site: NodeSite, kind: Kind) -> bool:
        numbers = [domains.at(site) for domains in self._domains]
        if None in numbers:
            return False
        # The first pods of a series that has affinity to itself find none.
        return all(numbers) or (self._pods == 0 and self.counts(kind.occupant))

    def state(self, site: NodeSite) -> Hashable:
        return tuple(domains.state(site) for domains in self._domains)


class AntiAffinity:
    """The pods that one term selects, of a pod that must not be near them."""

    obstacle = "did not match its anti-affinity to pods"

    def __init__(self, term: AffinityTerm) -> None:
        self.term = term
        self.keys = [term.key]
        self.size = term.size
        self.namespaces = term.known_namespaces
        self.is_local = term.key == HOSTNAME
        self._domains = _Domains(term.key)

    def counts(self, occupant: Occupant) -> bool:
        return self.term.matches(occupant.namespace, occupant.labels)

    def change(self, site: NodeSite, count: int) -> None:
        self._domains.change(site, count)

    def accepts(self, site: NodeSite, kind: Kind) -> bool:  # noqa: ARG002 (like the others)
        return not self._domains.at(site)

    def state(self, site: NodeSite) -> Hashable:
        return self._domains.state(site)


class KeepsOff:
    """The pods of the plan whose anti-affinity selects the pods of a kind."""

    obstacle = "had pods near them whose anti-affinity keeps it off"

    def __init__(self, kind: Kind, key: str) -> None:
        self._kind = kind
        self.keys = [key]
        self.size = 1
        self.namespaces: frozenset[str] | None = frozenset()
        self.is_local = key == HOSTNAME
        self._domains = _Domains(key)

    def counts(self, occupant: Occupant) -> bool:
        own = self._kind.occupant
        for term in occupant.anti_affinity:
            if term.key == self._domains.key and term.matches(own.namespace, own.labels):
                return True
        return False

    def change(self, site: NodeSite, count: int) -> None:
        self._domains.change(site, count)

    def accepts(self, site: NodeSite, kind: Kind) -> bool:  # noqa: ARG002
        return not self._domains.at(site)

    def state(self, site: NodeSite) -> Hashable:
        return self._domains.state(site)


class Spread:
    """The pods that a spread constraint counts, on the nodes that it counts, which are `counted`."""

    obstacle = "did not match its topology spread constraints"
    is_local = False

    def __init__(self, constraint: SpreadConstraint, kind: Kind, counted: Iterable[NodeSite]) -> None:
        self._constraint = constraint
        self._kind = kind
        self._domains = _Domains(constraint.key)
        self._fewest: int | None = None
        self.keys = [constraint.key]
        self.size = 1 + len(constraint.selector.requirements)
        self.namespaces: frozenset[str] | None = frozenset([kind.occupant.namespace])
        own = kind.occupant.labels
        self._own = int(constraint.selector.matches(own))
        self._names: set[str] = set()
        for site in counted:
            self._names.add(site.name)
            self._domains.change(site, 0)

    def counts(self, occupant: Occupant) -> bool:
        is_counted = not occupant.ending and occupant.namespace == self._kind.occupant.namespace
        return is_counted and self._constraint.counts(occupant.labels)

    def change(self, site: NodeSite, count: int) -> None:
        if site.name in self._names:
            self._domains.change(site, count)
            self._fewest = None

    def accepts(self, site: NodeSite, kind: Kind) -> bool:  # noqa: ARG002
        pods = self._domains.at(site)
        if pods is None:
            return False
        return pods + self._own - self.fewest <= self._constraint.max_skew

    def state(self, site: NodeSite) -> Hashable:
        return site.name in self._names, self._domains.state(site)

    @property
    def fewest(self) -> int:
        """The pods in the domain with the fewest."""
        if self._fewest is None:
            pods = self._domains.pods
            has_enough_domains = len(pods) >= self._constraint.min_domains
            self._fewest = min(pods.values(), default=0) if has_enough_domains else 0
        return self._fewest


class Ports:
    """The pods that have ports of the node which pods of a kind ask for."""

    obstacle = "had not all of its host ports free"
    is_local = True
    keys = (HOSTNAME,)
    namespaces: frozenset[str] | None = frozenset()

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.size = len(kind.rules.ports)
        self._pods: dict[str, int] = {}

    def counts(self, occupant: Occupant) -> bool:
        return have_conflict(self._kind.rules.ports, occupant.ports)

    def change(self, site: NodeSite, count: int) -> None:
        self._pods[site.name] = self._pods.get(site.name, 0) + count

    def accepts(self, site: NodeSite, kind: Kind) -> bool:  # noqa: ARG002
        return not self._pods.get(site.name)

    def state(self, site: NodeSite) -> Hashable:
        return self._pods.get(site.name, 0)


Check = Affinity | AntiAffinity | KeepsOff | Spread | Ports
