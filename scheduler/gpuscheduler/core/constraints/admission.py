"""Which nodes kube-scheduler would accept for the pods of a plan, while they are placed one after another.

The rules of the pods are counted per domain, as kube-scheduler counts them for each pod. A pod that is placed changes
the counts, so that each look at a node takes a few steps only. The steps are taken from the tries of the plan, because
any author of pods may write large rules. Once these are used up, the answers here mean nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.checks import Affinity, AntiAffinity, Check, KeepsOff, Kind, Ports, Spread
from gpuscheduler.core.constraints.kept_off import Domain
from gpuscheduler.core.constraints.node_rules import NodeRules, alike_sites
from gpuscheduler.core.constraints.node_site import HOSTNAME, NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.spread import SpreadConstraint
from gpuscheduler.core.constraints.tries import STEPS_A_TRY, Steps, Tries

Occupied = tuple[Occupant, tuple[str, ...]]
"""A pod, and the nodes where it is or may be."""
KEPT_OFF = "had pods near them whose anti-affinity keeps it off"


class Admission:
    """The rules of the pods of a plan.

    Args:
        kinds: of the pods that are placed.
        sites: all nodes, with GPUs or without.
        occupied: the pods on nodes. With several nodes, a pod counts on each.
        tries: of the plan.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        sites: Mapping[str, NodeSite],
        occupied: Iterable[Occupied],
        tries: Tries,
    ) -> None:
        self._kinds = kinds
        self._sites = sites
        steps = Steps(tries)
        self._spend = steps.spend
        self._nodes = _Nodes(sites, steps)
        self._refused: dict[int, Mapping[str, str]] = {}
        self._counted: dict[int, list[Check]] = {}
        self._checks = [list(self._looking(kind)) for kind in kinds]
        """By kind: what its pods look for around a node."""
        # The anti-affinity of pods on nodes is known by kind, so that their labels and ports alone count here.
        self._count(occupied)
        # After that, because pods on nodes do not count in these checks.
        self._keep_each_other_off()
        self._lookups = [_lookups(checks) for checks in self._checks]
        """By kind: labels of a node that are looked up."""
        self._all_lookups = sum(self._lookups)
        self._all = [check for checks in self._checks for check in checks]
        self._sizes = sum(check.size for check in self._all)
        self._regional = [check for check in self._all if not check.is_local]
        # A rule about single nodes tells each node from all others.
        self._is_each_a_region = any(HOSTNAME in check.keys for check in self._regional)

    def depends_on_pods(self, kind: int) -> bool:
        """Whether the nodes for pods of a kind depend on where other pods of the plan are."""
        return bool(self._checks[kind])

    def spans_nodes(self, kind: int) -> bool:
        """Whether the nodes for pods of a kind depend on pods of other nodes."""
        return not all(check.is_local for check in self._checks[kind])

    def refuses(self, kind: int) -> AbstractSet[str]:
        """Names of the nodes on which no pod of a kind may be, wherever other pods of the plan are."""
        return self._refusals(kind).keys()

    def accepts(self, kind: int, name: str, *, local: bool | None = None) -> bool:
        """Whether a pod of a kind may be on a node beside the pods that are there and those that were placed.

        `local` asks only for what depends on the pods of this node alone, or only for the rest.
        """
        site = self._sites.get(name)
        if site is None:
            return True
        checks = self._checks[kind]
        self._spend(self._lookups[kind])
        own = self._kinds[kind]
        if name in self._nodes.in_domains(own.kept_off):
            return False
        for check in checks:
            is_asked = local is None or local == check.is_local
            if is_asked and not check.accepts(site, own):
                return False
        return True

    def obstacle(self, kind: int, name: str) -> str:
        """Why no pod of a kind may be on a node now, after "node(s)"; empty if one may."""
        site = self._sites.get(name)
        if site is None:
            return ""
        why = self._refusals(kind).get(name, "")
        own = self._kinds[kind]
        for check in self._checks[kind]:
            if not why and not check.accepts(site, own):
                why = check.obstacle
        return why

    def is_regional(self, kind: int) -> bool:
        """Whether it matters to pods on other nodes, or they matter to it, on which nodes pods of the kind are."""
        return not all(check.is_local for check in (*self._checks[kind], *self._counted_by(kind)))

    def region(self, name: str) -> Hashable:
        """Equal for nodes that differ at most in rules about the pods of one node; None if each node is a region."""
        site = self._sites.get(name)
        self._spend(self._all_lookups)
        if self._is_each_a_region:
            return None
        return () if site is None else tuple(check.state(site) for check in self._regional)

    def state(self, name: str) -> Hashable:
        """Equal for two nodes between which pods of the plan may be exchanged, as far as rules about pods go."""
        site = self._sites.get(name)
        self._spend(self._all_lookups)
        return None if site is None else tuple(check.state(site) for check in self._all)

    def place(self, kind: int, name: str, count: int = 1) -> None:
        """Count a pod of a kind on a node; -1 takes it back."""
        self._change(self._counted_by(kind), name, count)

    def place_in_region(self, kind: int, name: str, count: int = 1) -> None:
        """Count a pod of a kind in the region of a node, although it may be on another node of the region."""
        self._change([check for check in self._counted_by(kind) if not check.is_local], name, count)

    # -- the rules of the plan's pods --------------------------------------------------------------------------------

    def _looking(self, kind: Kind) -> Iterator[Check]:
        """What pods of a kind look for around a node."""
        rules = kind.rules
        if rules.affinity:
            yield Affinity(rules.affinity)
        for term in rules.anti_affinity:
            yield AntiAffinity(term)
        for constraint in rules.spread:
            # It looks at all nodes.
            if self._spend(len(self._sites)):
                yield Spread(constraint, kind, self._nodes.counted(rules, constraint))
        if rules.ports:
            yield Ports(kind)

    def _count(self, occupied: Iterable[Occupied]) -> None:
        """Count the pods on nodes that the plan's pods look for."""
        looking = [check for checks in self._checks for check in checks]
        # Pods of other tenants are passed over quickly: there may be tens of thousands, all different.
        namespaces = _namespaces_of(looking)
        has_ports = any(isinstance(check, Ports) for check in looking)
        size = sum(check.size for check in looking)
        counted: dict[int, list[Check]] = {}
        # Kept meanwhile, because pods of one template share a value, which is known by its identity.
        for occupant, names in list(occupied):
            is_near = namespaces is None or occupant.namespace in namespaces
            # Ports matter to pods of all namespaces.
            may_take_port = has_ports and bool(occupant.ports)
            if not is_near and not may_take_port:
                continue
            if id(occupant) not in counted:
                if not self._spend(size):
                    return
                counted[id(occupant)] = [check for check in looking if check.counts(occupant)]
            for name in names:
                self._change(counted[id(occupant)], name, 1)

    def _keep_each_other_off(self) -> None:
        """Add what the plan's pods keep each other out of."""
        terms: set[AffinityTerm] = set()
        for kind in self._kinds:
            terms.update(kind.rules.anti_affinity)
        if not terms:
            return
        # Each kind is compared with the terms of all.
        size = sum(term.size for term in terms)
        for kind, checks in zip(self._kinds, self._checks, strict=True):
            if not self._spend(size):
                return
            own = kind.occupant
            keys = {term.key for term in terms if term.matches(own.namespace, own.labels)}
            checks += [KeepsOff(kind, key) for key in sorted(keys)]

    def _counted_by(self, kind: int) -> list[Check]:
        """The rules that count a pod of a kind."""
        counted = self._counted.get(kind)
        if counted is None:
            self._spend(self._sizes)
            occupant = self._kinds[kind].occupant
            counted = [check for check in self._all if check.counts(occupant)]
            self._counted[kind] = counted
        return counted

    def _change(self, counted: Sequence[Check], name: str, count: int) -> None:
        site = self._sites.get(name)
        if site is None:
            return
        for check in counted:
            self._spend(len(check.keys))
            check.change(site, count)

    def _refusals(self, kind: int) -> Mapping[str, str]:
        """Names of the nodes on which no pod of a kind may be, and why."""
        refused = self._refused.get(kind)
        if refused is None:
            own = self._kinds[kind]
            refused = self._nodes.refused(own.rules)
            kept_off = self._nodes.in_domains(own.kept_off)
            if kept_off:
                refused = {**dict.fromkeys(kept_off, KEPT_OFF), **refused}
            self._refused[kind] = refused
        return refused


