"""Nodes that publish GPUs and cannot give any now: they are free for no pod, no job, no advice and no page."""

import json

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, JOB_LABEL, MODE_LABEL, REPLICAS_LABEL
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.policy.accepted_models import MODEL_LABEL
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages.usage_page import usage_parts
from tests.unit.gpuscheduler.core.api_objects import OF_NODES, LeastFree, pod

SHARED = [NodeGpu(n, memory=40) for n in range(2)]
BOTH = [NodeGpu(n, memory=40, core=100) for n in range(2)]
WHOLE = [NodeGpu(n, whole=True) for n in range(2)]


def condition(kind, status, reason=""):
    return {"type": kind, "status": status, "reason": reason}


def node(name, gpus=SHARED, conditions=(), **amounts):
    names = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE}
    published = node_gpus_text(NodeGpus(tuple(gpus), both=any(gpu.core for gpu in gpus)))
    labels = {MODE_LABEL: "cgpu", MODEL_LABEL: "Tesla-T4"}
    allocatable = {"cpu": "32", **OF_NODES, **{names[key]: str(units) for key, units in amounts.items()}}
    return node_facts(
        {
            "metadata": {"name": name, "annotations": {NODE_GPUS_ANNOTATION: published}, "labels": labels},
            "status": {"conditions": list(conditions), "allocatable": allocatable},
        }
    )


UNREADY = {
    "kubelet is not ready": (node("n1", conditions=[condition("Ready", "False")], mem=80), "were not ready"),
    "kubelet is silent": (node("n1", conditions=[condition("Ready", "Unknown")], mem=80), "were not ready"),
    "the agent is not ready, and offers nothing": (
        node(
            "n1", conditions=[condition("Ready", "True"), condition("GPUAgentReady", "False", "IsolationDown")], mem=0
        ),
        "had a GPU agent that was not ready: IsolationDown",
    ),
    "the agent has never registered": (
        node("n1", conditions=[condition("GPUAgentReady", "False", "ResourceNotRegistered")]),
        "had a GPU agent that was not ready: ResourceNotRegistered",
    ),
    "memory is at 0": (node("n1", mem=0), f"had {GPU_MEM} at 0"),
    "compute is at 0": (node("n1", BOTH, mem=80, core=0), f"had {GPU_CORE} at 0"),
    "whole GPUs are at 0": (node("n1", WHOLE, whole=0), f"had {GPU_WHOLE} at 0"),
}
ASKED = {"compute is at 0": {"mem": 8, "core": 10}, "whole GPUs are at 0": {"whole": 1}}
READY = {
    "all is well": node("n1", conditions=[condition("Ready", "True"), condition("GPUAgentReady", "True")], mem=80),
    "the agent does not know yet": node("n1", conditions=[condition("GPUAgentReady", "Unknown")], mem=80),
    "the other modes are at 0": node("n1", mem=80, core=0, whole=0),
    "another condition is bad": node("n1", conditions=[condition("DiskPressure", "True")], mem=80),
    "kubelet has not counted yet": node("n1"),
}


def cluster(*nodes):
    scheduling = Scheduling(LeastFree())
    for one in nodes:
        scheduling.node_seen(one)
    scheduling.synced(0.0)
    return scheduling


def shown(scheduling):
    page = json.loads(b"".join(usage_parts(scheduling)))
    return {one["name"]: one for one in page["nodes"]}


@pytest.mark.parametrize("case", UNREADY)
def test_no_pod_gets_the_node_and_the_reason_says_why(case):
    facts, why = UNREADY[case]
    answer = cluster(facts).filter(pod(**ASKED.get(case, {"mem": 8})), ["n1"], 0.0)
    assert (answer.nodes, answer.unresolvable) == ((), {"n1": f"node(s) {why}"})


@pytest.mark.parametrize("case", UNREADY)
def test_the_page_shows_nothing_of_it_as_free(case):
    facts, why = UNREADY[case]
    found = shown(cluster(facts))["n1"]
    assert (found["ready"], found["why_not_ready"]) == (False, why)
    assert not any(gpu["usable"] or gpu["free_memory"] or gpu["free_core"] for gpu in found["gpus"])
    assert [gpu["used_memory"] for gpu in found["gpus"]] == [0, 0]


@pytest.mark.parametrize("case", READY)
def test_a_node_that_serves_is_ready(case):
    scheduling = cluster(READY[case])
    found = shown(scheduling)["n1"]
    assert (found["ready"], found["why_not_ready"]) == (True, "")
    assert [gpu["free_memory"] for gpu in found["gpus"]] == [40, 40]
    assert scheduling.filter(pod(mem=8), ["n1"], 0.0).nodes == ("n1",)


