"""MPS's daemon apart from the agent: an upgrade of the agent leaves it, and so its clients, alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.gpus.gpu import key_of
from standin.mps import control
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import pod_manifest

MEM = "aliyun.com/gpu-mem"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A host's folder with a stand-in of MPS's control program, for the interpreter of the agent's image."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f"#!/usr/bin/python3\n{Path(control.__file__).read_text()}")
    program.chmod(0o755)
    return folder


def test_the_daemon_outlives_upgrades_of_the_agent_and_switches_of_the_mode(
    installed: Callable[..., Node], programs: Path
) -> None:
    # Sockets' paths are short.
    pipes = Path("/tmp/gpuagent-e2e-mps")
    node = installed(
        "mps",
        mps={"enabled": True, "directory": str(pipes)},
        driver={"programs": str(programs)},
        settings={"simulate": "pcie-4x-a10"},
    )
    release: Any = node.agent
    release.give_host_network("mps-control")
    node.wait_amounts(mem=4 * 22)
    node.run(pod_manifest("client", {MEM: 4}))
    env = node.cluster.exec_env("client")
    of_gpu = pipes / key_of(env["NVIDIA_VISIBLE_DEVICES"])
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(of_gpu)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4186M"
    assert Path(f"/proc/{node.cluster.container('client').pid}/root{of_gpu}/control").exists()

    (pod,) = release.pods("mps-control")
    daemon = node.cluster.container(pod["metadata"]["name"], "mps-control", release.namespace)
    before = release.pod()["metadata"]["uid"]
    release.upgrade(settings={"max-pods-per-gpu": 9}, mps={"resources": {"requests": {"cpu": "11m"}}})
    assert release.pod()["metadata"]["uid"] != before
    node.wait_amounts(mem=4 * 22)
    node.run(pod_manifest("second", {MEM: 4}))

    node.switch("share", mem=3 * 22)
    node.label(None)
    assert daemon.alive
    assert [one["metadata"]["uid"] for one in release.pods("mps-control")] == [pod["metadata"]["uid"]]
    assert node.agent.status()["mode"] == "share"
