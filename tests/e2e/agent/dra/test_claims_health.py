"""Health of claimed GPUs: taints in the slice, and the status of pods on the real kubelet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, claiming, devices, label_default, of, wait_published
from tests.e2e.agent.podannotations import event
from tests.e2e.cluster import Cluster

Json = dict[str, Any]
SHORT = "gpu.gpuagent.io/"


@pytest.fixture
def settling(make_node: Callable[..., Node], classes: None) -> Callable[..., Node]:
    def make(*flags: str) -> Node:
        node = make_node(mode="dra", flags=("--settle", "1", *flags))
        wait_published(node)
        return node

    return make


def taints(found: Json | None) -> dict[str, str]:
    """UUID to the first taint of its device: key, value and effect."""
    devices = found["spec"]["devices"] if found else []
    return {
        device["attributes"]["uuid"][
            "string"
        ]: f"{one['key'].removeprefix(SHORT)}={one.get('value', '')}:{one['effect']}"
        for device in devices
        for one in device.get("taints", [])[:1]
    }


def wait_taints(cluster: Cluster, wanted: dict[str, str]) -> None:
    cluster.client.wait(SLICES, SLICE, lambda found: taints(found) == wanted)


def shown(pod: Json) -> dict[str, tuple[str, str]]:
    """Health and message by CDI device, as kubelet shows them (ResourceHealthStatus)."""
    return {
        unit["resourceID"]: (unit["health"], unit.get("message", ""))
        for status in pod["status"].get("containerStatuses", ())
        for resource in status.get("allocatedResourcesStatus", ())
        for unit in resource["resources"]
    }


def wait_shown(node: Node, pod: str, *healths: str) -> list[str]:
    """Wait until kubelet shows these states of the pod's devices; the messages."""
    wanted = sorted(healths)
    found = node.cluster.wait_pod(pod, lambda one: sorted(health for health, _ in shown(one).values()) == wanted)
    return [message for _, message in shown(found).values()]


def wait_message(node: Node, pod: str, text: str) -> None:
    """Wait until kubelet shows the pod's only device as unhealthy, with this text in its message.

    The agent tells that there is a fault before the driver has answered what follows from it.
    """

    def says_so(stored: Json) -> bool:
        healths = [*shown(stored).values()]
        if len(healths) != 1:
            return False
        health, message = healths[0]
        return health == "Unhealthy" and text in message

    node.cluster.wait_pod(pod, says_so)


def index_of(node: Node, uuid: str) -> int:
    return next(int(gpu["index"]) for gpu in node.agent.status()["gpus"] if gpu["uuid"] == uuid)


def test_a_gpu_becomes_unhealthy_and_recovers_under_a_claim(settling: Callable[..., Node]) -> None:
    node = settling()
    node.run(claiming("holds", "share-8g"))
    (held,) = node.gpus_of("holds")
    assert wait_shown(node, "holds", "Healthy") == [""]
    before = node.cluster.container("holds")
    node.agent.inject(fault="xid", gpu=index_of(node, held), code=95)
    wait_taints(node.cluster, {held: "unhealthy=xid-95:NoSchedule"})
    wait_message(node, "holds", f"({held}) is unhealthy: XID 95; the driver asks to reset the GPU")
    node.cluster.restart_scheduler()
    node.run(claiming("elsewhere", "share-8g"))
    assert node.gpus_of("elsewhere") != [held]
    node.agent.inject(fault="action", gpu=index_of(node, held), value=0)
    wait_taints(node.cluster, {})
    wait_shown(node, "holds", "Healthy")
    assert node.cluster.container("holds") == before, "the running pod is left alone"


def test_every_gpu_of_a_claim_has_a_health_of_its_own(settling: Callable[..., Node]) -> None:
    node = settling()
    node.run(claiming("both", "two"))
    wait_shown(node, "both", "Healthy", "Healthy")
    second = node.gpus_of("both")[1]
    node.agent.inject(fault="lose", gpu=index_of(node, second))
    wait_taints(node.cluster, {second: "unhealthy=lost:NoSchedule"})
    messages = wait_shown(node, "both", "Healthy", "Unhealthy")
    assert any(second in message for message in messages)
    node.agent.inject(fault="restore", gpu=index_of(node, second))
    wait_taints(node.cluster, {})
    wait_shown(node, "both", "Healthy", "Healthy")


def test_kubelet_knows_nothing_while_the_agent_is_away(settling: Callable[..., Node]) -> None:
    node = settling()
    node.run(claiming("holds", "share-8g"))
    wait_shown(node, "holds", "Healthy")
    node.agent.kill()
    node.cluster.restart_kubelet()
    wait_shown(node, "holds", "Unknown")
    node.agent.start()
    node.agent.wait_ready()
    wait_shown(node, "holds", "Healthy")


def test_pods_are_evicted_where_the_operator_wants_it(settling: Callable[..., Node]) -> None:
    node = settling("--evict-claims")
    node.run(claiming("holds", "share-8g"))
    (held,) = node.gpus_of("holds")
    node.agent.inject(fault="xid", gpu=index_of(node, held), code=79)
    wait_taints(node.cluster, {held: "unhealthy=xid-79:NoExecute"})
    node.cluster.wait_pod_gone("holds")
    node.pods.remove("holds")


def test_a_fenced_gpu_keeps_its_claims_and_gets_no_new_ones(settling: Callable[..., Node], tmp_path: Path) -> None:
    fence = tmp_path / "fence.json"
    node = settling("--fence-file", str(fence), "--evict-claims")
    node.run(claiming("holds", "share-8g"))
    (held,) = node.gpus_of("holds")
    fence.write_text(json.dumps({"uuid": [held]}))
    wait_taints(node.cluster, {held: "fenced=:NoSchedule"})
    (message,) = wait_shown(node, "holds", "Unhealthy")
    assert "fenced by file" in message
    node.cluster.restart_scheduler()
    node.run(claiming("elsewhere", "share-8g"))
    assert node.gpus_of("elsewhere") != [held]
    fence.unlink()
    wait_taints(node.cluster, {})
    wait_shown(node, "holds", "Healthy")


def test_a_fence_is_lifted_by_a_toleration_only_for_administrators(
    settling: Callable[..., Node], tmp_path: Path, cluster: Cluster
) -> None:
    fence = tmp_path / "fence.json"
    node = settling("--fence-file", str(fence))
    tried = node.agent.status()["gpus"][3]["uuid"]
    fence.write_text(json.dumps({"uuid": [tried]}))
    wait_taints(cluster, {tried: "fenced=:NoSchedule"})
    spec = devices("gpu.gpuagent.io")
    chosen = {"cel": {"expression": f'device.attributes["gpu.gpuagent.io"].uuid == "{tried}"'}}
    tolerated = {"key": "gpu.gpuagent.io/fenced", "operator": "Exists"}
    spec["devices"]["requests"][0]["exactly"] |= {"selectors": [chosen], "tolerations": [tolerated]}
    template = of("ResourceClaimTemplate", "fenced", {"spec": spec}, "default")
    cluster.apply(template)
    node.pods.append("tries")
    cluster.create_pod(claiming("tries", "fenced"))
    event(node, "tries", "GPURefused", f"({tried}) is fenced by file")
    label_default(cluster, "true")
    try:
        cluster.wait_phase("tries", "Running")
    finally:
        label_default(cluster, None)
        cluster.api("DELETE", cluster.client.path_of(template))
    assert node.gpus_of("tries") == [tried]