def test_an_agent_that_is_not_ready_and_still_offers_units_is_shown_and_gets_pods():
    """An operator may have switched off the isolation that the mode promises. kube-scheduler sees the amounts."""
    down = [condition("Ready", "True"), condition("GPUAgentReady", "False", "IsolationDisabled")]
    scheduling = cluster(node("n1", conditions=down, mem=80))
    found = shown(scheduling)["n1"]
    assert (found["ready"], found["why_not_ready"]) == (False, "had a GPU agent that was not ready: IsolationDisabled")
    assert [gpu["free_memory"] for gpu in found["gpus"]] == [0, 0]
    assert scheduling.filter(pod(mem=8), ["n1"], 0.0).nodes == ("n1",)
    assert sorted(gpu["used_memory"] for gpu in shown(scheduling)["n1"]["gpus"]) == [0, 8]


def test_the_page_knows_mode_model_and_allocatable():
    found = shown(cluster(node("n1", mem=80), node("n2", WHOLE, whole=2)))
    assert [found[name]["mode"] for name in ("n1", "n2")] == ["cgpu", "topology"]
    assert [found[name]["model"] for name in ("n1", "n2")] == ["Tesla-T4"] * 2
    assert [found[name]["allocatable"] for name in ("n1", "n2")] == [{GPU_MEM: 80}, {GPU_WHOLE: 2}]


@pytest.mark.parametrize("case", ["kubelet is silent", "whole GPUs are at 0"])
def test_a_job_is_not_planned_on_it(case):
    unready = {
        "kubelet is silent": node("n1", WHOLE, [condition("Ready", "Unknown")], whole=2),
        "whole GPUs are at 0": node("n1", WHOLE, whole=0),
    }
    scheduling = cluster(unready[case], node("n2", WHOLE, whole=2))
    members = [pod(whole=2, labels={JOB_LABEL: "j", REPLICAS_LABEL: "2"}) for _ in range(2)]
    for member in members:
        scheduling.pod_seen(member, 0.0)
    for member in members:
        assert scheduling.filter(member, ["n1", "n2"], 0.0).nodes == ()
    assert len(scheduling.reservations) == 0
    scheduling.node_seen(node("n1", WHOLE, whole=2))
    scheduling.tick(1.0)
    assert {scheduling.filter(member, ["n1", "n2"], 1.0).nodes for member in members} == {("n1",), ("n2",)}


def test_nothing_of_it_counts_as_scattered():
    """Each node has 40 units on a GPU. Only one of them can give them, so that there are no 60 in all."""
    scheduling = cluster(node("n1", [NodeGpu(0, 40)], [condition("Ready", "False")]), node("n2", [NodeGpu(0, 40)]))
    answer = scheduling.filter(pod(mem=39, gpu_count=3), ["n1", "n2"], 0.0)
    assert answer.cause != "fragmented"
    assert scheduling.actions() == []
    assert scheduling.usage.in_all()[0].memory == 40


def test_a_pod_that_waits_is_tried_again_when_the_node_is_back():
    scheduling = cluster(node("n1", mem=0))
    waits = pod(mem=8)
    scheduling.pod_seen(waits, 0.0)
    assert not scheduling.filter(waits, ["n1"], 0.0).nodes
    scheduling.tick(1.0)
    assert scheduling.actions() == []
    scheduling.node_seen(node("n1", mem=80))
    scheduling.tick(2.0)
    assert [action.uid for action in scheduling.actions()] == [waits.uid]


def test_a_pod_with_a_reservation_is_not_bound_while_the_agent_restarts():
    """Kubelet would fail it at admission."""
    scheduling = cluster(node("n1", mem=80))
    asked = pod(mem=8)
    scheduling.pod_seen(asked, 0.0)
    assert scheduling.filter(asked, ["n1"], 0.0).nodes == ("n1",)
    scheduling.node_seen(node("n1", mem=0))
    assert "taken by now" in scheduling.bind(asked.uid, "n1", 0.1, 1).reason
    scheduling.node_seen(node("n1", mem=80))
    assert scheduling.filter(asked, ["n1"], 1.0).nodes == ("n1",)
    assert scheduling.bind(asked.uid, "n1", 1.1, 1).node == "n1"


@pytest.mark.parametrize("conditions", [3, {}, [None, 3, {"type": ["Ready"]}], [{"type": "Ready", "status": {}}]])
def test_conditions_of_another_shape_raise_nothing(conditions):
    published = node_gpus_text(NodeGpus(tuple(SHARED)))
    metadata = {"name": "n1", "annotations": {NODE_GPUS_ANNOTATION: published}}
    assert node_facts({"metadata": metadata, "status": {"conditions": conditions}}).gpus.gpus
