"""Pods that wait: they say why, they go on when they can, and they may evict others."""

import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.cluster import ComponentError, pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node
from tests.e2e.scheduler.pods import job, pod, why
from tests.e2e.scheduler.replica import Replica


@pytest.fixture
def allocations(make_allocations: Callable[[Iterable[Json]], Allocations]) -> Allocations:
    """One node of two GPUs with 80 units each."""
    return make_allocations([share_node("node", gpus=2)])


@pytest.fixture
def replica(allocations: Allocations, make_replica: Callable[..., Replica]) -> Replica:
    return make_replica("a")


def test_a_pod_and_the_inspect_tool_say_why_it_waits_and_it_goes_on(
    control_plane: ControlPlane, allocations: Allocations, replica: Replica
) -> None:
    """The node has 80 units free in all, and no GPU has more than 40."""
    control_plane.add_pods(pod(name, {GPU_MEM: 40}) for name in ("a", "b", "c", "d"))
    _wait_running(control_plane, "a", "b", "c", "d")
    gpus = {name: _gpu(found) for name, found in control_plane.pods.wait(lambda pods: True, 0).items()}
    first = [name for name in gpus if gpus[name] == gpus["a"]]
    second = next(name for name in gpus if name not in first)
    control_plane.delete_pods([first[0], second])
    left = control_plane.pods.wait(lambda pods: len(pods) == 2)
    # What it says first of a pod that does not fit stays as long as nothing changes.
    replica.wait_for_holders(*left)
    control_plane.add_pods([pod("large", {GPU_MEM: 60})])
    control_plane.pods.wait(
        lambda pods: "node(s) had at most 40 GiB free on one GPU, 60 GiB wanted" in why(pods, "large")
    )
    inspect = [sys.executable, "-m", "inspectcgpu", "--kubeconfig", str(control_plane.kubeconfig(pki.ADMIN))]
    shown = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout
    assert "node(s) had at most 40 GiB free on one GPU, 60 GiB wanted" in " ".join(shown.split())
    control_plane.delete_pods([first[1]])
    _wait_running(control_plane, "large")
    assert allocations.problems() == []


def test_an_event_says_why_a_pod_waits_where_kube_scheduler_sees_the_nodes_total_alone(
    control_plane: ControlPlane, allocations: Allocations, replica: Replica
) -> None:
    """The node has 160 units on two GPUs. kube-scheduler does not ask the extender about a pod of 200."""
    control_plane.add_pods([pod("huge", {GPU_MEM: 200}), *job("part", 2, {GPU_MEM: 200})[:1]])
    control_plane.pods.wait(lambda pods: "Insufficient aliyun.com/gpu-mem" in why(pods, "huge"))
    expected = {
        "huge": "node(s) had no GPU with 200 GiB",
        "part-0": "job part: 1 of 2 pods are there",
    }
    path = f"{EVENTS}?fieldSelector=reason=WaitingForGPUs"

    def told() -> dict[str, str]:
        events = control_plane.client.expect("GET", path)["items"]
        return {event["involvedObject"]["name"]: event["message"] for event in events}

    try:
        replica.extender.wait_for(lambda: told() == expected)
    except ComponentError as err:
        pods = control_plane.pods.wait(lambda _: True, 0)
        raise AssertionError(f"told: {told()}, conditions: {[why(pods, name) for name in expected]}") from err


def test_a_pod_evicts_those_of_one_gpu(control_plane: ControlPlane, allocations: Allocations, replica: Replica) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        control_plane.add_priority_class(name, value)
    names = [f"low-{n}" for n in range(8)]
    control_plane.add_pods(pod(name, {GPU_MEM: 20}, priorityClassName="low") for name in names)
    before = _wait_running(control_plane, *names)
    control_plane.add_pods([pod("high", {GPU_MEM: 60}, priorityClassName="high")])
    after = _wait_running(control_plane, "high")
    evicted = before.keys() - after.keys()
    assert len(evicted) == 3
    assert {_gpu(before[name]) for name in evicted} == {_gpu(after["high"])}
    assert allocations.problems() == []


def test_an_extender_whose_watch_hangs_catches_up(
    control_plane: ControlPlane, allocations: Allocations, replica: Replica
) -> None:
    """Until the watch goes on, both GPUs seem full to it, and kube-scheduler gets that answer."""
    control_plane.add_pods(pod(name, {GPU_MEM: 80}) for name in ("a", "b"))
    _wait_running(control_plane, "a", "b")
    replica.link.freeze()
    control_plane.delete_pods(["a"])
    control_plane.pods.wait(lambda pods: "a" not in pods)
    control_plane.add_pods([pod("late", {GPU_MEM: 80})])
    control_plane.pods.wait(lambda pods: "free on one GPU, 80 GiB wanted" in why(pods, "late"))
    replica.link.thaw()
    _wait_running(control_plane, "late")
    assert allocations.problems() == []


def test_pods_find_the_one_node_that_fits_among_many(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    """All nodes have enough units in all. kube-scheduler names about half of them, and nothing changes afterwards."""
    nodes = (share_node(f"small-{n}", gpus=8, units=8) for n in range(300))
    allocations = make_allocations([*nodes, share_node("large", gpus=1, units=80)])
    make_replica("a")
    for name in ("a", "b", "c", "d", "e", "f", "g", "h"):
        control_plane.add_pods([pod(name, {GPU_MEM: 10})])
        assert _wait_running(control_plane, name)[name]["spec"]["nodeName"] == "large"
    assert allocations.problems() == []


def _wait_running(control_plane: ControlPlane, *names: str) -> dict[str, Json]:
    return control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)
    )


def _gpu(found: Json) -> str:
    return str(found["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"])
