"""The node's annotation for schedulers on a real API server and kubelet: it agrees with what kubelet counts."""

from collections.abc import Callable, Mapping
from http.client import OK
from typing import Any

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpus, node_gpus
from gpuagent.domain.scheduling.node_links import Mbps, node_links
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import NODE_NAME, pod_manifest

MEM = "aliyun.com/gpu-mem"
NODE, MAPS = f"/api/v1/nodes/{NODE_NAME}", "/api/v1/namespaces/kube-system/configmaps"
MERGE = "application/merge-patch+json"
FLAGS = ("--allow-unisolated", "--settle", "1")


def published(node: dict[str, Any]) -> NodeGpus | None:
    found = node_gpus(node["metadata"].get("annotations") or {})
    return found if isinstance(found, NodeGpus) else None


def publishes(node: Node, **usable: int) -> NodeGpus:
    """Wait until the usable GPUs have these units in all: memory, core, whole."""
    wanted = {"memory": 0, "core": 0, "whole": 0} | usable

    def right(found: dict[str, Any]) -> bool:
        gpus = [gpu for gpu in (published(found) or NodeGpus(())).gpus if gpu.usable]
        return published(found) is not None and wanted == {
            part: sum(int(getattr(gpu, part)) for gpu in gpus) for part in wanted
        }

    found = published(node.cluster.wait_node(right))
    assert found is not None
    return found


def links(node: Node, found: dict[str, Any]) -> Mbps | None:
    """The links in the ConfigMap, if it belongs to what the node publishes."""
    gpus = published(found)
    status, report = node.cluster.api("GET", f"{MAPS}/{NODE_NAME}-gputopo-report")
    return node_links(report["data"], gpus) if status == OK and gpus is not None else None


def test_schedulers_and_kubelet_count_the_same_in_every_mode(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="default", flags=FLAGS)
    # An agent before this one may have left GPUs there.
    node.cluster.wait_node(lambda found: (gpus := published(found)) is not None and gpus.gpus == ())
    for mode, amounts, units in (
        ("share", {"mem": 640}, {"memory": 640}),
        ("core_mem", {"mem": 640, "core": 800}, {"memory": 640, "core": 800}),
        ("topology", {"gpu": 8}, {"whole": 8}),
    ):
        node.switch(mode, **amounts)
        assert publishes(node, **units).both is (mode == "core_mem")
    # The agent writes annotation and ConfigMap in two requests.
    node.cluster.wait_node(lambda found: (mbps := links(node, found)) is not None and list(map(len, mbps)) == [8] * 8)
    node.agent.inject(fault="xid", gpu=2, code=95)
    node.wait_amounts(gpu=7)
    publishes(node, whole=7)
    node.agent.inject(fault="action", gpu=2, value=0)
    publishes(node, whole=8)


def test_a_gpu_of_a_pod_of_the_old_mode_is_not_usable_until_the_pod_is_gone(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=FLAGS)
    node.wait_amounts(mem=640)
    node.run(pod_manifest("old", {MEM: 10}))
    (held,) = node.gpus_of("old")
    minor = next(gpu["minor"] for gpu in node.agent.status()["gpus"] if gpu["uuid"] == held)
    node.switch("topology", gpu=7)
    assert [gpu.minor for gpu in publishes(node, whole=7).gpus if not gpu.usable] == [minor]
    node.end("old")
    publishes(node, whole=8)


@pytest.mark.parametrize("text", [None, "forged"])
def test_the_annotation_is_put_back_and_one_of_another_client_stays(
    make_node: Callable[..., Node], text: str | None
) -> None:
    node = make_node(mode="share")
    # What is there may be of an agent before this one, with other settings.
    annotate_node(node, {NODE_GPUS_ANNOTATION: None})
    right = publishes(node, memory=640)
    annotate_node(node, {NODE_GPUS_ANNOTATION: text, "example.com/theirs": "x"})
    found = node.cluster.wait_node(lambda found: published(found) == right)
    assert found["metadata"]["annotations"]["example.com/theirs"] == "x"
    annotate_node(node, {"example.com/theirs": None})


def annotate_node(node: Node, texts: Mapping[str, str | None]) -> None:
    node.cluster.client.expect("PATCH", NODE, {"metadata": {"annotations": texts}}, MERGE)
