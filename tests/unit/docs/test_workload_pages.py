"""docs/{jobset,leaderworkerset,pytorchjob,ray}.md: the manifests make the jobs that the pages say."""

import re
from textwrap import dedent

import pytest
import yaml

from gpuscheduler.core.gangs.gang_objects import GangObjects
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.leader_worker_set import read_leader_worker_set
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.docs.test_docs import ROOT
from tests.unit.gpuscheduler.core.gangs.workloads import group_pod, job_set_pod

SCHEDULER = "gpu-scheduler"


def objects(page):
    """The objects of a page's YAML, also those in a command, and fragments of objects."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"<<'YAML'\n(.*?)\nYAML\n", text, re.DOTALL)
    return [found for block in blocks for found in yaml.safe_load_all(dedent(block))]


def manifests(page):
    """The objects of a page, by kind."""
    return {found["kind"]: found for found in objects(page) if "kind" in found}


def pods(template, count, labels):
    """Pods of a template, with what a controller adds."""
    for number in range(count):
        metadata = dict(template.get("metadata", {}))
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
        yield {
            "metadata": {**metadata, "name": f"p-{number}", "uid": f"{number}", "namespace": "default"},
            "spec": template["spec"],
        }


def jobs(made):
    """Title and number of the job of each pod that asks for GPUs."""
    titles = set()
    count = 0
    for pod in made:
        facts = pod_facts(pod)
        if not facts.request.kind.gives_gpus:
            assert facts.job is None
            continue
        assert facts.scheduler == SCHEDULER
        titles.add((facts.job.key_in("default").title, facts.job.pods))
        count += 1
    return titles, count


@pytest.mark.parametrize(
    ("kind", "specs", "title", "count"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", "job llama", 4),
        ("MPIJob", "mpiReplicaSpecs", "job allreduce", 4),
    ],
)
def test_a_job_of_kubeflow_is_one_job(kind, specs, title, count):
    found = manifests("pytorchjob.md")[kind]
    written = {"training.kubeflow.org/job-name": found["metadata"]["name"]}
    made = [pod for role in found["spec"][specs].values() for pod in pods(role["template"], role["replicas"], written)]
    assert jobs(made) == ({(title, count)}, count)
    other = {"training.kubeflow.org/job-name": "trial-7"}
    role = found["spec"][specs]["Worker"]
    assert jobs(pods(role["template"], 1, other)) == ({(f"{title}/trial-7", count)}, 1)


def test_the_job_of_acks_documents_is_one_job():
    text = (ROOT / "examples/jobs/pytorchjob-ack.yaml").read_text(encoding="utf-8")
    roles = yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"].values()
    written = {"training.kubeflow.org/job-name": "pytorch-dist-nccl"}
    made = [pod for role in roles for pod in pods(role["template"], role["replicas"], written)]
    assert jobs(made) == ({("job pytorch-dist-nccl", 2)}, 2)


def test_a_ray_cluster_is_one_job():
    found = manifests("ray.md")["RayCluster"]
    written = {"ray.io/cluster": found["metadata"]["name"]}
    made = list(pods(found["spec"]["headGroupSpec"]["template"], 1, written))
    for group in found["spec"]["workerGroupSpecs"]:
        made += pods(group["template"], group["replicas"], written)
    assert jobs(made) == ({("job tune", 4)}, 4)


def test_the_job_set_of_the_page_starts_whole():
    found = read_job_set(manifests("jobset.md")["JobSet"])
    known = GangObjects({})
    known.seen(found)
    pod = known.resolved(pod_facts(job_set_pod("w", "workers")))
    assert (pod.job.key_in("default").title, pod.job.pods) == ("JobSet train", 4)


def test_the_groups_of_the_page_start_whole():
    found = manifests("leaderworkerset.md")["LeaderWorkerSet"]
    known = GangObjects({})
    known.seen(read_leader_worker_set(found))
    size = found["spec"]["leaderWorkerTemplate"]["size"]
    pod = known.resolved(pod_facts(group_pod("w", 0, 1, size=size)))
    assert (pod.job.key_in("default").title, pod.job.pods) == ("LeaderWorkerSet group serve-0", 2)