def _namespaces_of(checks: Iterable[Check]) -> set[str] | None:
    """The namespaces in which these checks count pods; None if one of them may count pods of any."""
    namespaces: set[str] = set()
    for check in checks:
        if check.namespaces is None:
            return None
        namespaces |= check.namespaces
    return namespaces


class _Nodes:
    """All nodes, and what rules about nodes alone say of them.

    Kinds of one template share their rules, so that these are looked at once, by their identity.

    Args:
        sites: of the nodes, with GPUs or without.
        steps: that are taken. Once these are used up, nodes are left out.
    """

    def __init__(self, sites: Mapping[str, NodeSite], steps: Steps) -> None:
        self._sites = sites
        self._spend = steps.spend
        self._alike: dict[int, list[list[NodeSite]]] = {}
        self._counted: dict[Hashable, list[NodeSite]] = {}
        self._refused: dict[tuple[int, str], Mapping[str, str]] = {}
        self._in_domains: dict[frozenset[Domain], frozenset[str]] = {}

    def refused(self, rules: PodRules) -> Mapping[str, str]:
        """Names of the nodes that the rules of a pod refuse, and why."""
        key = (id(rules.nodes), rules.refused)
        refused = self._refused.get(key)
        if refused is None:
            refused = {}
            for alike in self._alike_for(rules.nodes):
                if not self._spend(rules.nodes.size):
                    break
                why = rules.obstacle(alike[0])
                if why:
                    refused.update((site.name, why) for site in alike)
            self._refused[key] = refused
        return refused

    def counted(self, rules: PodRules, constraint: SpreadConstraint) -> Sequence[NodeSite]:
        """The nodes on which a spread constraint of a pod counts other pods."""
        needed = tuple({other.key: None for other in rules.spread})
        honored = constraint.honors_affinity, constraint.honors_taints
        key = (id(rules.nodes), honored, needed)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = []
            for alike in self._alike_for(rules.nodes):
                is_counted = constraint.counts_on(rules.nodes, alike[0])
                # Without tries, the nodes are not looked at any more.
                if is_counted and self._spend(rules.nodes.size + len(alike) * len(needed)):
                    counted += [site for site in alike if site.labels.has_all(needed)]
        return counted

    def in_domains(self, domains: frozenset[Domain]) -> frozenset[str]:
        """Names of the nodes in one of these domains."""
        names = self._in_domains.get(domains)
        if names is None:
            names = frozenset(self._nodes_in(domains))
            self._in_domains[domains] = names
        return names

    def _nodes_in(self, domains: Iterable[Domain]) -> Iterator[str]:
        values: dict[str, set[str]] = {}
        for domain in domains:
            values.setdefault(domain.key, set()).add(domain.value)
        for key, of_key in values.items():
            for name, site in self._sites.items():
                if site.labels.get(key) in of_key:
                    yield name

    def _alike_for(self, rules: NodeRules) -> list[list[NodeSite]]:
        """All nodes, in lists of those that are alike to the rules; none if that takes too many tries."""
        alike = self._alike.get(id(rules))
        if alike is None:
            alike = []
            steps_a_node = 1 + len(rules.label_keys()) // STEPS_A_TRY
            if self._spend(len(self._sites) * steps_a_node):
                alike = alike_sites(rules, self._sites.values())
            self._alike[id(rules)] = alike
        return alike


def _lookups(checks: Iterable[Check]) -> int:
    """How many labels of a node the checks look up."""
    return sum(len(check.keys) for check in checks)
