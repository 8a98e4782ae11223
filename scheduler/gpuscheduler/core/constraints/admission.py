"""Which nodes kube-scheduler would accept for the pods of a plan, while they are placed one after another.

The rules of the pods are counted per domain, as kube-scheduler counts them for each pod. A pod that is placed changes
the counts, so that each look at a node takes a few steps only.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.host_ports import have_conflict
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.spread import SpreadConstraint

HOSTNAME = "kubernetes.io/hostname"
"""The label of nodes by which each is a domain of its own."""
Occupied = tuple[Occupant, tuple[str, ...]]
"""A pod, and the nodes where it is or may be."""


class Kind(NamedTuple):
    """Pods that rules do not tell apart."""

    occupant: Occupant
    rules: PodRules


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


class _Affinity:
    """The pods that all terms of a pod select."""

    obstacle = "did not match its affinity to pods"
    is_local = False

    def __init__(self, terms: Sequence[AffinityTerm]) -> None:
        # Whether other terms are kept is for kube-scheduler to say.
        self.terms = [term for term in terms if term.is_certain]
        self.keys = [term.key for term in self.terms]
        self._domains = [_Domains(term.key) for term in self.terms]
        self._pods = 0

    def counts(self, occupant: Occupant) -> bool:
        return all(term.matches(occupant.namespace, occupant.labels) for term in self.terms)

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


class _AntiAffinity:
    """The pods that one term selects, of a pod that must not be near them."""

    obstacle = "did not match its anti-affinity to pods"

    def __init__(self, term: AffinityTerm) -> None:
        self.term = term
        self.keys = [term.key]
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


class _KeptOff:
    """The pods whose anti-affinity selects the pods of a kind."""

    obstacle = "had pods near them whose anti-affinity keeps it off"

    def __init__(self, kind: Kind, key: str) -> None:
        self._kind = kind
        self.keys = [key]
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


class _Spread:
    """The pods that a spread constraint counts, on the nodes that it counts."""

    obstacle = "did not match its topology spread constraints"
    is_local = False

    def __init__(self, constraint: SpreadConstraint, kind: Kind, sites: Iterable[NodeSite]) -> None:
        self._constraint = constraint
        self._kind = kind
        self._domains = _Domains(constraint.key)
        self._fewest: int | None = None
        self.keys = [constraint.key]
        self._needed = [other.key for other in kind.rules.spread]
        own = kind.occupant.labels
        self._own = int(constraint.selector.matches(own))
        counted = [site for site in sites if self._is_counted(site)]
        self._names = {site.name for site in counted}
        for site in counted:
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

    def _is_counted(self, site: NodeSite) -> bool:
        """Whether pods on the node are counted."""
        nodes = self._kind.rules.nodes
        if self._constraint.honors_affinity and not nodes.selects(site):
            return False
        if self._constraint.honors_taints and not nodes.tolerates(site):
            return False
        return all(site.labels.get(key) is not None for key in self._needed)


class _Ports:
    """The pods that have ports of the node which pods of a kind ask for."""

    obstacle = "had not all of its host ports free"
    is_local = True
    keys = (HOSTNAME,)

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._pods: dict[str, int] = {}

    def counts(self, occupant: Occupant) -> bool:
        return have_conflict(self._kind.rules.ports, occupant.ports)

    def change(self, site: NodeSite, count: int) -> None:
        self._pods[site.name] = self._pods.get(site.name, 0) + count

    def accepts(self, site: NodeSite, kind: Kind) -> bool:  # noqa: ARG002
        return not self._pods.get(site.name)

    def state(self, site: NodeSite) -> Hashable:
        return self._pods.get(site.name, 0)


_Check = _Affinity | _AntiAffinity | _KeptOff | _Spread | _Ports


class Admission:
    """The rules of the pods of a plan.

    Args:
        kinds: of the pods that are placed.
        sites: all nodes, with GPUs or without.
        occupied: the pods on nodes. With several nodes, a pod counts on each.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        sites: Mapping[str, NodeSite],
        occupied: Iterable[Occupied],
    ) -> None:
        self._kinds = kinds
        self._sites = sites
        # Kept, because pods are told apart by the identity of their values.
        self._pods = pods = list(occupied)
        own_keys = _anti_affinity_keys(kind.occupant for kind in kinds)
        keys = own_keys | _anti_affinity_keys(occupant for occupant, _ in pods)
        self._checks = [list(_checks(kind, sites, keys)) for kind in kinds]
        self._all = [check for checks in self._checks for check in checks]
        self._counted: dict[int, list[_Check]] = {}
        self._refused: dict[int, AbstractSet[str]] = {}
        for occupant, names in pods:
            counted = self._counted_by(occupant)
            if counted:
                for name in names:
                    self._change(counted, name, 1)
        self._drop_unused()

    def depends_on_pods(self, kind: int) -> bool:
        """Whether the nodes for pods of a kind depend on where other pods are."""
        return bool(self._checks[kind])

    def spans_nodes(self, kind: int) -> bool:
        """Whether the nodes for pods of a kind depend on pods of other nodes."""
        return not all(check.is_local for check in self._checks[kind])

    def refuses(self, kind: int) -> AbstractSet[str]:
        """Names of the nodes on which no pod of a kind may be, whatever other pods are there."""
        refused = self._refused.get(kind)
        if refused is None:
            rules = self._kinds[kind].rules
            refused = {name for name, site in self._sites.items() if rules.obstacle(site)}
            self._refused[kind] = refused
        return refused

    def accepts(self, kind: int, name: str, *, local: bool | None = None) -> bool:
        """Whether a pod of a kind may be on a node beside the pods that are there and those that were placed.

        `local` asks only for what depends on the pods of this node alone, or only for the rest.
        """
        site = self._sites.get(name)
        if site is None:
            return True
        own = self._kinds[kind]
        for check in self._checks[kind]:
            is_asked = local is None or local == check.is_local
            if is_asked and not check.accepts(site, own):
                return False
        return True

    def obstacle(self, kind: int, name: str) -> str:
        """Why no pod of a kind may be on a node now, after "node(s)"; empty if one may."""
        site = self._sites.get(name)
        if site is None:
            return ""
        own = self._kinds[kind]
        why = own.rules.obstacle(site)
        for check in self._checks[kind]:
            if not why and not check.accepts(site, own):
                why = check.obstacle
        return why

    def is_regional(self, kind: int) -> bool:
        """Whether it matters to pods on other nodes, or they matter to it, on which nodes pods of the kind are."""
        counted = self._counted_by(self._kinds[kind].occupant)
        return not all(check.is_local for check in (*self._checks[kind], *counted))

    def region(self, name: str) -> Hashable:
        """Equal for nodes between which only rules about the pods of one node tell; None if each is a region."""
        site = self._sites.get(name)
        regional = [check for check in self._all if not check.is_local]
        if any(HOSTNAME in check.keys for check in regional):
            return None
        return () if site is None else tuple(check.state(site) for check in regional)

    def state(self, name: str) -> Hashable:
        """Equal for two nodes between which pods of the plan may be exchanged, as far as rules about pods go."""
        site = self._sites.get(name)
        return None if site is None else tuple(check.state(site) for check in self._all)

    def place(self, kind: int, name: str, count: int = 1) -> None:
        """Count a pod of a kind on a node; -1 takes it back."""
        self._change(self._counted_by(self._kinds[kind].occupant), name, count)

    def place_in_region(self, kind: int, name: str, count: int = 1) -> None:
        """Count a pod of a kind in the region of a node, although it may be on another node of the region."""
        counted = self._counted_by(self._kinds[kind].occupant)
        self._change([check for check in counted if not check.is_local], name, count)

    def _counted_by(self, occupant: Occupant) -> list[_Check]:
        # Pods of one template share a value, and to compare values takes longer.
        counted = self._counted.get(id(occupant))
        if counted is None:
            counted = [check for check in self._all if check.counts(occupant)]
            self._counted[id(occupant)] = counted
        return counted

    def _change(self, counted: Sequence[_Check], name: str, count: int) -> None:
        site = self._sites.get(name)
        if site is None:
            return
        for check in counted:
            check.change(site, count)

    def _drop_unused(self) -> None:
        """Leave out the checks for pods that keep others off, where none does."""
        for kind in self._kinds:
            self._counted_by(kind.occupant)
        used = {id(check) for counted in self._counted.values() for check in counted}
        for number, checks in enumerate(self._checks):
            self._checks[number] = [check for check in checks if not isinstance(check, _KeptOff) or id(check) in used]


def _anti_affinity_keys(occupants: Iterable[Occupant]) -> set[str]:
    keys: set[str] = set()
    for occupant in occupants:
        keys.update(term.key for term in occupant.anti_affinity)
    return keys


def _checks(kind: Kind, sites: Mapping[str, NodeSite], keys: Iterable[str]) -> Iterator[_Check]:
    rules = kind.rules
    if rules.affinity:
        yield _Affinity(rules.affinity)
    for term in rules.anti_affinity:
        yield _AntiAffinity(term)
    for constraint in rules.spread:
        yield _Spread(constraint, kind, sites.values())
    if rules.ports:
        yield _Ports(kind)
    for key in keys:
        yield _KeptOff(kind, key)
