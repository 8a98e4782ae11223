"""Objects that the tests create: Kueue's queues, and Jobs and other workloads whose pods ask for GPUs."""

from collections.abc import Mapping

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.pods import pod

KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
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
