"""Jobs from kube-scheduler's calls to the API server: all pods are bound, or none."""

import http.client
import json

import pytest

from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION
from gpuscheduler.cluster_api.writes import NUDGED_ANNOTATION
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, JOB_GATE
from tests.unit.gpuscheduler.running_scheduler import until


def planned(scheduler, pods):
    """The nodes that filter answers once kube-scheduler has asked about the whole job."""

    def nodes():
        named = [scheduler.filter(pod)["NodeNames"] for pod in pods]
        return all(named) and [node for (node,) in named]

    return until(nodes)


def annotations(cluster, name):
    return cluster.found(name)["metadata"]["annotations"]


@pytest.fixture
def scheduler(cluster):
    cluster.whole_node("n1", gpus=4)
    cluster.whole_node("n2", gpus=4)
    return cluster.start()


def test_four_pods_are_bound_together_after_the_plan_was_written(cluster, scheduler):
    pods = cluster.job("j", 4, gpus=2)
    nodes = planned(scheduler, pods)
    assert sorted(nodes) == ["n1", "n1", "n2", "n2"]
    first = [scheduler.begin_bind(pod, node) for pod, node in zip(pods[:3], nodes, strict=False)]
    # The calls of three pods wait, so nothing is written.
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 4)
    assert not any(one.done() for one in first)
    assert cluster.api.requests["create pods/binding"] == 0
    assert scheduler.bind(pods[3], nodes[3]) == ""
    assert [one.result() for one in first] == [""] * 3
    names = [pod["metadata"]["name"] for pod in pods]
    assert [cluster.node_of(name) for name in names] == nodes
    assert sum(COMMIT_ANNOTATION in annotations(cluster, name) for name in names) == 1
    for node in ("n1", "n2"):
        there = [annotations(cluster, name) for name in names if cluster.node_of(name) == node]
        assert sorted(one[GROUP_ANNOTATION] for one in there) == ["0,1", "2,3"]
        assert {one[VISIBLE_ANNOTATION] for one in there} == {"0,1,2,3"}


def test_the_last_pod_wakes_the_others(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    until(lambda: all(NUDGED_ANNOTATION in annotations(cluster, pod["metadata"]["name"]) for pod in pods))
    assert cluster.api.requests["create pods/binding"] == 0


def test_gates_go_when_the_job_is_complete(cluster, scheduler):
    ours = [{"name": JOB_GATE}]
    gates = [{"name": "other.example/gate"}, *ours]
    body = cluster.job("j", 1, gpus=4)[0]
    for name in ("k-0", "k-1"):
        labels = body["metadata"]["labels"] | {"gpu-topology": "k", "gpu-topology-replica": "2"}
        spec = body["spec"] | {"schedulingGates": gates}
        cluster.api.objects.create("pods", "default", {"metadata": {"name": name, "labels": labels}, "spec": spec})
    for name in ("k-0", "k-1"):
        assert cluster.found(name)["spec"]["schedulingGates"] == gates
        cluster.api.objects.patch(("pods", "default", name), "", {"spec": {"schedulingGates": ours}}, strategic=False)
    until(lambda: not any(cluster.found(name)["spec"]["schedulingGates"] for name in ("k-0", "k-1")))


def test_a_member_whose_caller_goes_away_does_not_start_the_job(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    nodes = planned(scheduler, pods)
    connection = http.client.HTTPConnection(scheduler.app.address)
    meta = pods[0]["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": nodes[0]}
    connection.request("POST", "/bind", json.dumps(body))
    connection.close()
    until(lambda: scheduler.metric('gpuscheduler_calls_total{result="refused",verb="bind"}') == 1)
    second = scheduler.begin_bind(pods[1], nodes[1])
    assert scheduler.bind(pods[0], nodes[0]) == ""
    assert second.result() == ""
    assert [cluster.node_of(pod["metadata"]["name"]) for pod in pods] == nodes


def test_a_member_that_is_deleted_frees_the_calls_that_wait(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    nodes = planned(scheduler, pods)
    waiting = scheduler.begin_bind(pods[0], nodes[0])
    cluster.api.delete_pod("j-1")
    assert "no plan for this pod any more" in waiting.result()
    assert scheduler.metric("gpuscheduler_reservations") == 0
    assert cluster.node_of("j-0") is None


def test_a_plan_that_cannot_be_written_is_given_up_and_the_job_starts_later(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    nodes = planned(scheduler, pods)
    until(lambda: any(NUDGED_ANNOTATION in annotations(cluster, pod["metadata"]["name"]) for pod in pods))
    cluster.api.fail("patch", "pods", 500)
    calls = [scheduler.begin_bind(pod, node) for pod, node in zip(pods, nodes, strict=True)]
    assert all("no plan for this pod any more" in one.result() for one in calls)
    assert cluster.api.requests["create pods/binding"] == 0
    run(scheduler, pods)


def test_a_pod_that_changed_since_it_was_planned_does_not_break_the_plan(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    nodes = planned(scheduler, pods)
    until(lambda: any(NUDGED_ANNOTATION in annotations(cluster, pod["metadata"]["name"]) for pod in pods))
    cluster.api.fail("patch", "pods", 409)
    calls = [scheduler.begin_bind(pod, node) for pod, node in zip(pods, nodes, strict=True)]
    assert [one.result() for one in calls] == ["", ""]


def test_a_restart_in_the_middle_of_the_bindings_goes_on_with_the_plan(cluster, scheduler):
    pods = cluster.job("j", 4, gpus=2)
    nodes = planned(scheduler, pods)
    cluster.api.fail("create", "pods/binding", *[403] * 2)
    calls = [scheduler.begin_bind(pod, node) for pod, node in zip(pods, nodes, strict=True)]
    errors = [one.result() for one in calls]
    assert sorted(map(bool, errors)) == [False, False, True, True]
    scheduler.stop()
    restarted = cluster.start()
    # A pod of another job does not get the GPUs of the two that are missing.
    assert restarted.filter(cluster.job("k", 1, gpus=1)[0])["NodeNames"] == []
    for pod, node, error in zip(pods, nodes, errors, strict=True):
        if error:
            assert restarted.filter(pod)["NodeNames"] == [node]
            assert restarted.bind(pod, node) == ""
    groups = [(cluster.node_of(f"j-{n}"), annotations(cluster, f"j-{n}")[GROUP_ANNOTATION]) for n in range(4)]
    assert len(set(groups)) == 4


def test_a_restart_before_the_plan_was_written_holds_nothing(cluster, scheduler):
    pods = cluster.job("j", 2, gpus=4)
    nodes = planned(scheduler, pods)
    waiting = scheduler.begin_bind(pods[0], nodes[0])
    scheduler.stop()
    assert waiting.result() == "the scheduler's extender stops"
    run(cluster.start(), pods)


def run(scheduler, pods):
    """Place a job as kube-scheduler does: all of its pods at once, until all are bound."""
    left = list(pods)

    def once():
        nodes = [scheduler.filter(pod)["NodeNames"] for pod in left]
        calls = {n: scheduler.begin_bind(left[n], found[0]) for n, found in enumerate(nodes) if found}
        done = {n for n, call in calls.items() if call.result() == ""}
        left[:] = [pod for n, pod in enumerate(left) if n not in done]
        return not left

    assert until(once)
