"""Events that the edges send to the core. The ``at`` of an event is its time in monotonic seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.domain.pods.pod import CheckpointEntry, Holding, Pod, PodName
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.resize import Resize


@dataclass(frozen=True, slots=True)
class InventoryRead:
    """The driver answered; ``inventory`` replaces the former one."""

    inventory: Inventory
    at: float


@dataclass(frozen=True, slots=True)
class DriverUnavailable:
    """The driver is missing, does not answer, or hangs. The last inventory stays in use."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class XidRaised:
    """The driver reported an XID. ``uuid`` is None if the event names no GPU, or none of this node.

    ``reading`` is the GPU's health reading right after it, None if that failed.
    """

    uuid: str | None
    xid: int
    at: float
    reading: HealthReading | None = None


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A GPU that was read before no longer answers."""

    uuid: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class HealthRead:
    """A GPU reported a change of its health. `returned`: the GPU or the driver was away before."""

    uuid: str
    reading: HealthReading
    at: float
    returned: bool = False


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The API server's current Node object, decoded JSON."""

    node: Mapping[str, Any] = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """The pods bound to this node that the agent has read. Some pods that ended earlier are missing.

    Attributes:
        complete: every pod of the node was read in this run; False for pods that the agent read one by one, before the
            first list came.
        followed: the agent follows changes of all pods now.
        unordered: UIDs of pods that the agent got together: it does not know in which order kubelet did.
    """

    pods: tuple[Pod, ...] = field(repr=False)
    at: float
    complete: bool = True
    followed: bool = True
    unordered: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ApiUnavailable:
    """The API server is unreachable, silent, or refuses (RBAC). The last objects stay in use."""

    reason: str
    at: float
    what: Literal["node", "pods", "slices"] = "node"


@dataclass(frozen=True, slots=True)
class ReportsKept:
    """The agent's ConfigMaps are up to date (`problem` is None), or `problem` says why not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class AnnotationsKept:
    """The annotations of pods are up to date (`problem` is None), or `problem` says why a write failed."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class NodeKept:
    """The agent's fields of the Node are up to date (`problem` is None), or `problem` says why a write failed."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class EventsSent:
    """The API server takes Events (`problem` is None), or `problem` says why it refuses them."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class IdleLabelsRead:
    """The idle policies of the namespaces of idle pods can be read (`problem` is None), or `problem` says which not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class PreparesTried:
    """Kubelet can be made to prepare claims again (`problem` is None), or `problem` says why not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class AnnotationsCorrected:
    """The API server has taken annotations of a pod that contradicted kubelet's allocations before, as `texts` say."""

    pod: PodName
    texts: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class ModeKept:
    """The mode in force is saved for the next start (`problem` is None), or `problem` says why not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class ResizesStored:
    """`stored` is what the state directory has of resized pods, by UID; `problem` says why it has nothing newer."""

    stored: Mapping[str, Resize]
    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class FenceRead:
    """The operator's fence file has changed. Without a file, no GPU is fenced."""

    fence: Fence
    at: float


@dataclass(frozen=True, slots=True)
class FenceUnreadable:
    """The fence file cannot be used. The last good fence stays in force."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class HoldingsRead:
    """Kubelet's allocations, read by a call that began at `started_at` (monotonic seconds)."""

    holdings: tuple[Holding, ...]
    started_at: float
    at: float
    checkpoint: tuple[CheckpointEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldingsUnavailable:
    """Kubelet's pod-resources API did not answer. The last allocations stay in use."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class RegistrationChanged:
    """Kubelet follows a resource's list (`connected`), or not. `problem` says why not, after a grace period."""

    resource: str
    problem: str | None
    at: float
    connected: bool = False


@dataclass(frozen=True, slots=True)
class ClaimsPrepared:
    """All ResourceClaims that are prepared now."""

    claims: tuple[PreparedClaim, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DraRegistered:
    """Kubelet accepts the DRA driver (`problem` is None), or `problem` says why not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class DraStopped:
    """The agent is no longer a DRA driver."""

    at: float


@dataclass(frozen=True, slots=True)
class DraSuperseded:
    """A newer agent serves claims beside this one (`by_newer`), or does so no longer."""

    by_newer: bool
    at: float


@dataclass(frozen=True, slots=True)
class SlicesSeen:
    """The node's ResourceSlices as the API server has them (decoded JSON), by name."""

    slices: Mapping[str, Mapping[str, Any]] = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class SliceWritten:
    """The node's ResourceSlice is written as the core wants it (`problem` is None), or `problem` says why not."""

    problem: str | None
    at: float


@dataclass(frozen=True, slots=True)
class SliceStored:
    """The API server has answered a write of a ResourceSlice. `stored` is the spec that it has now."""

    name: str
    sent: Mapping[str, Any] = field(repr=False)
    stored: Mapping[str, Any] = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class SliceProbed:
    """The API server has answered a dry run that shows which fields of ResourceSlices it keeps.

    Attributes:
        sent: the spec that was sent.
        stored: the spec that it would have stored; None if it refused to say.
    """

    sent: Mapping[str, Any] = field(repr=False)
    stored: Mapping[str, Any] | None = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class AllocatesSeen:
    """How many Allocate calls are in progress, and when the last one ended (-inf for none yet).

    The core reads this when it matters. Allocate calls post no events, which keeps them fast.

    Attributes:
        recent: ids that these calls have given to containers lately, and that kubelet may not have recorded yet.
    """

    in_flight: int
    last_end: float
    at: float
    recent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LayerSeen:
    """The state of an isolation driver has changed."""

    layer: Layer
    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: a deadline of the core is due."""

    at: float


DriverEvent = InventoryRead | DriverUnavailable | XidRaised | GpuLost | HealthRead | FenceRead | FenceUnreadable
"""From NVIDIA's driver, and from the fence file."""

KubeletEvent = (
    HoldingsRead
    | HoldingsUnavailable
    | RegistrationChanged
    | AllocatesSeen
    | DraRegistered
    | DraStopped
    | DraSuperseded
)
"""From kubelet."""

ClusterEvent = NodeSeen | PodsSeen | SlicesSeen | IdleLabelsRead | ApiUnavailable
"""From the API server."""

WriteEvent = (
    AnnotationsKept
    | AnnotationsCorrected
    | NodeKept
    | ReportsKept
    | EventsSent
    | SliceWritten
    | SliceStored
    | SliceProbed
    | PreparesTried
    | ModeKept
    | ResizesStored
)
"""What became of something that the agent wrote."""

Event = DriverEvent | KubeletEvent | ClusterEvent | WriteEvent | ClaimsPrepared | LayerSeen | Tick
