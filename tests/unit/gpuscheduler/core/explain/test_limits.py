"""Why pods with GPUs in their limits wait, in the scheduler's words, and what comes before the GPUs."""

import pytest

from tests.unit.gpuscheduler.core.api_objects import pod_object
from tests.unit.gpuscheduler.core.explain.cluster_objects import node, pod, share_gpus, why

MEM, WHOLE = "aliyun.com/gpu-mem", "aliyun.com/gpu"
ON_GPU = {"scheduler.framework.gpushare.allocation": '{"0":{"%s":%d}}'}


def of_limits(nodes, limits=None, pods=(), **given):
    return why(pod(limits=limits or {MEM: "40"}, **given), nodes=nodes, pods=pods)


def running(on, gpu, units):
    annotations = {"scheduler.framework.gpushare.allocation": f'{{"0":{{"{gpu}":{units}}}}}'}
    found = pod_object(None, {"name": "c", "resources": {"limits": {MEM: str(units)}}}, on=on, annotations=annotations)
    return found | {"status": {"phase": "Running"}}


def test_less_is_free_than_wanted():
    nodes = [node("node-1", "share", gpus=share_gpus(80, 80)), node("node-3", "share", gpus=share_gpus(24, 24))]
    pods = [running("node-1", 0, 70), running("node-1", 1, 44)]
    assert of_limits(nodes, pods=pods) == (
        "wants 40 GiB on one GPU: 1 node(s) had at most 36 GiB free on one GPU, 40 GiB wanted; "
        "1 node(s) had no GPU with 40 GiB; most free is 36 GiB, on node-1 GPU 1"
    )


def test_gpus_that_are_out_are_named():
    nodes = [node("node-1", "share", gpus=share_gpus(80, 30, usable=[1]))]
    assert of_limits(nodes) == (
        "wants 40 GiB on one GPU: 1 node(s) had no usable GPU with 40 GiB; most free is 30 GiB, on node-1 GPU 1; "
        "1 GPU is unhealthy, fenced or held in another mode (node-1 GPU 0)"
    )


def test_all_nodes_are_in_another_mode():
    text = of_limits([node("node-1", "share", gpus=share_gpus(80)), node("node-2")], {WHOLE: "2"})
    assert text == (
        "wants 2 whole GPUs on one node: 1 node(s) give no whole GPUs: their mode is share; "
        "1 node is in mode dra, which serves claims only"
    )
    assert of_limits([node("node-2")]).endswith("1 node is in mode dra, which serves claims only")
    assert of_limits([]).endswith("no node has aliyun.com/gpu-mem or aliyun.com/gpu")


def test_nodes_that_the_pod_must_not_be_on():
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    nodes = [
        node("node-1", "share", gpus=share_gpus(80), taints=[taint]),
        node("node-2", "share", gpus=share_gpus(80), unschedulable=True),
        node("node-3", "share", gpus=share_gpus(8)),
    ]
    assert of_limits(nodes) == (
        "wants 40 GiB on one GPU: 1 node(s) had no GPU with 40 GiB; 1 node(s) had taints that it does not tolerate; "
        "1 node(s) were unschedulable; most free is 8 GiB, on node-3 GPU 0"
    )


def test_room_by_now_is_said_with_kube_schedulers_words():
    text = of_limits([node("node-1", "share", gpus=share_gpus(80))], said="0/1 nodes: 1 Insufficient cpu")
    assert text == (
        "GPUs are free for it on node-1, so something else keeps it, or it is tried again soon: "
        "0/1 nodes: 1 Insufficient cpu"
    )


def test_a_request_that_no_node_can_serve():
    assert of_limits([], {"aliyun.com/gpu-count": "2"}).startswith(
        "the pod asks for aliyun.com/gpu-count in its limits"
    )
    assert of_limits([], {MEM: "2", WHOLE: "1"}).startswith("the pod asks for ")


def test_a_gate_comes_first():
    nodes = [node("node-1", "share", gpus=share_gpus(8))]
    gate = "kueue.x-k8s.io/admission"
    text = f"has scheduling gate {gate}, which only the controller that set it removes"
    assert of_limits(nodes, gates=[gate]) == text
    assert of_limits(nodes, gates=["gpuagent.io/job", gate]) == text


