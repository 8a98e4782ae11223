"""What containers hold and use over time, from the whole agent: only GPUs that somebody holds are asked."""

import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpuagent.agent.agent import Agent
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.domain.usage.guarantee import shares
from gpuagent.domain.usage.idle_policy import WHEN_IDLE_LABEL
from gpuagent.nvml.usage.samples import Sampler
from gpuagent.simulation.driver import SimulatedDriver
from standin.kubelet.pods import Pod
from tests.contract.harness import MEM, WHOLE, Node, box, fetch, pod, wait_for
from tests.contract.test_metrics import values

GIB = 1 << 30
NAMED = "gpuagent_container_gpu_"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


class Shared:
    """A node in mode share whose agent reads the use of GPUs when this test says so, at times that it says."""

    def __init__(self, node: Node, agent: Agent, proc: Path) -> None:
        self.node = node
        self.agent = agent
        self.proc = proc
        self.now = 1000.0

    def run(self, name: str, units: int) -> Pod:
        bound = self.node.bind(pod(name, {MEM: units}))
        assert self.node.kubelet.admit(bound)
        owner = PodName("default", name)
        wait_for(lambda: any(holding.owner.pod == owner for holding in self.agent.state.living_holdings))
        return bound

    def uses(self, bound: Pod, pid: int, mib: int, sm: int | None = None, gpu: int = 0) -> None:
        """The pod's container has a process on the GPU."""
        self.process(f"0::/kubepods/pod{bound.uid}/{pid:064x}\n", pid, mib, sm, gpu)

    def process(self, cgroups: str, pid: int, mib: int, sm: int | None = None, gpu: int = 0) -> None:
        """A process with these cgroups is on the GPU."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroups)
        fields = ["S", *["0"] * 18, "1", "0"]
        (folder / "stat").write_text(f"{pid} (work) {' '.join(fields)}\n")
        self.node.simulator.process(gpu, pid, mib, sm=sm)

    def read(self, seconds: float) -> None:
        """Let time pass, and take a reading."""
        self.now += seconds
        self.agent.usage.read()

    def total(self, name: str, of_pod: str) -> float | None:
        """A sum of the pod's container; None if nothing of it has been known yet."""
        found = values(self.agent, f"{NAMED}{name}_total")
        totals = [float(value) for labels, value in found.items() if f'pod="{of_pod}"' in labels]
        assert len(totals) <= 1
        return totals[0] if totals else None


@pytest.fixture
def shared(node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    clock: list[Shared] = []

    def now() -> float:
        return clock[0].now if clock else 1000.0

    monkeypatch.setattr("gpuagent.agent.agent.Sampler", lambda _clock: Sampler(now, proc=tmp_path))
    one = node("1.36", box(2, 24), api=True, labels={MODE_LABEL: "share"})
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)
    # This test takes the readings.
    agent.usage.stop()
    monkeypatch.setattr(agent.usage, "_clock", now)
    clock.append(Shared(one, agent, tmp_path))
    yield clock[0]


def test_what_containers_hold_and_use_adds_up(shared: Shared) -> None:
    train = shared.run("train", 8)
    shared.run("sleeps", 4)
    shared.uses(train, 10, 6 * 1024, sm=50)
    shared.read(0)
    shared.read(10)
    shared.node.simulator.end(0, 10)
    shared.read(10)
    assert shared.total("allocated_seconds", "train") == 20
    assert shared.total("memory_allocated_byte_seconds", "train") == 20 * 8 * GIB
    assert shared.total("used_seconds", "train") == 20
    assert shared.total("busy_seconds", "train") == 10
    assert shared.total("memory_used_byte_seconds", "train") == 20 * 6 * GIB
    assert shared.total("memory_unused_byte_seconds", "train") == 20 * 2 * GIB
    assert shared.total("idle_seconds", "sleeps") == 20
    assert shared.total("memory_unused_byte_seconds", "sleeps") == 20 * 4 * GIB
    rows = {row["pod"]: row for row in shared.agent.status()["usage"]}
    assert rows["train"]["used_p95_bytes"] == 6 * GIB
    assert rows["train"]["used_bytes"] == 0
    assert rows["train"]["namespace"] == "default"
    assert rows["sleeps"]["held_bytes"] == 4 * GIB
    assert rows["sleeps"]["unused_byte_s"] == 20 * 4 * GIB


def test_the_sums_of_a_pod_that_ended_are_still_there_for_the_last_scrape(shared: Shared) -> None:
    train = shared.run("train", 8)
    shared.read(0)
    shared.node.end(train)
    wait_for(lambda: not shared.agent.state.living_holdings)
    shared.read(10)
    assert shared.total("allocated_seconds", "train") == 10
    assert shared.agent.status()["usage"] == []
    shared.read(301)
    assert values(shared.agent, f"{NAMED}allocated_seconds_total") == {}


def test_a_gpu_that_nobody_holds_is_not_asked(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    enter = SimulatedDriver.enter

    def noted(self: SimulatedDriver, name: str, gpu: object) -> int:
        if name == PROCESSES:
            asked.append(gpu.index)  # type: ignore[attr-defined]
        return enter(self, name, gpu)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedDriver, "enter", noted)
    shared.read(10)
    assert asked == []
    shared.run("train", 8)
    for _ in range(3):
        shared.read(10)
    assert asked == [0, 0, 0]


