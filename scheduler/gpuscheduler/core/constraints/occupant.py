"""A pod on a node, as far as it concerns other pods."""

from dataclasses import dataclass
from functools import lru_cache

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.host_ports import HostPort
from gpuscheduler.core.constraints.labels import NO_LABELS, Labels
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources


@dataclass(frozen=True, slots=True)
class Occupant:
    """What a pod asks for, and what rules of other pods look at. Pods of one template share a value.

    Attributes:
        namespace: of the pod.
        labels: of the pod.
        requests: what it asks for of CPU, memory and other resources.
        anti_affinity: pods that it keeps out of its domains.
        ports: of the node that it has.
        ending: it is being deleted, so that it does not count where pods are spread.
    """

    namespace: str = ""
    labels: Labels = NO_LABELS
    requests: Resources = NO_RESOURCES
    anti_affinity: tuple[AffinityTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()
    ending: bool = False

    @property
    def has_rules(self) -> bool:
        """Whether it keeps other pods off."""
        return bool(self.anti_affinity or self.ports)


@lru_cache(maxsize=4096)
def first_occupant(occupant: Occupant) -> Occupant:
    """The first value that was equal to this one."""
    return occupant
