"""A running pod is resized on a real kubelet, and the simulated driver holds it to the new limit."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION, MEMORY_ANNOTATION
from gpuagent.host.limits_client import LimitsClient, Target
from gpuagent.simulation import boxes
from tests.e2e.agent.conftest import Node, connect_pod_resources, running_node
from tests.e2e.agent.limits.attacks import GPU, attack, attacking_pod, enter, share, wait_ready, wait_unused
from tests.e2e.agent.limits.helper import BOX, Helper
from tests.e2e.chart.agents import MERGE
from tests.e2e.cluster import WAIT_S, Cluster

ALL = len(boxes.load(BOX).gpus) * 80
PATH = "/api/v1/namespaces/default/pods/train"


@pytest.fixture
def node(
    pod_cgroups: Cluster, helper: Helper, rbac: None, device_nodes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    flags = ("--isolation", "limits", "--limits-socket", str(helper.socket), "--live-resize")
    workdir = tmp_path_factory.mktemp("resize")
    with (
        connect_pod_resources() as pod_resources,
        running_node(pod_cgroups, pod_resources, workdir, BOX, "cgpu", flags) as made,
    ):
        made.wait_amounts(mem=ALL)
        yield made
        for name in made.pods:
            made.cluster.delete_pod(name, timeout=0)
        wait_unused(helper)


def annotate(node: Node, text: str | None) -> None:
    body = {"metadata": {"annotations": {LIMIT_ANNOTATION: text}}}
    status, answer = node.cluster.api("PATCH", PATH, body, MERGE)
    assert status == 200, answer


def wait_status(node: Node, begins: str) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        _, pod = node.cluster.api("GET", PATH)
        text = str(pod["metadata"]["annotations"].get(LIMIT_STATUS_ANNOTATION))
        if text.startswith(begins):
            return
        assert time.monotonic() < end, text
        time.sleep(0.05)


def test_a_running_pod_is_resized(node: Node, helper: Helper) -> None:
    pod = node.run(attacking_pod("train", helper, attack("plain")))
    wait_ready(node, "train")
    target = Target(GPU, pod["metadata"]["uid"])
    with closing(LimitsClient(helper.socket, deadline_s=WAIT_S)) as client:

        def limit() -> int | None:
            return client.get(target).hard

        began = time.monotonic()
        annotate(node, "main=8")
        while limit() != share(8):
            assert time.monotonic() - began < WAIT_S, node.agent.status()["resizes"]
            time.sleep(0.01)
        print(f"in force after {time.monotonic() - began:.2f} s")
        enter(node, "train", attack("plain"))
        assert helper.used(GPU) == share(8)
        wait_status(node, "InForce: main=8")
        node.wait_amounts(mem=ALL - 4)

        decided = attacking_pod("large", helper, attack("nothing"), units=73)
        decided["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"0":73}}'}
        node.run(decided, phase="Failed")
        node.end("large")

        node.restart_agent(node.agent.kill)
        node.wait_amounts(mem=ALL - 4)
        assert limit() == share(8)

        annotate(node, "main=2")
        wait_status(node, "Refused: it uses")
        assert limit() == share(8)
        node.wait_amounts(mem=ALL - 4)
    node.end("train")
    node.wait_amounts(mem=ALL)
