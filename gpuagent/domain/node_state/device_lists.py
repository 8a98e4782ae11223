"""The devices that the agent advertises."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import Kind


@dataclass(frozen=True, slots=True)
class DeviceRange:
    """All units of one kind on one GPU, as advertised: they share GPU, NUMA node and health.

    Attributes:
        count: number of units that the GPU has.
        withheld: numbers of the units that no container may get, as a resized pod has their memory.
        leaving: those of `withheld` that are still listed, as unhealthy.
    """

    gpu: Gpu
    kind: Kind
    count: int
    healthy: bool = True
    withheld: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()

    @property
    def offered(self) -> int:
        """Number of units that containers have or may get while the GPU is healthy."""
        return self.count - len(self.withheld)

    @property
    def listed(self) -> int:
        """Number of units on the list, whatever their health."""
        return self.offered + len(self.leaving)

    @property
    def healthy_units(self) -> int:
        """Number of units that are listed as healthy."""
        return self.offered if self.healthy else 0

    @property
    def absent(self) -> frozenset[int]:
        """Numbers of the units that are not listed."""
        return self.withheld - self.leaving

    @property
    def key(self) -> tuple[str, Kind]:
        """GPU UUID and kind of unit, which identify the block."""
        return self.gpu.uuid, self.kind


@dataclass(frozen=True, slots=True)
class FormerUnits:
    """What containers hold of a GPU from a time when it had another number of units.

    Attributes:
        pods: that hold them.
        withheld: how many units of the GPU are not listed while they do.
    """

    pods: tuple[str, ...]
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class Draining:
    """Units that leave a list: shown unhealthy until no Allocate for them can be in progress.

    Attributes:
        numbers: of the units, if the rest of the block stays; empty if the whole block leaves.
    """

    resource: str
    block: DeviceRange
    since: float
    numbers: frozenset[int] = frozenset()


Lists = Mapping[str, tuple[DeviceRange, ...]]
"""Resource name to its advertised devices; a resource at zero has an empty tuple."""


@dataclass(frozen=True, kw_only=True)
class Advertised:
    """The lists that the agent advertises, and kubelet's connections to them. Times are monotonic seconds.

    Attributes:
        draining: units that leave the lists.
        unaudited: UUIDs of GPUs that another mode or another plugin may have advertised until `cleared_at`. Kubelet's
            allocations have not been read since.
        connected: resources whose list kubelet follows now.
        registration_problems: resource name to why kubelet does not follow its list.
    """

    lists: Lists = field(default_factory=dict)
    draining: tuple[Draining, ...] = ()
    unaudited: frozenset[str] = frozenset()
    cleared_at: float = float("-inf")
    connected: frozenset[str] = frozenset()
    registration_problems: Mapping[str, str] = field(default_factory=dict)

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.RegistrationChanged():
                resource = event.resource
                problems = dict(self.registration_problems)
                problems.pop(resource, None)
                if event.problem:
                    problems[resource] = event.problem
                connected = self.connected - {resource}
                if event.connected:
                    connected |= {resource}
                return replace(self, registration_problems=problems, connected=connected)
        return self


@dataclass(frozen=True, slots=True)
class AllocateCalls:
    """Allocate calls in progress, and when the last one ended (-inf for none yet). Monotonic seconds.

    Attributes:
        recent: ids that calls have given to containers lately, and that kubelet may not have recorded yet.
        counted_at: when the agent looked.
    """

    in_flight: int = 0
    last_end: float = float("-inf")
    recent: frozenset[str] = frozenset()
    counted_at: float = float("-inf")

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.AllocatesSeen():
                return replace(
                    self,
                    in_flight=event.in_flight,
                    last_end=event.last_end,
                    recent=event.recent,
                    counted_at=event.at,
                )
        return self
