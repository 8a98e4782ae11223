"""What the agent writes to the API server, against the schemas of the oldest version and the newest."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpuagent.domain.reconcile.configmap import ConfigMapFacts, change
from gpuagent.domain.reconcile.desired_node import DesiredNode, node_patches
from gpuagent.kube.api.client import MERGE_PATCH, Client
from gpuagent.kube.write.event_sender import EventSender, Involved
from standin.waiting import PATIENCE_S
from tests.chart.test_render import VERSIONS, check


class Server(Client):
    """Takes everything and keeps it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.bodies.append(dict(body))
        return {}

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        raise AssertionError("nothing here is sent twice")


def events() -> list[dict[str, Any]]:
    server = Server()
    log = EventSender(server, "n1")
    log.start()
    for involved in (Involved.node("n1"), Involved.pod("ml", "web-1", "uid-1")):
        log.add(involved, "Warning", "GPUUnhealthy", "said")
    assert log.flush(PATIENCE_S)
    log.stop()
    return server.bodies


def config_maps() -> list[dict[str, Any]]:
    made = change(None, ConfigMapFacts("kube-system", "unhealthy-gpu-n1", {"a": "b"}, {"key": "text"}))
    assert made
    return [made.body]


def nodes() -> list[dict[str, Any]]:
    """Patches name some fields only, as a Node of a schema may."""
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": "said"}
    desired = DesiredNode(
        {"aliyun.accelerator/nvidia_count": "8"}, {"aliyun.com/gpu-count": "8"}, condition, "starting"
    )
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("starting", "other")]
    found = {"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"taints": taints}}
    return [
        {"apiVersion": "v1", "kind": "Node"} | one.body for one in node_patches(found, desired, "2026-11-22T20:00:00Z")
    ]


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
@pytest.mark.parametrize(("make", "count"), [(events, 2), (config_maps, 1), (nodes, 3)])
def test_the_version_knows_every_field(make: Any, count: int, version: str) -> None:
    bodies = make()
    assert len(bodies) == count
    check(version, bodies)
