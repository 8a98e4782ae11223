"""The kinds of objects that say which pods belong together, as API servers that have them serve them."""

from dataclasses import dataclass
from enum import StrEnum


class ObjectKind(StrEnum):
    """A kind. The value is its name, for people."""

    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    RAY_CLUSTER = "RayCluster"
    BATCH_JOB = "Job"
    POD_GROUP = "PodGroup"
    NATIVE_POD_GROUP = "PodGroup of scheduling.k8s.io"
    WORKLOAD = "Workload"


@dataclass(frozen=True, slots=True)
class ServedAs:
    """Where API servers serve a kind.

    Attributes:
        group: of the API.
        versions: those that can be read, the latest first.
        resource: its name in paths and in RBAC rules.
    """

    group: str
    versions: tuple[str, ...]
    resource: str


SERVED_AS = {
    ObjectKind.JOB_SET: ServedAs("jobset.x-k8s.io", ("v1alpha2",), "jobsets"),
    ObjectKind.LEADER_WORKER_SET: ServedAs("leaderworkerset.x-k8s.io", ("v1",), "leaderworkersets"),
    ObjectKind.RAY_CLUSTER: ServedAs("ray.io", ("v1",), "rayclusters"),
    ObjectKind.BATCH_JOB: ServedAs("batch", ("v1",), "jobs"),
    ObjectKind.POD_GROUP: ServedAs("scheduling.x-k8s.io", ("v1alpha1",), "podgroups"),
    # Alpha in Kubernetes 1.36, beta in 1.37.
    ObjectKind.NATIVE_POD_GROUP: ServedAs("scheduling.k8s.io", ("v1beta1", "v1alpha3", "v1alpha2"), "podgroups"),
    # In Kubernetes 1.35, pods name a group of a Workload. Later Workloads are templates that no pod refers to.
    ObjectKind.WORKLOAD: ServedAs("scheduling.k8s.io", ("v1alpha1",), "workloads"),
}
