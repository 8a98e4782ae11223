"""Calls that carry whole Node objects, as an autoscaler sends them about nodes that do not exist yet."""

import asyncio
import json
from pathlib import Path

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.single_pods.carried_nodes import CarriedNodes
from gpuscheduler.extender.carried_calls import MOST_CALLS, NODES_A_TURN, CarriedCalls
from gpuscheduler.extender.protocol import filter_call
from gpuscheduler.extender.routes import MOST_BODY
from tests.unit.gpuscheduler.core.api_objects import pod as core_pod
from tests.unit.gpuscheduler.core.api_objects import shared_node, whole_node
from tests.unit.gpuscheduler.running_scheduler import request

RECORDED = json.loads((Path(__file__).parent / "extender/go-types-1.37.1/filter-nodes.json").read_bytes())
"""As the Go types of kube-scheduler's client encode a call."""
[EMPTY_NODE] = RECORDED["Nodes"]["items"]


def node(name, amounts, gpus=(), **labels):
    """A node with these allocatable amounts; `gpus` for one whose annotation was copied from a node that runs."""
    annotations = {NODE_GPUS_ANNOTATION: node_gpus_text(NodeGpus(tuple(gpus)))} if gpus else {}
    return EMPTY_NODE | {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": EMPTY_NODE["status"] | {"capacity": amounts, "allocatable": amounts},
    }


def shared(name, gpus=2, units=10):
    """A template from tags of a node group: the node was never there."""
    return node(name, {"cpu": "8", GPU_MEM: str(gpus * units), GPU_COUNT: str(gpus)})


def copied(name, gpus=2, units=10):
    """A template from a node that runs."""
    amounts = {"cpu": "8", GPU_MEM: str(gpus * units)}
    return node(name, amounts, [NodeGpu(n, units) for n in range(gpus)])


def body(pod, *nodes):
    """The call, as Go writes it."""
    call = RECORDED | {"Pod": pod, "Nodes": {"metadata": {}, "items": list(nodes)}}
    return json.dumps(call, separators=(",", ":")).encode()


def ask(scheduler, pod, *nodes):
    status, answer = scheduler.post("/filter", body(pod, *nodes))
    assert status == 200, answer
    found = json.loads(answer)
    assert found["NodeNames"] is None
    assert not found["Error"]
    return [one["metadata"]["name"] for one in found["Nodes"]["items"]], found


@pytest.fixture
def scheduler(cluster):
    cluster.share_node("n1")
    return cluster.start()


@pytest.mark.parametrize("template", [shared, copied])
def test_a_node_that_does_not_exist_is_judged_by_its_object(cluster, scheduler, template):
    names, found = ask(scheduler, cluster.pod(mem=8), template("large"), template("small", units=4))
    assert names == ["large"]
    (reason,) = found["FailedNodes"].values()
    assert found["FailedNodes"].keys() == found["FailedAndUnresolvableNodes"].keys() == {"small"}
    assert reason.startswith("node(s) had no GPU with 8 ")


def test_the_answer_has_the_node_objects_as_they_came(cluster, scheduler):
    sent = copied("n-template")
    _, found = ask(scheduler, cluster.pod(mem=8), sent)
    assert found["Nodes"]["items"] == [sent]


@pytest.mark.parametrize(
    ("amounts", "pod", "fits"),
    [
        ({GPU_WHOLE: "8"}, {"whole": 8}, True),
        ({GPU_WHOLE: "4"}, {"whole": 8}, False),
        ({GPU_MEM: "80", GPU_CORE: "200"}, {"mem": 40, "core": 60}, True),
        ({GPU_MEM: "80", GPU_COUNT: "2"}, {"mem": 60}, False),
        ({GPU_MEM: "80"}, {"mem": 8}, False),
        ({"nvidia.com/gpu": "8"}, {"whole": 1}, False),
    ],
)
def test_the_amounts_of_a_node_group_are_enough(cluster, scheduler, amounts, pod, fits):
    names = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE}
    limits = {names[key]: str(amount) for key, amount in pod.items()}
    asked = cluster.api.create_pod("p", limits, node="")
    found, _ = ask(scheduler, asked, node("template", {"cpu": "8"} | amounts))
    assert (found == ["template"]) is fits


@pytest.mark.parametrize("asked", [{"whole": 8}, {"mem": 16, "gpu_count": 2}])
def test_each_of_many_nodes_is_judged(asked):
    """The pod needs no search on any of them, so that their number does not matter."""
    facts = whole_node("like") if "whole" in asked else shared_node("like", gpus=8)
    nodes = CarriedNodes(core_pod(**asked), {})
    names = tuple(f"n{number}" for number in range(1500))
    for name in names:
        nodes.add(name, facts)
    assert nodes.answer().nodes == names


