"""Resources in limits that no node has: mistyped names, and those of other projects."""

import pytest

from tests.unit.gpuscheduler.core.explain.cluster_objects import classes, node, pod, share_gpus, why


def with_resources(shown, resources):
    shown["status"]["capacity"] = resources
    return shown


@pytest.fixture
def nodes():
    """Two nodes that share GPUs by memory."""
    named = [node("node-1", "share", gpus=share_gpus(80)), node("node-2", "share", gpus=share_gpus(80))]
    return [with_resources(shown, {"aliyun.com/gpu-mem": "80", "aliyun.com/gpu": "0"}) for shown in named]


def asking(resource, amount="8"):
    return pod(limits={resource: amount}, said="0/2 nodes are available: 2 Insufficient")


@pytest.mark.parametrize(
    "resource",
    [
        "aliyun.com/gpu-men",
        "aliyun.com/gpu_mem",
        "aliyun.com/gpumem",
        "aliyun.com/gpu-memory",
        "aliyun.com/gpi-mem",
        "alibaba.com/gpu-mem",
        "nvidia.com/gpumem",
    ],
)
def test_a_mistyped_resource_is_named_with_what_was_meant(nodes, resource):
    assert why(asking(resource), nodes=nodes) == (
        f"asks for {resource}, which no node has; did you mean aliyun.com/gpu-mem, which 2 nodes have?"
    )


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "aliyun.com/gpu-core"])
def test_nodes_without_the_meant_resource_say_what_they_have(nodes, resource):
    assert why(asking(resource), nodes=nodes) == (
        f"asks for {resource}, which no node has; ask for aliyun.com/gpu-mem (2 nodes) instead"
    )


def test_whole_gpus_are_meant_by_the_name_of_another_plugin(nodes):
    whole = with_resources(node("node-3", "topology"), {"aliyun.com/gpu": "8"})
    assert why(asking("nvidia.com/gpu"), nodes=[*nodes, whole]).endswith(
        "did you mean aliyun.com/gpu, which 1 node has?"
    )


def test_a_class_that_serves_whole_gpus_counts_with_the_nodes_for_claims():
    served = {"nodes": [node("node-1"), node("node-2")], "device_classes": classes("aliyun.com/gpu")}
    assert why(asking("nvidia.com/gpu"), **served).endswith("did you mean aliyun.com/gpu, which 2 nodes have?")


def test_nodes_for_claims_only():
    assert why(asking("nvidia.com/gpu"), nodes=[node("node-1")]) == (
        "asks for nvidia.com/gpu, which no node has; ask for GPUs in a claim (1 node) instead"
    )


def test_a_cluster_whose_nodes_have_no_gpus():
    plain = with_resources(node("node-1", ""), {"cpu": "4"})
    assert why(asking("aliyun.com/gpu-men"), nodes=[plain]) == (
        "asks for aliyun.com/gpu-men, which no node has; did you mean aliyun.com/gpu-mem? No node has that now"
    )
    assert why(asking("nvidia.com/mig-1g.10gb"), nodes=[plain]).endswith("no node has GPUs of this project")


def test_names_that_are_right_or_may_be_right_are_left_alone(nodes):
    served = with_resources(node("node-3", "default"), {"nvidia.com/gpu": "8"})
    words = "0/2 nodes are available: 2 Insufficient"
    assert why(asking("nvidia.com/gpu"), nodes=[*nodes, served]) == words
    by_class = [{"metadata": {"name": "theirs"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}]
    assert why(asking("nvidia.com/gpu"), nodes=nodes, device_classes=by_class) == words
    assert why(asking("nvidia.com/gpu"), nodes=nodes, read={"classes": None}) == words
    assert why(asking("deviceclass.resource.kubernetes.io/gpu.example.com"), nodes=nodes) == words
    assert why(asking("example.com/fpga"), nodes=nodes) == words
    assert why(asking("aliyun.com/erdma"), nodes=nodes) == words
    assert why(asking("nvidia.com/gpu"), nodes=[]) == words, "the nodes may not have been readable"


def test_an_unhealthy_resource_is_still_there(nodes):
    ill = with_resources(node("node-3", "default"), {"nvidia.com/gpu": "8"})
    ill["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    assert "no node has" not in why(asking("nvidia.com/gpu"), nodes=[*nodes, ill])


def test_a_foreign_gate_comes_first_and_the_words_of_the_scheduler_later(nodes):
    gated = pod(limits={"aliyun.com/gpu-men": "8"}, gates=["example.com/gate"])
    assert why(gated, nodes=nodes).startswith("has scheduling gate example.com/gate")
    event = {"source": {"component": "gpuscheduler"}, "reason": "WaitingForGPUs", "message": "node(s) are full"}
    assert why(asking("aliyun.com/gpu-men"), [event], nodes=nodes).startswith("asks for aliyun.com/gpu-men")
