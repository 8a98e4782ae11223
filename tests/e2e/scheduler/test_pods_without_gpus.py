"""Pods without GPUs, whose nodes gpuscheduler scores: they leave the CPU of GPU nodes to GPU pods."""

from collections.abc import Callable, Iterable

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node
from tests.e2e.scheduler.pods import pod
from tests.e2e.scheduler.replica import Replica


@pytest.fixture
def start_replica(make_replica: Callable[..., Replica]) -> Callable[[], Replica]:
    """To be called when the nodes are there: a node that the extender does not know yet, it cannot score."""
    return lambda: make_replica("a", scores="prioritize")


def test_they_go_to_nodes_without_gpus_although_these_are_fuller(
    control_plane: ControlPlane, start_replica: Callable[[], Replica]
) -> None:
    plain = share_node("plain")
    plain["metadata"] = {"name": "plain", "labels": {"kubernetes.io/hostname": "plain"}}
    plain["status"]["allocatable"] = plain["status"]["capacity"] = {"cpu": "8", "memory": "32Gi", "pods": "20"}
    control_plane.add_nodes([share_node("gpus"), plain])
    start_replica()
    names = [f"cpu-{number}" for number in range(6)]
    control_plane.add_pods(pod(name, {"cpu": "1"}) for name in names)
    assert _nodes_of(control_plane, *names) == dict.fromkeys(names, "plain")


def test_they_go_where_gpus_are_in_use_and_a_gpu_pod_finds_the_cores_of_the_others(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    start_replica: Callable[[], Replica],
) -> None:
    """By itself, kube-scheduler prefers the emptier node."""
    allocations = make_allocations([share_node("used", gpus=2), share_node("free", gpus=2)])
    replica = start_replica()
    selector = {"kubernetes.io/hostname": "used"}
    control_plane.add_pods(pod(name, {GPU_MEM: 80, "cpu": "1"}, nodeSelector=selector) for name in ("a", "b"))
    _nodes_of(control_plane, "a", "b")
    replica.wait_for_holders("a", "b")
    names = [f"cpu-{number}" for number in range(6)]
    control_plane.add_pods(pod(name, {"cpu": "10"}) for name in names)
    assert _nodes_of(control_plane, *names) == dict.fromkeys(names, "used")
    control_plane.add_pods([pod("large", {GPU_MEM: 80, "cpu": "60"})])
    assert _nodes_of(control_plane, "large") == {"large": "free"}
    assert allocations.problems() == []


def test_they_start_while_gpuscheduler_is_away(
    control_plane: ControlPlane, start_replica: Callable[[], Replica]
) -> None:
    control_plane.add_nodes([share_node("node")])
    start_replica().extender.kill()
    control_plane.add_pods([pod("cpu", {"cpu": "1"})])
    assert _nodes_of(control_plane, "cpu") == {"cpu": "node"}


def _nodes_of(control_plane: ControlPlane, *names: str) -> dict[str, str]:
    """The nodes of these pods, once all have one."""
    pods = control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["spec"].get("nodeName") for name in names)
    )
    return {name: pods[name]["spec"]["nodeName"] for name in names}
