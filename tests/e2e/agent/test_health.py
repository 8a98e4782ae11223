"""A GPU becomes unhealthy, is fenced, and comes back, on a real kubelet: what the node offers, and the Events of its pod."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.podannotations import event
from tests.e2e.cluster import NODE_NAME, pod_manifest

MEM = "aliyun.com/gpu-mem"
CONFIG_MAP = f"/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-{NODE_NAME}"


def unhealthy_minors(node: Node) -> str | None:
    status, found = node.cluster.api("GET", CONFIG_MAP)
    return found["data"]["gpus"] if status == 200 else None


def units_are(health: str) -> Callable[[dict[str, Any]], bool]:
    """Kubelet's own word on the devices of a pod's container (ResourceHealthStatus)."""

    def so(pod: dict[str, Any]) -> bool:
        shown = [
            unit["health"]
            for status in pod["status"].get("containerStatuses", ())
            for resource in status.get("allocatedResourcesStatus", ())
            for unit in resource["resources"]
        ]
        return bool(shown) and set(shown) == {health}

    return so


def ready(node: Node) -> dict[str, Any]:
    """The node's condition GPUAgentReady."""
    conditions = node.cluster.node()["status"]["conditions"]
    return next((found for found in conditions if found["type"] == "GPUAgentReady"), {})


@pytest.mark.parametrize("error", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"])
def test_a_driver_that_goes_away_takes_all_amounts_and_gives_them_back(
    make_node: Callable[..., Node], error: str
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("holds", {MEM: 10}))
    before = node.cluster.container("holds")
    node.agent.inject(fault="driver", present=False, error=error)
    node.cluster.wait_node(lambda _: ready(node).get("reason") == "DriverUnavailable")
    node.agent.wait(lambda page: page["resources"][MEM] | {"healthy": 0, "unhealthy": 640} == page["resources"][MEM])
    node.wait_amounts()
    assert ready(node)["status"] == "False"
    assert node.agent.page("readyz") is None
    assert node.agent.page("healthz") is not None, "a restart would not help"
    node.agent.inject(fault="driver", present=True)
    node.wait_amounts(mem=640)
    node.cluster.wait_node(lambda _: ready(node)["status"] == "True")
    assert node.cluster.container("holds") == before


def test_a_gpu_falls_ill_and_recovers_under_a_running_pod(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=("--settle", "1"))
    node.wait_amounts(mem=640)
    node.run(pod_manifest("holds", {MEM: 10}))
    (held,) = node.gpus_of("holds")
    before = node.cluster.container("holds")
    gpu = next(gpu for gpu in node.agent.status()["gpus"] if gpu["uuid"] == held)
    node.agent.inject(fault="xid", gpu=gpu["index"], code=95)
    node.wait_amounts(mem=560)
    event(node, "holds", "GPUUnhealthy", "XID 95; the driver asks to reset the GPU")
    node.cluster.wait_pod("holds", units_are("Unhealthy"))
    node.agent.wait(lambda _: unhealthy_minors(node) == str(gpu["minor"]))
    assert node.cluster.node()["status"]["capacity"][MEM] == "640"
    node.run(pod_manifest("elsewhere", {MEM: 10}))
    assert node.gpus_of("elsewhere") != [held]
    node.agent.inject(fault="action", gpu=gpu["index"], value=0)
    node.wait_amounts(mem=640)
    event(node, "holds", "GPURecovered")
    node.cluster.wait_pod("holds", units_are("Healthy"))
    node.agent.wait(lambda _: unhealthy_minors(node) is None)
    assert node.cluster.container("holds") == before


def test_a_lost_gpu_that_returns_is_offered_again(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="topology", flags=("--settle", "1"))
    node.wait_amounts(gpu=8)
    node.agent.inject(fault="lose", gpu=3)
    node.wait_amounts(gpu=7)
    node.agent.inject(fault="restore", gpu=3)
    node.wait_amounts(gpu=8)


def test_a_fenced_gpu_is_left_to_the_pod_that_has_it(make_node: Callable[..., Node], tmp_path: Path) -> None:
    file = tmp_path / "etc" / "unhealthyDevices.json"
    file.parent.mkdir()
    node = make_node(mode="share", flags=("--fence-file", str(file)))
    node.wait_amounts(mem=640)
    node.run(pod_manifest("holds", {MEM: 10}))
    (held,) = node.gpus_of("holds")
    before = node.cluster.container("holds")
    file.write_text(json.dumps({"uuid": [held]}))
    node.wait_amounts(mem=560)
    event(node, "holds", "GPUFenced")
    file.write_text("{")
    node.agent.wait(lambda page: any(problem["reason"] == "FenceUnreadable" for problem in page["problems"]))
    node.wait_amounts(mem=560)
    file.unlink()
    node.wait_amounts(mem=640)
    event(node, "holds", "GPUUnfenced")
    assert node.cluster.container("holds") == before
