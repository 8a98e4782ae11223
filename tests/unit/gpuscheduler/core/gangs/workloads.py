"""Pods and objects as the controllers of other projects write them."""

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from tests.unit.gpuscheduler.core.api_objects import pod_object

GPUS = {"resources": {"limits": {"aliyun.com/gpu": "1"}}}


def owned(made, kind):
    made["metadata"]["ownerReferences"] = [{"kind": kind, "name": "r", "uid": f"uid-{kind}", "controller": True}]
    return made


def job_set_pod(name, entry, index=0, set_name="train", labels=None, **given):
    """A pod of a JobSet."""
    own = {
        "jobset.sigs.k8s.io/jobset-name": set_name,
        "jobset.sigs.k8s.io/replicatedjob-name": entry,
        "jobset.sigs.k8s.io/job-index": str(index),
    }
    given = given or {"whole": 1}
    return owned(pod_object(name, uid=name, labels={**own, **(labels or {})}, **given), "Job")


def replicated_job(name, jobs=1, pods=1, gpus=True, annotations=None, labels=None, **given):
    """An entry of a JobSet. The labels and annotations are those of its pod template."""
    containers = [{"name": "c", **(GPUS if gpus else {})}]
    metadata = {"annotations": annotations or {}, "labels": labels or {}}
    template = {"metadata": metadata, "spec": {"containers": containers}}
    job = {"metadata": {"annotations": given.pop("job_annotations", {})}}
    job["spec"] = {"parallelism": pods, "template": template, **given.pop("job_spec", {})}
    return {"name": name, "replicas": jobs, "template": job, **given}


def job_set(*entries, name="train", annotations=None, uid="js", **spec):
    metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"replicatedJobs": list(entries), **spec}}


def group_pod(name, group, worker, size=2, set_name="serve", labels=None, annotations=None, **given):
    """A pod of a LeaderWorkerSet."""
    own = {
        "leaderworkerset.sigs.k8s.io/name": set_name,
        "leaderworkerset.sigs.k8s.io/group-index": str(group),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
    }
    written = {"leaderworkerset.sigs.k8s.io/size": str(size), **(annotations or {})}
    given = given or {"whole": 1}
    made = pod_object(name, uid=name, labels={**own, **(labels or {})}, annotations=written, **given)
    return owned(made, "StatefulSet")


def leader_worker_set(leader=None, worker=True, name="serve", annotations=None, labels=None, **spec):
    """Whether leaders and workers ask for GPUs; without `leader`, both have one template.

    `labels` are those of the template of the workers, or a pair of the leader's and theirs.
    """
    of_leader, of_workers = labels if isinstance(labels, tuple) else (labels, labels)
    templates = {"workerTemplate": _group_template(worker, of_workers)}
    if leader is not None:
        templates["leaderTemplate"] = _group_template(leader, of_leader)
    metadata = {"name": name, "namespace": "default", "uid": "lws", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"leaderWorkerTemplate": templates, **spec}}


def ray_pod(name, replica, group="gpus", cluster="tune", labels=None, **given):
    """A worker pod of a RayCluster, as KubeRay 1.6 labels it. `replica` is None in groups with one host."""
    own = {
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": cluster,
        "ray.io/node-type": "worker",
        "ray.io/group": group,
        "ray.io/identifier": f"{cluster}-worker",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/worker-group-replica-index": "0",
    }
    if replica:
        own |= {"ray.io/worker-group-replica-name": f"{group}-{replica}", "ray.io/replica-host-index": "0"}
    given = given or {"whole": 1}
    return owned(pod_object(name, uid=name, labels={**own, **(labels or {})}, **given), "RayCluster")


def ray_cluster(hosts=2, replicas=3, group="gpus", name="tune"):
    """A RayCluster with one worker group."""
    metadata = {"name": name, "namespace": "default", "uid": "ray"}
    workers = {"groupName": group, "replicas": replicas, "numOfHosts": hosts}
    return {"metadata": metadata, "spec": {"workerGroupSpecs": [workers]}}


def _group_template(gpus, labels):
    containers = [{"name": "c", **(GPUS if gpus else {})}]
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": containers}}


def pod_group(minimum, name="pg", uid="pg"):
    return {"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": {"minMember": minimum}}


def native_pod_group(policy, name="pg"):
    metadata = {"name": name, "namespace": "default", "uid": "native"}
    return {"metadata": metadata, "spec": {"schedulingPolicy": policy}}


def batch_pod(name, job, replicas=2, label="sweep", labels=None, **given):
    """A pod of a Job, whose template has this project's labels."""
    uid = f"uid-{job}"
    own = {
        "batch.kubernetes.io/job-name": job,
        "batch.kubernetes.io/controller-uid": uid,
        "job-name": job,
        "controller-uid": uid,
        JOB_LABEL: label,
        REPLICAS_LABEL: str(replicas),
    }
    given = given or {"whole": 1}
    made = owned(pod_object(name, uid=name, labels={**own, **(labels or {})}, **given), "Job")
    made["metadata"]["ownerReferences"][0]["uid"] = uid
    return made


def batch_job(name, parallelism=2, **spec):
    """A Job."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"parallelism": parallelism, **spec}}
