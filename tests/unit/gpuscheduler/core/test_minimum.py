"""Jobs that start with a part of their pods: random ones of two sizes, against the exact number of pods that fit."""

from random import Random

import highspy

from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.random_jobs import (
    Node,
    RandomJob,
    Role,
    integer_program,
    node_object,
    pod_object,
    solved,
)
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

JOBS = 60


def random_job(random):
    nodes = [
        Node(f"n{n}", "z0", random.randint(2, 8), random.randint(16, 64), random.randint(64, 512))
        for n in range(random.randint(1, 5))
    ]
    large = Role("large", random.randint(1, 4), random.choice((2, 4, 8)), random.randint(1, 24), random.randint(8, 200))
    small = Role("small", random.randint(2, 8), 1, random.randint(1, 8), random.randint(4, 32))
    return RandomJob(nodes, [large, small])


def most_that_fit(job):
    """How many pods of the job fit at one time, whichever they are."""
    model = integer_program()
    placed = {}
    for role in job.roles:
        for node in job.nodes:
            placed[role.name, node.name] = model.addIntegral(0, role.pods)
        model.addConstr(sum(placed[role.name, node.name] for node in job.nodes) <= role.pods)
    for node in job.nodes:
        for resource in ("gpus", "cpu", "memory"):
            used = sum(placed[role.name, node.name] * getattr(role, resource) for role in job.roles)
            model.addConstr(used <= getattr(node, resource))
    model.setObjective(sum(placed.values()), highspy.ObjSense.kMaximize)
    assert solved(model)
    return round(model.getObjectiveValue())


def planned(job, minimum, random):
    """How many pods of the job get a place, once kube-scheduler has asked about each."""
    cluster = JobUnderTest(*(node_facts(node_object(node)) for node in job.nodes))
    made = [pod_object(role, n) for role in job.roles for n in range(role.pods)]
    for pod in made:
        pod["metadata"]["labels"] = {"gpu-topology": "j", "gpu-topology-replica": str(minimum)}
        pod["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{random.randrange(60):02d}Z"
        cluster.pods[pod["metadata"]["uid"]] = pod
        cluster.scheduling.pod_seen(pod_facts(pod), 0.0)
    for name in list(cluster.pods):
        cluster.filter(name)
    cluster.scheduling.tick(1.0)
    return cluster.reserved()


def test_a_job_starts_with_its_minimum_whichever_of_its_pods_fit():
    random = Random(34)
    fitting = 0
    while fitting < JOBS:
        job = random_job(random)
        most = most_that_fit(job)
        pods = sum(role.pods for role in job.roles)
        minimum = random.randint(2, pods - 1)
        started = planned(job, minimum, random)
        if minimum <= most:
            fitting += 1
            assert started >= minimum, (job, minimum, most)
        else:
            assert not started, (job, minimum, most)


def test_the_reason_counts_the_minimum_alone():
    """Six pods ask for 12 GPUs, and four of them for 4."""
    cluster = JobUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))
    cluster.create("other", job=None, whole=2)
    cluster.bind("other", "n1")
    cluster.create("another", job=None, whole=4)
    cluster.bind("another", "n2")
    for number in range(2):
        cluster.create(f"large-{number}", replicas=4, whole=4)
    for number in range(4):
        cluster.create(f"small-{number}", replicas=4, whole=1)
    reason = next(iter(cluster.filter("small-0").unresolvable.values()))
    assert "the cluster has" not in reason
    assert "at most 2 of them do now" in reason
