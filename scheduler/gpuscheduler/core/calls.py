"""The values that `Scheduling` returns: answers to kube-scheduler's calls, and actions for the API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.gangs.gang import GangKey


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The answer to a filter call.

    Attributes:
        nodes: names of the nodes that may take the pod, best first; empty if none can.
        failed: node name to why it cannot take the pod; preemption may help there.
        unresolvable: node name to why preemption cannot help there.
        error: the call cannot be answered now; kube-scheduler tries again.
        cause: why no node takes the pod, where that is not seen from the rest: `fragmented` or `job`.
    """

    nodes: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    cause: str = ""


class BindOutcome(Enum):
    """The result of a Binding."""

    BOUND = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    """No answer came: the API server may have bound the pod."""


class EvictOutcome(Enum):
    """The result of an eviction."""

    EVICTED = auto()
    GONE = auto()
    """The pod is no longer there, or another one has its name."""
    LATER = auto()
    """It may succeed later: a PodDisruptionBudget does not allow it now, or the API server is away."""
    REFUSED = auto()
    """An operator must act: gpuscheduler may not evict pods."""


@dataclass(frozen=True, slots=True)
class BindWrite:
    """Bind now: one Binding with these annotations.

    Attributes:
        pod: namespace and name.
        uid: the precondition.
        node: target of the binding.
        annotations: the decision.
    """

    pod: PodName
    uid: str
    node: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BindWait:
    """Wait for the other members of the job; ask again when `job` changes, at the latest at `until`."""

    job: GangKey
    until: float


@dataclass(frozen=True, slots=True)
class BindRefused:
    """The pod cannot be bound there; kube-scheduler tries it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nominate:
    """Set `status.nominatedNodeName`, so that kube-scheduler asks about that node; empty removes it.

    Attributes:
        pod: namespace and name.
        uid: a precondition.
        node: its name.
        ahead: kube-scheduler has not asked about the pod yet. Without effect once it has.
    """

    pod: PodName
    uid: str
    node: str
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Nudge:
    """Change an annotation of a waiting pod, so that kube-scheduler tries it again."""

    pod: PodName
    uid: str


@dataclass(frozen=True, slots=True)
class Ungate:
    """Remove the scheduling gate `gpuagent.io/job` from a pod whose job is complete."""

    pod: PodName
    uid: str


@dataclass(frozen=True, slots=True)
class Report:
    """A warning as an Event about a pod; `reason` in UpperCamelCase."""

    pod: PodName
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a pod, as far as PodDisruptionBudgets allow it.

    Attributes:
        pod: namespace and name.
        uid: a precondition.
        cause: of the metric.
        job: tells it from other jobs.
        reason: for people, without a period.
    """

    pod: PodName
    uid: str
    cause: str
    job: GangKey
    reason: str


@dataclass(frozen=True, slots=True)
class MoveAway:
    """Evict a pod, so that its controller makes a new one, which is placed elsewhere.

    Attributes:
        pod: namespace and name.
        uid: a precondition.
        is_trial: only ask whether the Eviction API would evict it.
    """

    pod: PodName
    uid: str
    is_trial: bool


@dataclass(frozen=True, slots=True)
class CommitJob:
    """Write the plan of a job on one member, before its first binding, at the version that was read.

    Attributes:
        pod: the member.
        uid: its UID.
        version: its resourceVersion, a precondition.
        job: tells it from other jobs.
        text: of the annotation `gpuagent.io/gang-commit`.
    """

    pod: PodName
    uid: str
    version: str
    job: GangKey
    text: str


Action = Nominate | Nudge | Ungate | Report | Evict | MoveAway | CommitJob
