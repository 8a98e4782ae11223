"""Two namespaces with equal names in them have nothing to do with each other."""

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.scheduling.decision import Decision, read
from gpuagent.domain.sharing.mode import GPU_MEM, GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, Kind
from gpuscheduler.core.jobs.job import JobState
from tests.unit.gpuscheduler.core.api_objects import container, pod, pod_object, shared_node, whole_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster

JOB = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
BOTH = ("one", "two")


def member(namespace, name, **given):
    return pod(
        name,
        namespace=namespace,
        uid=f"{namespace}-{name}",
        labels=JOB,
        **(given if "mem" in given else {"whole": 2} | given),
    )


def test_pods_of_two_namespaces_are_no_job():
    scheduling = cluster(whole_node("n1"))
    for namespace in BOTH:
        scheduling.pod_seen(member(namespace, "a"), 0.0)
    for namespace in BOTH:
        answer = scheduling.filter(member(namespace, "a"), ["n1"], 0.0)
        assert answer.unresolvable == {"n1": "node(s) not given to job j: 1 of 2 pods are there"}
    assert scheduling.jobs.states() == {JobState.FORMING: 2}
    scheduling.pod_seen(member("one", "b"), 0.0)
    assert scheduling.filter(member("one", "b"), ["n1"], 0.0).nodes
    assert scheduling.jobs.states() == {JobState.PLANNED: 1, JobState.FORMING: 1}
    scheduling.pod_gone("one-a", 0.0)
    scheduling.pod_gone("one-b", 0.0)
    assert scheduling.jobs.states() == {JobState.FORMING: 1}


def test_a_job_shows_no_gpus_of_a_job_of_another_namespace():
    scheduling = cluster(whole_node("n1"))
    for n, namespace in enumerate(BOTH):
        for name in "ab":
            minors = ",".join(str(4 * n + 2 * (name == "b") + gpu) for gpu in (0, 1))
            scheduling.pod_seen(member(namespace, name, on="n1", annotations={GROUP_ANNOTATION: minors}), 0.0)
    for n, namespace in enumerate(BOTH):
        assert scheduling.jobs.visible(member(namespace, "a"), "n1") == {4 * n + gpu for gpu in range(4)}
        assert scheduling.jobs.ending(member(namespace, "a"), 1) == 2


def test_two_jobs_of_one_name_end_both_for_victims_of_each():
    """On the first GPU are pods of two jobs, without which two more pods cannot go on. On the second are three pods."""
    scheduling = cluster(shared_node("n1", memory=6), shared_node("n2", memory=6))
    for namespace in BOTH:
        for node, name in (("n1", "a"), ("n2", "b")):
            scheduling.pod_seen(member(namespace, name, mem=3, on=node, annotations=on_gpu(0, 3)), 0.0)
    singles = [pod(mem=2, on="n1", annotations=on_gpu(1, 2)) for _ in range(3)]
    for single in singles:
        scheduling.pod_seen(single, 0.0)
    evicted = scheduling.preempt(pod(mem=6, priority=5), {"n1": []}, 0.0)
    assert evicted == {"n1": sorted(single.uid for single in singles)}


def on_gpu(minor, units):
    return {MEMORY_ANNOTATION: f'{{"0":{{"{minor}":{units}}}}}'}


def test_a_pod_that_is_larger_than_its_node_reserves_nothing():
    made = pod_object(None, container("a", mem=10), container("b", mem=11))
    made["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"0":10},"1":{"1":11}}'}
    minors = {"GPU-0": 0, "GPU-1": 1}
    found = read(parse_pod(made), {GPU_MEM: Kind.MEMORY_SHARE}, minors, {GPU_MEM: dict.fromkeys(minors, 10)})
    assert isinstance(found, Decision)
    assert "in all" in found.unmet
    assert not found.units
