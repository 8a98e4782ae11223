"""Isolation on the real kubelet: MPS through stand-ins of NVIDIA's programs; cGPU where it is missing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.simulation import boxes
from standin.mps.host import MpsHost
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import pod_manifest

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsHost]:
    with MpsHost() as host:
        monkeypatch.setenv("PATH", f"{host.control.parent}:/usr/bin:/bin:/usr/sbin:/sbin")
        host.write_smi({"modes": dict.fromkeys((gpu.uuid for gpu in boxes.load("dgx-a100").gpus), "Default")})
        yield host


def flags(host: MpsHost) -> tuple[str, ...]:
    return ("--mps-control", str(host.control), "--mps-pipe-dir", str(host.own))


def condition(node: Node) -> dict[str, Any]:
    found = node.cluster.node()["status"]["conditions"]
    return next((c for c in found if c["type"] == "GPUAgentReady"), {})


def running_containers(pod: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Which containers run since when: kubelet also tells the health of their devices there, which does change."""
    return [(c["containerID"], c["restartCount"], c["state"]) for c in pod["status"]["containerStatuses"]]


def test_a_core_mem_pod_starts_with_both_limits(make_node: Callable[..., Node], mps: MpsHost) -> None:
    node = make_node(mode="core_mem", flags=flags(mps))
    node.wait_amounts(mem=640, core=800)
    node.run(pod_manifest("limited", {MEM: 10, CORE: 30}))
    env = node.cluster.exec_env("limited")
    gpu = next(g for g in node.agent.status()["gpus"] if g["uuid"] == env["NVIDIA_VISIBLE_DEVICES"])
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={gpu['memory_mib'] * 10 // 80}M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(mps.of_gpu(gpu["uuid"]))
    node.audit()


def test_the_death_and_return_of_the_daemon_are_seen_on_the_node(make_node: Callable[..., Node], mps: MpsHost) -> None:
    node = make_node(mode="mps", flags=flags(mps))
    node.wait_amounts(mem=640)
    before = node.run(pod_manifest("runs-on", {MEM: 10}))
    sound = mps.control.read_text()
    mps.rewrite_control("#!/bin/sh\necho out of order >&2\nexit 1\n")
    mps.kill_all()
    node.wait_amounts()
    node.cluster.wait_node(lambda _: condition(node).get("reason") == "IsolationDown")
    assert condition(node)["status"] == "False"
    assert running_containers(node.cluster.pod("runs-on")) == running_containers(before)
    mps.rewrite_control(sound)
    node.wait_amounts(mem=640)
    node.cluster.wait_node(lambda _: condition(node).get("status") == "True")
    node.run(pod_manifest("comes-after", {MEM: 10}))
    node.audit()


def test_the_death_of_one_daemon_takes_the_amounts_of_its_gpu(make_node: Callable[..., Node], mps: MpsHost) -> None:
    node = make_node(mode="mps", flags=flags(mps))
    node.wait_amounts(mem=640)
    gpu = node.agent.status()["gpus"][0]
    pipes = mps.of_gpu(gpu["uuid"])
    mps.steer(pipes, refuse="out of order")
    mps.kill(pipes)
    node.wait_amounts(mem=560)
    node.run(pod_manifest("elsewhere", {MEM: 10}))
    assert node.cluster.exec_env("elsewhere")["NVIDIA_VISIBLE_DEVICES"] != gpu["uuid"]
    mps.steer(pipes)
    node.wait_amounts(mem=640)


def test_a_node_without_a_layer_says_what_to_install(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="cgpu")
    node.wait_amounts()
    node.cluster.wait_node(lambda _: condition(node).get("reason") == "IsolationMissing")
    message = condition(node)["message"]
    assert "gpu-isolation-installer install" in message
    assert "nvidia-cuda-mps-control" in message
