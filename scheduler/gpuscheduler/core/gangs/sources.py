"""Which source says a pod's gang, where several apply.

The first of these counts:

1. This project's labels: their author asks this scheduler.
2. PodGroups of Kubernetes' own API, then those of the coscheduling plugin, then its labels without an object: their
   author says what starts together.
3. LeaderWorkerSet, JobSet, then RayCluster: what starts together follows from how they work.
4. Kueue's pod groups, which Kueue also writes on pods of other controllers, such as LeaderWorkerSet.
"""

from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping
from gpuscheduler.core.gangs.batch_job import batch_job_ref
from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gangs.gang_object import ALONE, GANG_ANNOTATION, GangRef
from gpuscheduler.core.gangs.job_set import job_set_ref
from gpuscheduler.core.gangs.kueue import kueue_gang
from gpuscheduler.core.gangs.labels import gang_of_labels
from gpuscheduler.core.gangs.leader_worker_set import leader_worker_set_ref
from gpuscheduler.core.gangs.native_pod_group import native_pod_group_ref
from gpuscheduler.core.gangs.pod_group import pod_group_ref
from gpuscheduler.core.gangs.pod_group_labels import pod_group_of_labels
from gpuscheduler.core.gangs.ray_cluster import ray_cluster_ref


def gang_or_ref(
    pod: Mapping[str, Any],
    labels: Mapping[str, str],
    controller: str,
    *,
    asks_for_gpus: bool,
) -> Gang | GangRef | None:
    """The gang of a Pod object (decoded JSON), or what it says about an object that knows more; None if it has none.

    Args:
        pod: the object.
        labels: of the pod.
        controller: kind of its controller; empty if it has none.
        asks_for_gpus: whether it asks for GPUs that this scheduler places.
    """
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    own = gang_of_labels(labels)
    if own:
        return _by_own_labels(own, labels, annotations, controller)
    if annotations.get(GANG_ANNOTATION) == ALONE:
        return None
    ref = native_pod_group_ref(mapping(pod.get("spec"))) or pod_group_ref(labels, annotations, controller)
    by_author = ref or pod_group_of_labels(labels)
    if by_author:
        return by_author
    if asks_for_gpus:
        ref = _workload_ref(labels, annotations, controller)
    return ref or kueue_gang(labels, annotations)


def _by_own_labels(
    own: Gang,
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
) -> Gang | GangRef:
    """The gang of this project's labels. A template may serve several groups, and then each has a gang of its own."""
    ref = _workload_ref(labels, annotations, controller, own)
    return ref or batch_job_ref(labels, controller, own) or own


def _workload_ref(
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
    own: Gang | None = None,
) -> GangRef | None:
    """What a pod says about the workload that its controller made it for; None if that is none of these."""
    ref = leader_worker_set_ref(labels, annotations, controller, own)
    if ref is None:
        ref = job_set_ref(labels, controller, own)
    if ref is None:
        ref = ray_cluster_ref(labels, controller, own)
    return ref
