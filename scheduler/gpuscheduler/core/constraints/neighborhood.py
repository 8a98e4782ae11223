"""All nodes and the pods on them, as far as rules of other pods look at them."""

from collections.abc import Iterable, Sequence

from gpuscheduler.core.constraints.admission import Admission, Occupied
from gpuscheduler.core.constraints.checks import Kind
from gpuscheduler.core.constraints.kept_off import KeptOff
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.tries import Tries

_ABSENT: Occupied = (Occupant(), ())


class Neighborhood:
    """Nodes and pods.

    Attributes:
        sites: labels and taints of all nodes, by name, of those without GPUs, too.
    """

    def __init__(self, sites: Iterable[NodeSite] = ()) -> None:
        self.sites = {site.name: site for site in sites}
        self._occupied: dict[str, Occupied] = {}
        self._kept_off = KeptOff()

    def of(self, uid: str) -> Occupied:
        """The pod, and the nodes where it is or may be bound."""
        return self._occupied.get(uid, _ABSENT)

    def put(self, uid: str, occupied: Occupied) -> None:
        """Take a pod as it is now; without nodes it is forgotten."""
        former, former_names = self.of(uid)
        occupant, names = occupied
        self._kept_off.change(former, former_names, -1)
        self._kept_off.change(occupant, names, 1)
        if names:
            self._occupied[uid] = occupied
        else:
            self._occupied.pop(uid, None)

    def kinds(self, pods: Sequence[tuple[Occupant, PodRules]]) -> list[Kind]:
        """The kind of each pod: without what no rule looks at, so that as few as possible differ."""
        keys = _label_keys({rules for _, rules in pods})
        labeled = [(occupant.namespace, occupant.labels) for occupant, _ in pods]
        domains = self._kept_off.domains(labeled, self.sites)
        kinds: list[Kind] = []
        for (occupant, rules), kept_off in zip(pods, domains, strict=True):
            seen = Occupant(
                namespace=occupant.namespace,
                labels=occupant.labels.only(keys),
                anti_affinity=rules.anti_affinity,
                ports=rules.ports,
            )
            kinds.append(Kind(seen, rules, kept_off))
        return kinds

    def admission(self, kinds: Sequence[Kind], tries: Tries | None = None) -> Admission:
        """What kube-scheduler would say to pods of these kinds, beside all pods that are on nodes."""
        depend = any(kind.rules.depend_on_pods for kind in kinds)
        occupied = self._occupied.values() if depend else ()
        return Admission(kinds, self.sites, occupied, Tries() if tries is None else tries)


def _label_keys(rules: Iterable[PodRules]) -> set[str]:
    """The labels of pods at which these rules look."""
    keys: set[str] = set()
    for of_pod in rules:
        for term in (*of_pod.affinity, *of_pod.anti_affinity):
            keys.update(wanted.key for wanted in term.selector.requirements)
        for constraint in of_pod.spread:
            keys.update(wanted.key for wanted in constraint.selector.requirements)
    return keys
