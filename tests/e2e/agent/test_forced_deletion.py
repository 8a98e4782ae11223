"""What becomes of the units of a pod that is deleted by force. Kubelet decides it, for every device plugin."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from simworld.lifetimes import Lifetimes, Line
from simworld.recorded import RecordedNode, read_lines
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import WAIT_S, pod_manifest
from tests.e2e.cluster.recorder import Recorder
from tests.paused_process import pause_process, resume_process

BOX, ALL = "t4", 15
"""A box with one GPU, and the units of it."""


@pytest.mark.usefixtures("kubelet")
def test_kubelet_gives_its_units_away_while_its_container_runs(make_node: Callable[..., Node], tmp_path: Path) -> None:
    """Neither kubelet nor the API server names the pod meanwhile, so no device plugin can know that it is still there."""
    node = make_node(BOX, mode="share")
    node.wait_amounts(mem=ALL)
    # A restarted kubelet counts the units of pods that are gone until it has read its pods, and then it runs this one.
    node.run(pod_manifest("without-gpu", {}))
    recording = tmp_path / "looks.jsonl"
    with Recorder(node.cluster.client, recording):
        node.run(pod_manifest("former", {GPU_MEM: ALL}))
        former = node.cluster.container("former")
        runtime = former.parent()
        try:
            wait_recorded(recording, former.pod_uid)
            # It does not end, like a process that the kernel cannot kill while a driver works for it.
            pause_process(runtime)
            node.cluster.delete_pod("former", grace=0, timeout=0)
            node.pods.remove("former")
            node.run(pod_manifest("next", {GPU_MEM: ALL}))
            wait_recorded(recording, node.cluster.container("next").pod_uid)
            assert former.alive
            assert node.gpus_of("next") == [former.environment()["NVIDIA_VISIBLE_DEVICES"]]
            assert [holding.owner.pod.name for holding in node.audit()] == ["next"]
        finally:
            resume_process(runtime)
        node.cluster.wait_pod_gone("former")
        wait_line(recording, lambda line: line["kind"] == "pod" and line["uid"] == former.pod_uid and line["gone"])
    lines = list(read_lines(recording))
    assert verdict(lines, Lifetimes.of(lines)) == (1, [])
    _, broken = verdict(lines, Lifetimes())
    assert any("has two living containers" in problem for problem in broken), "without a forced deletion, it is a fault"


def wait_recorded(recording: Path, uid: str) -> None:
    """Until a look at the node has seen a container of the pod."""
    wait_line(recording, lambda line: any(row["uid"] == uid for row in line.get("started", ())))


def wait_line(recording: Path, wanted: Callable[[Line], bool]) -> None:
    """Until the recording has such a line."""
    end = time.monotonic() + WAIT_S
    while not any(map(wanted, read_lines(recording))):
        assert time.monotonic() < end, f"not recorded: {recording.read_text()[-3000:]}"
        time.sleep(0.1)


def verdict(lines: list[dict[str, object]], lifetimes: Lifetimes) -> tuple[int, list[str]]:
    """How many pods began beside one that was deleted by force, and which promises were broken."""
    node = RecordedNode("node", lifetimes)
    node.read(lines)
    return node.checked.left_behind, node.history.broken
