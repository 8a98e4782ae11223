"""Objects that the tests create: Kueue's queues, and Jobs and other workloads whose pods ask for GPUs."""

from collections.abc import Iterable, Mapping

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.pods import pod

KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
FLAVOR = "gpu-nodes"
QUEUE = "gpus"
"""The LocalQueue of each team."""


def namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def flavor() -> Json:
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}}


def cluster_queue(team: str, gpus: int, **spec: object) -> Json:
    """A team's quota of whole GPUs, in a cohort with the other teams."""
    quota = {"name": GPU_WHOLE, "nominalQuota": str(gpus)}
    group = {"coveredResources": [GPU_WHOLE], "flavors": [{"name": FLAVOR, "resources": [quota]}]}
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": team},
        "spec": {
            "cohortName": "all",
            "namespaceSelector": {},
            "resourceGroups": [group],
            # A team gets its quota back from those that have borrowed it.
            "preemption": {"reclaimWithinCohort": "Any"},
        }
        | spec,
    }


def local_queue(team: str) -> Json:
    metadata = {"name": QUEUE, "namespace": team}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": team}}


def template(limits: Mapping[str, int], labels: Mapping[str, str] | None = None) -> Json:
    """Of pods that ask for GPUs."""
    made = pod("unnamed", limits, labels=labels)
    return {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}


def gang_job(team: str, name: str, pods: int, gpus: int) -> Json:
    """A Job in a team's queue whose pods start together."""
    labels = {JOB_LABEL: name, REPLICAS_LABEL: str(pods)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {QUEUE_LABEL: QUEUE}},
        "spec": {"parallelism": pods, "completions": pods, "template": template({GPU_WHOLE: gpus}, labels)},
    }


def pod_group(team: str, name: str, labels: Mapping[str, str], made: Json) -> list[Json]:
    """Two plain pods in a team's queue. Kueue admits them together if the labels name a group."""
    pods = []
    for number in range(2):
        metadata = {
            "name": f"{name}-{number}",
            "namespace": team,
            "labels": {QUEUE_LABEL: QUEUE, **labels},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"} if GROUP_LABEL in labels else {},
        }
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]})
    return pods


def job_set(team: str, name: str, jobs: Iterable[Json], labels: Mapping[str, str] | None = None) -> Json:
    """A JobSet of entries that `replicated_job` makes."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": team, "labels": labels or {}},
        "spec": {"replicatedJobs": list(jobs)},
    }


def replicated_job(name: str, replicas: int, pods: int, made: Json) -> Json:
    """So many Jobs of so many pods each."""
    spec = {"parallelism": pods, "completions": pods, "template": made}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def leader_worker_set(
    team: str, name: str, groups: int, size: int, made: Json, labels: Mapping[str, str] | None = None
) -> Json:
    """So many groups of so many pods each."""
    # StatefulSets take no other pods.
    worker = made | {"spec": made["spec"] | {"restartPolicy": "Always"}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": team, "labels": labels or {}},
        "spec": {"replicas": groups, "leaderWorkerTemplate": {"size": size, "workerTemplate": worker}},
    }
