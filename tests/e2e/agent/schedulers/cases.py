"""The two steps of a scheduler, and what comes of them."""

from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import NamesOfGpus
from tests.e2e.agent.share_scheduler import NAME, AnnotationFamily, Decision, ShareScheduler

WHOLE = 80
AGENTS: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "share": ("share", (), {"mem": 640}),
    "core_mem": ("core_mem", ("--allow-unisolated",), {"mem": 640, "core": 800}),
    "topology": ("topology", (), {"gpu": 8}),
}
each_family = pytest.mark.parametrize("family", [AnnotationFamily.V1, AnnotationFamily.V2])


def agent(name: str) -> pytest.MarkDecorator:
    """The test runs with the agent of that name."""
    return pytest.mark.parametrize("shared", [name], indirect=True)


def make_scheduler(node: Node, uuids: dict[int, str] | None = None) -> ShareScheduler:
    units = 1 if node.agent.status()["mode"] == "topology" else WHOLE
    return ShareScheduler(node.cluster, gpus=8, units=units, whole=WHOLE, seed=3, uuids=uuids)


def assume(
    node: Node,
    scheduler: ShareScheduler,
    manifest: dict[str, Any],
    family: AnnotationFamily,
    on: Decision | None = None,
) -> str:
    """Make a pod for the scheduler, and have it write its decision."""
    manifest["spec"]["schedulerName"] = NAME
    name: str = manifest["metadata"]["name"]
    node.pods.append(name)
    node.cluster.create_pod(manifest)
    scheduler.assume(name, family, on)
    return name


def place(
    node: Node, scheduler: ShareScheduler, manifest: dict[str, Any], family: AnnotationFamily, on: Decision
) -> None:
    """Both steps; the pod runs."""
    name = assume(node, scheduler, manifest, family, on)
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")


def refused(node: Node, name: str) -> str:
    """Kubelet did not admit the pod: the agent's reason."""
    status = node.cluster.wait_phase(name, "Failed")["status"]
    assert status["reason"] == "UnexpectedAdmissionError", status
    return str(status["message"])


def minors(node: Node, pod: str, name: str = "main") -> set[int]:
    """The GPUs that a running container sees."""
    numbers = NamesOfGpus(node).minors
    return {numbers[uuid] for uuid in node.gpus_of(pod, name)}
