"""All nodes and the pods on them, as far as rules of other pods look at them."""

from collections.abc import Iterable, Sequence

from gpuscheduler.core.constraints.admission import Admission, Kind, Occupied
from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules

_ABSENT: Occupied = (Occupant(), ())


class Neighborhood:
    """Nodes and pods.

    Attributes:
        sites: labels and taints of all nodes, by name, of those without GPUs, too.
    """

    def __init__(self, sites: Iterable[NodeSite] = ()) -> None:
        self.sites = {site.name: site for site in sites}
        self._occupied: dict[str, Occupied] = {}
        self._ruled: dict[str, Occupied] = {}
        """Those with rules about other pods."""

    def of(self, uid: str) -> Occupied:
        """The pod, and the nodes where it is or may be bound."""
        return self._occupied.get(uid, _ABSENT)

    def put(self, uid: str, occupied: Occupied) -> None:
        """Take a pod as it is now; without nodes it is forgotten."""
        occupant, names = occupied
        if not names:
            self._occupied.pop(uid, None)
            self._ruled.pop(uid, None)
            return
        self._occupied[uid] = occupied
        if occupant.has_rules:
            self._ruled[uid] = occupied
        else:
            self._ruled.pop(uid, None)

    def label_keys(self, rules: Iterable[PodRules]) -> set[str]:
        """The labels of pods at which these rules look, or those of pods on nodes."""
        keys: set[str] = set()
        for of_pod in rules:
            keys |= _keys((*of_pod.affinity, *of_pod.anti_affinity))
            for constraint in of_pod.spread:
                keys.update(wanted.key for wanted in constraint.selector.requirements)
        # Pods of one template share their terms.
        terms = {id(occupant.anti_affinity): occupant.anti_affinity for occupant, _ in self._ruled.values()}
        for shared_terms in terms.values():
            keys |= _keys(shared_terms)
        return keys

    def admission(self, kinds: Sequence[Kind]) -> Admission:
        """What kube-scheduler would say to pods of these kinds, beside all pods that are on nodes."""
        depend = any(kind.rules.depend_on_pods for kind in kinds)
        # Pods without rules of their own matter only to those that have some.
        occupied = self._occupied if depend else self._ruled
        return Admission(kinds, self.sites, occupied.values())


def _keys(terms: Iterable[AffinityTerm]) -> set[str]:
    keys: set[str] = set()
    for term in terms:
        keys.update(wanted.key for wanted in term.selector.requirements)
    return keys