def test_the_last_hour_of_a_held_gpu_is_on_a_page(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.agent._reports, "_clock", lambda: shared.now)  # noqa: SLF001 (the time of this test)
    train = shared.run("train", 8)
    shared.uses(train, 10, 6 * 1024, sm=50)
    shared.read(0)
    shared.read(60)
    shared.node.end(train)
    wait_for(lambda: not shared.agent.state.living_holdings)
    shared.read(120)
    hour = json.loads(fetch(shared.agent.http_port, "/hour")[1])["gpus"]
    assert list(hour) == [shared.node.uuids[0]], "nobody holds the other GPU"
    (of_gpu,) = hour.values()
    assert [round(value) if value else value for value in of_gpu["memory"]] == [25, 25, None]
    assert of_gpu["busy"] == [0.0, 0.0, None]


def test_a_gpu_that_hangs_is_held_and_neither_used_nor_unused(shared: Shared) -> None:
    train = shared.run("train", 8)
    shared.uses(train, 10, 6 * 1024, sm=50)
    shared.read(0)
    shared.node.simulator.hang(PROCESSES)
    shared.read(10)
    shared.read(10)
    shared.read(10)
    shared.node.simulator.unhang()
    assert shared.total("allocated_seconds", "train") == 30
    assert shared.total("used_seconds", "train") == 10
    assert shared.total("memory_unused_byte_seconds", "train") == 10 * 2 * GIB
    assert [row["idle_s"] for row in shared.agent.status()["usage"]] == [None]


def test_a_pod_that_failed_with_its_gpu_memory_full_is_told(node: Callable[..., Node], shared: Shared) -> None:
    """In mode topology, the whole GPU is the limit."""
    shared.node.label("topology")
    shared.node.offers(whole=2)
    bound = shared.node.bind(pod("train", {WHOLE: 1}))
    assert shared.node.kubelet.admit(bound)
    wait_for(lambda: shared.agent.state.living_holdings)
    ((uuid, _),) = shares(shared.agent.state)
    shared.uses(bound, 10, 24 * 1024, gpu=shared.node.uuids.index(uuid))
    shared.read(0)
    ended = {"terminated": {"exitCode": 1, "containerID": f"containerd://{10:064x}"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "c0", "state": ended}]}
    shared.node.server.patch_pod("train", {"status": status}, subresource="status")
    wait_for(lambda: any(seen.failed_runs for seen in shared.agent.state.pods.seen))
    shared.read(10)
    message = shared.node.event("GPUMemoryExhausted")["message"]
    assert message.startswith("container c0 exited with code 1 after it had used 24.0 GiB of the 24.0 GiB")


def test_a_pod_is_not_idle_if_work_on_its_gpu_may_be_its_own(shared: Shared) -> None:
    """For example, work that it started through the node's Docker socket."""
    shared.run("trainer", 8)
    shared.uses(shared.run("other", 4), pid=11, mib=1024, sm=5)
    shared.process(f"0::/docker/{'a' * 64}\n", pid=10, mib=6 * 1024, sm=95)
    shared.node.simulator.busy(0, 95)
    for _ in range(2):
        shared.read(10)
    assert shared.total("idle_seconds", of_pod="trainer") is None
    assert shared.total("memory_unused_byte_seconds", of_pod="trainer") is None
    assert shared.total("memory_used_byte_seconds", of_pod="other") == 10 * GIB
    shared.node.simulator.end(0, 10)
    for _ in range(2):
        shared.read(10)
    assert shared.total("idle_seconds", of_pod="trainer") == 10
    assert shared.total("memory_unused_byte_seconds", of_pod="trainer") == 10 * 8 * GIB


def _hold_idle(one: Node, label: str, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Run an agent with a pod that has been idle for three hours, in a namespace with this label.

    The readings are of the last three hours. Only then is the pod looked at, at the real time.
    """
    agent = one.run(idle_policy=True)
    one.offers(mem=48)
    agent.usage.stop()
    bound = one.bind(pod("notebook", {MEM: 8}))
    assert one.kubelet.admit(bound)
    wait_for(lambda: agent.state.living_holdings)
    one.server.objects.create("namespaces", "", {"metadata": {"name": "default", "labels": {WHEN_IDLE_LABEL: label}}})
    began = time.monotonic() - 3 * 3600
    # GPUs of the simulator do not work unless a test says so.
    monkeypatch.setattr(agent.usage, "_samples", Sampler(fresh_s=math.inf).samples)
    for number in range(70):
        monkeypatch.setattr(agent.usage, "_clock", partial(float, began + 10 * number))
        agent.usage.read()
    return agent


def test_an_idle_pod_is_evicted_where_its_namespace_says_so(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node("1.36", box(2, 24), api=True, labels={MODE_LABEL: "share"})
    _hold_idle(one, "evict-after-2h", monkeypatch)
    message = one.event("GPUIdleEvicted")["message"]
    assert "namespace default has the label gpuagent.io/when-idle=evict-after-2h; it is evicted" in message
    (stored,) = one.server.pods()
    assert "deletionTimestamp" in stored["metadata"]


def test_a_mistyped_idle_policy_is_a_problem_of_the_node(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node("1.36", box(2, 24), api=True, labels={MODE_LABEL: "share"})
    agent = _hold_idle(one, "evict-after-8hours", monkeypatch)

    def reasons() -> list[str]:
        agent.usage.read()
        return [problem["reason"] for problem in agent.status()["problems"]]

    wait_for(lambda: reasons() == ["InvalidIdleLabel"], what=reasons)
    assert "namespace default (evict-after-8hours)" in one.event("InvalidIdleLabel")["message"]
    assert one.server.pods()[0]["metadata"].get("deletionTimestamp") is None
