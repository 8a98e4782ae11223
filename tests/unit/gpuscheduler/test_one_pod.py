"""A pod from kube-scheduler's calls to the API server, also where something goes wrong on the way."""

import json

import pytest

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, MEMORY_ANNOTATION
from tests.unit.gpuscheduler.running_scheduler import until

BINDINGS = "create pods/binding"


@pytest.fixture
def scheduler(cluster):
    cluster.share_node("n1")
    return cluster.start()


def test_a_pod_is_bound_with_its_decision(cluster, scheduler):
    pod = cluster.pod(mem=4)
    found = scheduler.filter(pod)
    assert (found["NodeNames"], found["Error"]) == (["n1"], "")
    assert scheduler.bind(pod, "n1") == ""
    bound = cluster.found("p")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"][DECIDED_ANNOTATION] == pod["metadata"]["uid"]
    assert bound["metadata"]["annotations"][MEMORY_ANNOTATION] == '{"0":{"0":4}}'


def test_filter_reserves_and_a_full_node_says_why(cluster, scheduler):
    pods = [cluster.pod(f"p{n}", mem=10) for n in range(3)]
    assert [scheduler.filter(pod)["NodeNames"] for pod in pods] == [["n1"], ["n1"], []]
    text = "node(s) had at most 0 GiB free on one GPU, 10 GiB wanted"
    no_gpus = {"control-plane": "node(s) had no GPUs of this scheduler"}
    answer = scheduler.filter(pods[2])
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == ({"n1": text} | no_gpus, no_gpus)


def test_a_pod_that_ends_gives_its_share_back(cluster, scheduler):
    first, second = cluster.pod("p1", mem=10), cluster.pod("p2", mem=10)
    assert {scheduler.place(first), scheduler.place(second)} == {"n1"}
    third = cluster.pod("p3", mem=10)
    assert scheduler.filter(third)["NodeNames"] == []
    cluster.api.delete_pod("p1")
    assert scheduler.place(third) == "n1"


def test_a_pod_that_is_deleted_between_filter_and_bind_is_not_bound_and_holds_nothing(cluster, scheduler):
    pod = cluster.pod(mem=10)
    scheduler.filter(pod)
    cluster.api.delete_pod("p")
    assert scheduler.bind(pod, "n1") != ""
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 0)


def test_a_pod_of_the_same_name_that_came_later_is_not_bound_in_its_place(cluster, scheduler):
    pod = cluster.pod()
    scheduler.filter(pod)
    cluster.api.delete_pod("p")
    later = cluster.pod()
    assert scheduler.bind(pod, "n1") != ""
    assert cluster.node_of("p") is None
    assert scheduler.place(later) == "n1"


def test_a_binding_whose_answer_is_lost_is_a_success(cluster, scheduler):
    pod = cluster.pod()
    scheduler.filter(pod)
    cluster.api.fail("create", "pods/binding", 0)
    assert scheduler.bind(pod, "n1") == ""
    assert (cluster.node_of("p"), cluster.api.requests[BINDINGS]) == ("n1", 2)
    assert scheduler.bind(pod, "n1") == ""


def test_a_pod_that_another_scheduler_bound_elsewhere_is_an_error(cluster, scheduler):
    cluster.share_node("n2")
    pod = cluster.pod()
    assert until(lambda: scheduler.filter(pod, ["n1"])["NodeNames"])
    cluster.api.patch_pod("p", {"spec": {"nodeName": "n2"}})
    assert 'already assigned to node "n2"' in scheduler.bind(pod, "n1")


def test_a_pod_that_another_scheduler_bound_to_the_same_node_counts_on_the_gpu_of_that_decision(cluster, scheduler):
    """As by the late Binding of a former leader. The agent follows what is written on the pod."""
    pod = cluster.pod(mem=6)
    assert until(lambda: scheduler.filter(pod)["NodeNames"])
    cluster.api.silence()
    theirs = {"metadata": {"annotations": {MEMORY_ANNOTATION: '{"0":{"1":6}}'}}, "spec": {"nodeName": "n1"}}
    cluster.api.patch_pod("p", theirs)
    assert scheduler.bind(pod, "n1") == "the pod is on node n1 already, with another decision than this Binding's"
    cluster.api.resume()
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 0)
    assert scheduler.place(cluster.pod("q", mem=6)) == "n1"
    assert cluster.found("q")["metadata"]["annotations"][MEMORY_ANNOTATION] == '{"0":{"0":6}}'


@pytest.mark.parametrize("code", [409, 404, 403, 422])
def test_a_refused_binding_is_an_error_and_holds_nothing(cluster, scheduler, code):
    pod = cluster.pod(mem=10)
    scheduler.filter(pod)
    cluster.api.fail("create", "pods/binding", code)
    assert "a fault that a test injected" in scheduler.bind(pod, "n1")
    assert cluster.node_of("p") is None
    assert cluster.api.requests[BINDINGS] == 1
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 0)
    assert scheduler.place(pod) == "n1"


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_binding_that_fails_once_is_tried_again(cluster, scheduler, code):
    pod = cluster.pod()
    scheduler.filter(pod)
    cluster.api.fail("create", "pods/binding", code)
    assert scheduler.bind(pod, "n1") == ""
    assert cluster.api.requests[BINDINGS] == 2