def test_nothing_is_reserved_and_the_pod_keeps_its_place(cluster, scheduler):
    waits, other = cluster.pod("waits", mem=10), cluster.pod("other", mem=10)
    for _ in range(3):
        assert ask(scheduler, waits, shared("template"), copied("n1"))[0] == ["template", "n1"]
    assert scheduler.metric("gpuscheduler_reservations") == 0
    assert [scheduler.place(waits), scheduler.place(other)] == ["n1", "n1"]


def test_a_reservation_of_the_pod_stays(cluster, scheduler):
    first, second, third = (cluster.pod(f"p{n}", mem=10) for n in range(3))
    assert [scheduler.filter(one, ["n1"])["NodeNames"] for one in (first, second)] == [["n1"], ["n1"]]
    assert ask(scheduler, first, shared("template"))[0] == ["template"]
    assert scheduler.filter(third, ["n1"])["NodeNames"] == []
    assert scheduler.bind(first, "n1") == ""


def test_a_node_that_exists_counts_with_its_pods(cluster, scheduler):
    for name in ("a", "b"):
        scheduler.place(cluster.pod(name, mem=10))
    names, found = ask(scheduler, cluster.pod("more", mem=10), copied("n1"), copied("like-n1"))
    assert names == ["like-n1"]
    assert found["FailedNodes"] == {"n1": "node(s) had at most 0 GiB free on one GPU, 10 GiB wanted"}
    assert found["FailedAndUnresolvableNodes"] == {}


def test_a_member_of_a_job_is_asked_about_alone(cluster, scheduler):
    """The job lacks a pod, and its members are not tried by such a call."""
    member, _ = cluster.job("j", 3, gpus=8)[:2]
    assert ask(scheduler, member, node("template", {GPU_WHOLE: "8"}))[0] == ["template"]
    assert scheduler.metric("gpuscheduler_reservations") == 0


def test_a_pod_that_no_node_can_serve_is_refused_on_each(cluster, scheduler):
    asked = cluster.api.create_pod("p", {GPU_MEM: "3", GPU_WHOLE: "1"}, node="")
    names, found = ask(scheduler, asked, shared("a"), shared("b"))
    assert names == []
    assert len(set(found["FailedAndUnresolvableNodes"].values())) == 1


def test_a_pod_without_gpus_gets_all_nodes(cluster, scheduler):
    asked = cluster.api.create_pod("p", {}, node="")
    assert ask(scheduler, asked, shared("a"), node("b", {"cpu": "8"}))[0] == ["a", "b"]


@pytest.mark.parametrize("odd", [3, [], {}, {"metadata": {}}, {"metadata": {"name": 3}}])
def test_what_is_no_node_is_said(cluster, scheduler, odd):
    status, answer = scheduler.post("/filter", body(cluster.pod(), shared("a"), odd))
    assert (status, answer[:12]) == (400, "ExtenderArgs")


def test_two_nodes_of_one_name_are_refused_because_no_answer_could_tell_them_apart(cluster, scheduler):
    asked = cluster.pod(mem=8)
    large = shared("template")
    small = shared("template", units=4)
    status, answer = scheduler.post("/filter", body(asked, large, small))
    assert (status, answer) == (400, "ExtenderArgs: two different nodes have the name 'template'\n")
    assert ask(scheduler, asked, large, large)[0] == ["template"]


@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"name": "a", "annotations": [], "labels": 3}, "status": []},
        {"metadata": {"name": "a"}, "status": {"allocatable": {GPU_MEM: {}, GPU_COUNT: "9" * 400, "cpu": []}}},
        {"metadata": {"name": "a", "annotations": {NODE_GPUS_ANNOTATION: "[" * 10_000}}},
    ],
)
def test_fields_of_another_shape_count_as_empty(cluster, scheduler, odd):
    assert ask(scheduler, cluster.pod(), odd)[0] == []


def test_a_call_that_is_too_large_is_refused_with_what_to_do(scheduler):
    status, answer = request(scheduler.app.address, "POST", "/filter", b" " * (MOST_BODY + 1))
    assert status == 413
    assert "nodeCacheCapable: true" in answer


# -- on the event loop -------------------------------------------------------------------------------------------------


def call_of(count):
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}
    return filter_call(body(pod, *[shared(f"n{n}") for n in range(count)]))


def test_other_calls_come_between_the_nodes():
    async def main():
        answering = asyncio.ensure_future(CarriedCalls({}, str).answer(call_of(30 * NODES_A_TURN)))
        turns = 0
        while not answering.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, await answering

    turns, answer = asyncio.run(main())
    assert turns >= 30
    assert len(answer.nodes) == 30 * NODES_A_TURN


def test_only_some_are_answered_at_a_time():
    async def main():
        calls = CarriedCalls({}, str)
        together = [calls.answer(call_of(1)) for _ in range(MOST_CALLS + 2)]
        answers = await asyncio.gather(*together)
        return answers, await calls.answer(call_of(1))

    answers, later = asyncio.run(main())
    assert [bool(answer.error) for answer in answers] == [False] * MOST_CALLS + [True] * 2
    assert later.nodes == ("n0",)