def test_a_job_waits_for_its_pods():
    labels = {"gpu-topology": "train", "gpu-topology-replica": "4"}
    others = [pod(name=f"rank-{n}", limits={MEM: "8"}, labels=labels, said="") for n in range(2)]
    text = of_limits([], {MEM: "8"}, pods=others, labels=labels, name="rank-0", said="")
    assert text == "job train: 2 of 4 pods are there"
    said = "job train: 2 of 4 pods are there, and 1 have scheduling gate x"
    assert of_limits([], {MEM: "8"}, pods=others, labels=labels, name="rank-0", said=said) == said
    gated = of_limits([], {MEM: "8"}, pods=others, labels=labels, name="rank-0", gates=["gpuagent.io/job"], said="")
    assert gated == "job train: 2 of 4 pods are there"


def test_what_the_scheduler_has_said_is_said_again():
    def event(reason, message, at, component="gpuscheduler"):
        return {"reason": reason, "message": message, "lastTimestamp": at, "source": {"component": component}}

    events = [
        event("WaitingForGPUs", "node(s) had no GPU with 200 GiB", "2026-01-02T00:00:00Z"),
        event("GPUsFragmented", "an older one", "2026-01-01T00:00:00Z"),
        event("NodeAvoided", "another reason", "2026-01-03T00:00:00Z"),
        event("WaitingForGPUs", "another component", "2026-01-03T00:00:00Z", "tenant"),
    ]
    assert why(pod(limits={MEM: "200"}), events=events) == "node(s) had no GPU with 200 GiB"


def test_a_scheduler_that_does_not_try_is_named():
    text = why(pod(limits={MEM: "8"}, said="", schedulerName="gpu-scheduler"), nodes=[])
    assert text.endswith("; scheduler gpu-scheduler has not tried it yet: is it running?")


@pytest.mark.parametrize("written", ["gpu-schedular", "gpuscheduler", "GPU-Scheduler"])
def test_a_mistyped_scheduler_has_the_one_that_was_meant(written):
    nodes = [node("node-1", "share", gpus=share_gpus(80))]
    text = of_limits(nodes, said="", schedulerName=written)
    assert text == (
        f"GPUs are free for it on node-1; scheduler {written} has not tried it yet: is it running, "
        "or did you mean gpu-scheduler?"
    )


def test_the_schedulers_of_pods_on_nodes_are_known():
    placed = running("node-1", 0, 8)
    placed["spec"]["schedulerName"] = "team-a-gpus"
    nodes = [node("node-1", "share", gpus=share_gpus(80))]
    text = of_limits(nodes, pods=[placed], said="", schedulerName="team-a-gpu")
    assert text.endswith("is it running, or did you mean team-a-gpus?")
    known = of_limits(nodes, pods=[placed], said="", schedulerName="team-a-gpus")
    assert known.endswith("scheduler team-a-gpus has not tried it yet: is it running?")
    # A pod on a node shows that there is such a scheduler, however much its name is like another one.
    placed["spec"]["schedulerName"] = "gpu-scheduler-2"
    other = of_limits(nodes, pods=[placed], said="", schedulerName="gpu-scheduler-2")
    assert other.endswith("scheduler gpu-scheduler-2 has not tried it yet: is it running?")


@pytest.mark.parametrize("written", ["volcano", "gang-scheduler", "my-scheduler"])
def test_another_scheduler_is_not_taken_for_a_mistake(written):
    text = of_limits([], said="", schedulerName=written)
    assert text.endswith(f"scheduler {written} has not tried it yet: is it running?")


def test_a_job_with_a_mistyped_scheduler_says_so_before_it_is_complete():
    labels = {"gpu-topology": "train", "gpu-topology-replica": "4"}
    text = of_limits([], {MEM: "8"}, labels=labels, name="rank-0", said="", schedulerName="gpu-schedular")
    assert text == (
        "job train: 1 of 4 pods are there; scheduler gpu-schedular has not tried it yet: is it running, "
        "or did you mean gpu-scheduler?"
    )


def test_the_name_of_a_scheduler_is_shown_in_one_short_line():
    text = of_limits([], said="", schedulerName="gpu\nscheduler" * 100)
    assert "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize("limits", [None, {"cpu": "4"}])
def test_a_pod_without_gpus_has_the_schedulers_words(limits):
    assert why(pod(limits=limits, said="0/3 nodes: 3 Insufficient cpu")) == "0/3 nodes: 3 Insufficient cpu"
    assert why(pod(limits=limits, said="")).startswith("asks for no GPU of this project")