def test_a_binding_without_any_answer_keeps_its_gpu_as_the_pod_may_be_bound(cluster, scheduler):
    cluster.share_node("n2")
    pod = cluster.pod(mem=10)
    node = scheduler.filter(pod)["NodeNames"][0]
    cluster.api.fail("create", "pods/binding", 500, 500)
    assert "500" in scheduler.bind(pod, node)
    assert scheduler.metric("gpuscheduler_reservations") == 1
    assert scheduler.metric('gpuscheduler_calls_total{result="unknown",verb="bind"}') == 1


@pytest.mark.parametrize("code", [403, 422])
def test_a_refusal_after_a_try_without_an_answer_keeps_the_gpu_as_the_pod_may_be_bound(cluster, scheduler, code):
    first, second = cluster.pod("p1", mem=10), cluster.pod("p2", mem=6)
    assert until(lambda: scheduler.filter(first)["NodeNames"])
    assert until(lambda: scheduler.filter(second)["NodeNames"])
    cluster.api.silence()  # the watch does not show that the first try has bound it
    cluster.api.fail("create", "pods/binding", 0, code)
    assert "a fault that a test injected" in scheduler.bind(first, "n1")
    assert cluster.node_of("p1") == "n1"
    assert scheduler.filter(cluster.pod("p3", mem=10))["NodeNames"] == []
    cluster.api.resume()
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 1)


def test_a_binding_for_which_the_scheduler_did_not_filter_takes_a_gpu_of_that_node(cluster, scheduler):
    """As after a restart of the extender between the two calls."""
    first, second = cluster.pod("p1", mem=10), cluster.pod("p2", mem=10)
    scheduler.filter(first)
    scheduler.stop()
    restarted = cluster.start()
    assert restarted.bind(first, "n1") == ""
    assert restarted.place(second) == "n1"
    gpus = [cluster.found(name)["metadata"]["annotations"][MEMORY_ANNOTATION] for name in ("p1", "p2")]
    assert sorted(gpus) == ['{"0":{"0":10}}', '{"0":{"1":10}}']


def test_a_restart_keeps_what_bound_pods_use(cluster, scheduler):
    scheduler.place(cluster.pod("p1", mem=6))
    scheduler.stop()
    restarted = cluster.start()
    found = json.loads(restarted.get("/usage")[1])
    assert [gpu["free_memory"] for gpu in found["nodes"][0]["gpus"]] == [4, 10]
    assert [gpu["pods"] for gpu in found["nodes"][0]["gpus"]] == [["default/p1"], []]


def test_the_page_shows_which_pods_wait_and_why_and_what_is_reserved(cluster, scheduler):
    pod = cluster.pod(mem=6)
    until(lambda: json.loads(scheduler.get("/usage")[1])["waiting"] == {"default/p": ""})
    why = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    cluster.api.patch_pod("p", {"status": {"conditions": [why]}}, subresource="status")
    until(lambda: json.loads(scheduler.get("/usage")[1])["waiting"] == {"default/p": why["message"]})
    scheduler.filter(pod)
    found = json.loads(scheduler.get("/usage")[1])["nodes"]
    assert [(node["name"], node["published"]) for node in found] == [("n1", True)]
    assert [gpu["reserved"] for gpu in found[0]["gpus"]] == [["default/p"], []]


def test_preemption_names_victims_of_one_gpu(cluster, scheduler):
    pods = [cluster.pod(f"p{n}", mem=5) for n in range(4)]
    assert {scheduler.place(pod) for pod in pods} == {"n1"}
    cluster.pod("high", mem=10)
    cluster.api.patch_pod("high", {"spec": {"priority": 1000}})
    waiting = cluster.found("high")
    until(lambda: scheduler.metric('gpuscheduler_pods{state="bound"}') == 4)
    proposed = {"n1": {"Pods": [{"UID": pods[0]["metadata"]["uid"]}]}}
    found = scheduler.call("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": proposed})
    victims = {pod["UID"] for pod in found["NodeNameToMetaVictims"]["n1"]["Pods"]}
    by_gpu = {}
    for pod in pods:
        text = cluster.found(pod["metadata"]["name"])["metadata"]["annotations"][MEMORY_ANNOTATION]
        by_gpu.setdefault(text, set()).add(pod["metadata"]["uid"])
    assert victims in by_gpu.values()


def test_a_node_that_refused_a_pod_is_avoided_by_pods_of_its_owner(cluster, scheduler):
    pod = cluster.pod(mem=4)
    scheduler.place(pod)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"}
    cluster.api.patch_pod("p", {"status": status}, subresource="status")
    until(lambda: scheduler.metric("gpuscheduler_agent_refusals_total") == 1)
    event = until(lambda: cluster.api.events())[0]
    assert (event["reason"], event["involvedObject"]["uid"]) == ("NodeAvoided", pod["metadata"]["uid"])


@pytest.mark.parametrize("body", ["", "{", "[]", '{"Pod": 1}', '{"NodeNames": ["n1"]}', "\x00"])
def test_what_is_no_call_is_refused_and_disturbs_nothing(cluster, scheduler, body):
    for path in ("/filter", "/bind", "/preempt"):
        assert scheduler.post(path, body)[0] == 400
    assert scheduler.place(cluster.pod()) == "n1"


def test_odd_pods_do_not_hide_others(cluster, scheduler):
    odd = {"metadata": {"name": "odd"}, "spec": {"containers": "none", "initContainers": [7]}, "status": []}
    cluster.api.objects.create("pods", "default", odd)
    cluster.api.objects.create("nodes", "", {"metadata": {"name": "odd", "annotations": {"gpuagent.io/gpus": "[["}}})
    scheduler.place(cluster.pod())
    scheduler.stop()
    assert cluster.start().place(cluster.pod("p2")) == "n1"
