"""The page that Prometheus reads, from the whole agent: it is there whatever the driver does, and costs kubelet nothing."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.simulation.driver import SimulatedDriver
from tests.contract.harness import MEM, Node, box, fetch, observe, pod, wait_for

MakeNode = Callable[..., Node]


def values(agent: Any, name: str) -> dict[str, str]:
    """What stands in a series' braces to its value."""
    lines = [line for line in fetch(agent.http_port, "/metrics")[1].splitlines() if line.startswith(f"{name}{{")]
    return {line.partition("{")[2].rpartition("}")[0]: line.rpartition(" ")[2] for line in lines}


def gpu(one: Node, number: int) -> str:
    return f'UUID="{one.uuids[number]}",gpu="{number}"'


def test_the_driver_is_asked_for_use_of_gpus_that_nobody_holds_only_when_somebody_scrapes(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    enter = SimulatedDriver.enter
    monkeypatch.setattr(
        SimulatedDriver, "enter", lambda self, name, gpu: (asked.append(name), enter(self, name, gpu))[1]
    )
    one = node("1.36", box(2, 24))
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)
    observe(0.5)
    assert not [name for name in asked if "Processes" in name]
    assert set(values(agent, "gpuagent_gpu_sample_up").values()) == {"1.0"}
    assert len([name for name in asked if name == "nvmlDeviceGetComputeRunningProcesses_v3"]) == 2
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("nvml-sample")])


def test_a_driver_that_hangs_about_use_costs_neither_the_page_nor_a_gpu_nor_a_pod(node: MakeNode) -> None:
    """Every GPU hangs when it is asked for its processes: the page says so, and pods are admitted."""
    one = node("1.36", box(2, 24), api=True, labels={MODE_LABEL: "share"})
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)
    one.simulator.hang("nvmlDeviceGetComputeRunningProcesses_v3")
    for _ in range(3):
        assert values(agent, "gpuagent_gpu_sample_up") == {gpu(one, 0): "0.0", gpu(one, 1): "0.0"}
    assert values(agent, "gpuagent_gpu_healthy") == {gpu(one, 0): "1.0", gpu(one, 1): "1.0"}
    assert values(agent, "gpuagent_gpu_memory_used_bytes") == {}
    asked = one.bind(pod("p", {MEM: 6}))
    assert one.kubelet.admit(asked)
    assert agent.status()["problems"] == []
    one.simulator.unhang()


def test_a_gpu_in_mig_mode_reports_what_it_can(node: MakeNode) -> None:
    one = node("1.36", box(2, 24))
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)
    one.simulator.mig(1, True)
    one.simulator.process(1, 4711, None)
    wait_for(lambda: gpu(one, 1) not in values(agent, "gpuagent_gpu_utilization_ratio"))
    assert gpu(one, 0) in values(agent, "gpuagent_gpu_utilization_ratio")
    assert values(agent, "gpuagent_gpu_unattributed_processes")[gpu(one, 1)] == "1.0"


def test_what_is_asked_of_the_api_server_is_counted(node: MakeNode) -> None:
    one = node("1.36", box(2, 24), api=True, labels={MODE_LABEL: "share"})
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)
    wait_for(lambda: set(values(agent, "gpuagent_watch_up").values()) == {"1.0"})
    counts = values(agent, "gpuagent_api_requests_total")
    assert (
        float(counts['verb="list",code="200"' if 'verb="list",code="200"' in counts else 'code="200",verb="list"']) >= 2
    )
    one.api.stop()
    wait_for(lambda: set(values(agent, "gpuagent_watch_up").values()) == {"0.0"})
    assert any('code="none"' in labels for labels in values(agent, "gpuagent_api_requests_total"))
    one.api.start()
    wait_for(lambda: set(values(agent, "gpuagent_watch_up").values()) == {"1.0"})
