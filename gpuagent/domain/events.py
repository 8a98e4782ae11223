"""What the edges tell the core. Every event carries when it happened: ``at``, monotonic seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.domain.gpus.health import HealthReading
from gpuagent.domain.pods.failed_pod import FailedPod
from gpuagent.domain.pods.pod import CheckpointEntry, Holding, Pod
from gpuagent.domain.sharing.isolation_layers import Layer


@dataclass(frozen=True, slots=True)
class InventoryRead:
    """The driver answered; ``inventory`` replaces the former one."""

    inventory: Inventory
    at: float


@dataclass(frozen=True, slots=True)
class DriverUnavailable:
    """The driver is not there, does not answer, or a call to it hangs. What was known stays known."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class XidRaised:
    """The driver reported an XID. ``uuid`` is None when the event names no GPU, or none that is known.

    ``vitals`` are the GPU's right after it, None if they could not be read at once.
    """

    uuid: str | None
    xid: int
    at: float
    vitals: HealthReading | None = None


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A GPU that was read before does not answer any more."""

    uuid: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class HealthRead:
    """A GPU was asked for its health, and answered something new. ``anew``: it or the driver was away before."""

    uuid: str
    vitals: HealthReading
    at: float
    anew: bool = False


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The API server's current Node object, decoded JSON."""

    node: Mapping[str, Any] = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """Every pod bound to this node as the API server has them now. Of those that had ended before, some are missing."""

    pods: tuple[Pod, ...] = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class ApiUnavailable:
    """The API server cannot be used: unreachable, silent, or it refuses (RBAC). What was known stays known."""

    reason: str
    at: float
    what: Literal["node", "pods"] = "node"


@dataclass(frozen=True, slots=True)
class ReportsKept:
    """The ConfigMaps that the agent publishes are as they should be (`problem` is None), or are not, and why."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class AnnotationsKept:
    """The annotations of pods are as they should be (`problem` is None), or one could not be written, and why."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class ModeKept:
    """The mode in force is saved for the next start (`problem` is None), or is not, and why."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class FenceRead:
    """The operator's fence file says something new; where there is no file, nothing is fenced."""

    fence: Fence
    at: float


@dataclass(frozen=True, slots=True)
class FenceUnreadable:
    """The fence file cannot be used. The last good fence stays in force."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class HoldingsRead:
    """Kubelet's book of what containers hold, read by a call that began at `started_at`."""

    holdings: tuple[Holding, ...]
    started_at: float
    at: float
    checkpoint: tuple[CheckpointEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldingsUnavailable:
    """Kubelet's pod-resources API did not answer. What was known stays known."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class RegistrationChanged:
    """Kubelet follows a resource's list (`connected`), or does not, and why if that is a `problem` by now."""

    resource: str
    problem: str | None
    at: float
    connected: bool = False


@dataclass(frozen=True, slots=True)
class FailedPodDeleted:
    """The API server has taken a deletion that the core asked for."""

    pod: FailedPod
    at: float


@dataclass(frozen=True, slots=True)
class DeletionsSeen:
    """Failed pods can be deleted (`problem` is None), or cannot, and why."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class AllocatesSeen:
    """How many Allocate calls are under way, and when the last one ended (-inf for none yet).

    Looked up when it matters rather than told by each call: the hot path posts nothing.
    """

    in_flight: int
    last_end: float
    at: float


@dataclass(frozen=True, slots=True)
class LayerSeen:
    """An isolation driver says something new of itself."""

    layer: Layer
    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: a deadline of the core is due."""

    at: float


Event = (
    InventoryRead
    | DriverUnavailable
    | XidRaised
    | GpuLost
    | HealthRead
    | NodeSeen
    | PodsSeen
    | ApiUnavailable
    | ReportsKept
    | AnnotationsKept
    | ModeKept
    | FenceRead
    | FenceUnreadable
    | HoldingsRead
    | HoldingsUnavailable
    | RegistrationChanged
    | FailedPodDeleted
    | DeletionsSeen
    | AllocatesSeen
    | LayerSeen
    | Tick
)
