"""Annotations and Events of the tests' pods."""

import time
from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.annotations import V1_UNITS
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import WAIT_S

MERGE = "application/merge-patch+json"


def written(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("annotations") or {}
    return found


def wait_written(node: Node, name: str, wanted: dict[str, str]) -> dict[str, str]:
    return written(node.cluster.wait_pod(name, lambda pod: wanted.items() <= written(pod).items()))


def annotate(node: Node, name: str, texts: Mapping[str, str | None]) -> None:
    path = f"/api/v1/namespaces/default/pods/{name}"
    node.cluster.client.expect("PATCH", path, {"metadata": {"annotations": texts}}, MERGE)


def wait_watched(node: Node, name: str) -> None:
    """The agent has heard of everything that was written on pods before: it hears of one after the other.

    `name` is of a running pod with one container, which has the V1 annotations; one is changed, and the agent puts it
    right.
    """
    units = written(node.cluster.wait_pod(name, lambda pod: V1_UNITS in written(pod)))[V1_UNITS]
    annotate(node, name, {V1_UNITS: str(int(units) + 1)})
    wait_written(node, name, {V1_UNITS: units})


def event(node: Node, name: str, reason: str, text: str = "") -> dict[str, Any]:
    """The agent's Event on the pod of that name, not on one that had it before."""
    uid, end = node.cluster.pod(name)["metadata"]["uid"], time.monotonic() + WAIT_S
    while True:
        listed = node.cluster.client.expect("GET", "/api/v1/namespaces/default/events")["items"]
        of_reason = [e for e in listed if e["reason"] == reason and text in e["message"]]
        found = [e for e in of_reason if e["involvedObject"].get("uid") == uid]
        if found:
            return dict(found[0])
        assert time.monotonic() < end, [(e["reason"], e["involvedObject"].get("name")) for e in listed]
        time.sleep(0.1)
