"""A pod's place among pods that start together."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class GangSource(StrEnum):
    """What says which pods belong together."""

    LABELS = "labels"
    """This project's labels `gpu-topology` and `gpu-topology-replica`."""
    JOB_SET = "job-set"
    """All pods of a JobSet."""
    REPLICATED_JOB = "replicated-job"
    """The pods of one entry of a JobSet's `spec.replicatedJobs`."""
    CHILD_JOB = "child-job"
    """The pods of one Job of a JobSet."""
    LEADER_WORKER_SET = "leader-worker-set"
    """One group of a LeaderWorkerSet."""
    POD_GROUP = "pod-group"
    """A PodGroup of the coscheduling plugin."""
    POD_GROUP_LABELS = "pod-group-labels"
    """The labels `pod-group.scheduling.sigs.k8s.io/name` and `/min-available`, without an object."""
    NATIVE_POD_GROUP = "native-pod-group"
    """A PodGroup of Kubernetes' own API, or a group of its Workload."""
    RAY_REPLICA = "ray-replica"
    """One replica of a RayCluster's worker group whose replicas have several hosts."""
    KUEUE = "kueue"
    """A group of plain pods, as Kueue knows it."""

    @property
    def noun(self) -> str:
        """What stands before the name in messages to people."""
        return _NOUNS[self]

    @property
    def number_in(self) -> str:
        """Where the number of pods is written, for messages."""
        return _NUMBER_IN.get(self, "the number of its pods")

    @property
    def is_numbered_by_object(self) -> bool:
        """Whether an object says how many pods a gang has, so that all of its pods have the latest number."""
        return self not in _NUMBERED_BY_PODS


_NOUNS = {
    GangSource.LABELS: "job",
    GangSource.JOB_SET: "JobSet",
    GangSource.REPLICATED_JOB: "replicated job",
    GangSource.CHILD_JOB: "Job",
    GangSource.LEADER_WORKER_SET: "LeaderWorkerSet group",
    GangSource.POD_GROUP: "PodGroup",
    GangSource.POD_GROUP_LABELS: "pod group",
    GangSource.NATIVE_POD_GROUP: "PodGroup",
    GangSource.RAY_REPLICA: "Ray replica",
    GangSource.KUEUE: "Kueue pod group",
}

_NUMBERED_BY_PODS = (GangSource.LABELS, GangSource.POD_GROUP_LABELS, GangSource.KUEUE)

_NUMBER_IN = {
    GangSource.LABELS: "label gpu-topology-replica",
    GangSource.POD_GROUP_LABELS: "label pod-group.scheduling.sigs.k8s.io/min-available",
    GangSource.KUEUE: "annotation kueue.x-k8s.io/pod-group-total-count",
}


class GangKey(NamedTuple):
    """What tells gangs apart: things of different sources may have one name, and namespaces do not share gangs."""

    namespace: str
    source: GangSource
    name: str

    @property
    def title(self) -> str:
        """The gang as people know it."""
        return f"{self.source.noun} {self.name}"


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's place among pods that start together, in the namespace of the pod.

    Attributes:
        source: what says so.
        name: of the gang, unique in its namespace and source.
        pods: how many have to be there before the first starts; None if no number is known.
        minimum: how many of them have to start together; None for all.
        unknown: why no number is known, where an object that was not seen has it. Until then the pods wait.
        has_no_namesake: its name has that of a workload, so that no pod of another workload is of it.
    """

    source: GangSource
    name: str
    pods: int | None
    minimum: int | None = None
    unknown: str = ""
    has_no_namesake: bool = False

    def key_in(self, namespace: str) -> GangKey:
        """What tells it from other gangs."""
        return GangKey(namespace, self.source, self.name)
