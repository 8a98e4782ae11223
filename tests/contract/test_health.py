"""An unhealthy GPU leaves the lists that kubelet gets at once, and returns by itself when it is healthy."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.nvml.binding.nvml import Nvml
from standin.waiting import PATIENCE_S
from tests.contract.harness import MEM, VERSIONS, Node, box, ids_on, observe, pod, wait_for

MakeNode = Callable[..., Node]


def watched(one: Node, **settings: Any) -> None:
    """An agent in mode share that hears faults of both GPUs."""
    agent = one.run(**settings)
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)


def test_an_xid_after_which_the_driver_asks_for_nothing_costs_no_gpu(node: MakeNode) -> None:
    """XID 94 (a contained memory error) on a driver that asks for no recovery: no list changes, and an Event says so."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    watched(one)
    count = len(one.kubelet.lists(MEM))
    assert one.simulator.xid(0, 94) == 1
    assert one.event("HarmlessXID", one.uuids[0])
    assert len(one.kubelet.lists(MEM)) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gpu_that_the_driver_wants_reset_is_unhealthy_until_it_does_not(node: MakeNode, version: str) -> None:
    """XID 95 and action 1: Unhealthy; action 0: Healthy again with the same ids, and Events of both."""
    one = node(version, box(2, 24), labels={MODE_LABEL: "share"})
    watched(one, settle=0.2)
    ids = one.ids(MEM).keys()
    one.simulator.xid(0, 95)
    one.offers(mem=24)
    assert one.event("GPUUnhealthy", "XID 95; the driver asks to reset the GPU")
    one.simulator.action(0, 0)
    one.offers(mem=48)
    assert one.ids(MEM).keys() == ids
    assert one.event("GPURecovered", one.uuids[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gpu_that_needs_a_reset_is_never_offered_by_an_agent_that_starts(
    node: MakeNode, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Action 1 since before the start, and a driver that takes its time to say so: the first list that has the GPU's
    units has them Unhealthy."""
    ask = Nvml.recovery_action
    monkeypatch.setattr(Nvml, "recovery_action", lambda *args: (threading.Event().wait(0.3), ask(*args))[1])
    one = node(version, box(2, 24))
    one.simulator.action(0, 1)
    agent = one.run()
    one.offers(mem=24)  # the other's answer takes as long: it is Healthy as soon as it has come
    one.stop(agent)
    shown = {
        health for found in one.kubelet.lists(MEM) for i, health in found.health.items() if ids_on(one.uuids[0], [i])
    }
    assert shown == {"Unhealthy"}


def test_the_pod_that_holds_a_gpu_gets_an_event_when_it_is_fenced(node: MakeNode) -> None:
    """The fence file names the GPU: Events on the node and on the pod, GPUFenced and GPUUnfenced; the pod lives on."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    watched(one)
    asked = one.bind(pod("p", {MEM: 6}))
    assert one.kubelet.admit(asked)
    one.kubelet.start_container(asked, "c0")
    wait_for(lambda: one.agents[0].state.living_holdings)
    one.fence_file.parent.mkdir(exist_ok=True)
    one.fence_file.write_text('{"index": ["0"]}')
    assert one.event("GPUFenced", "which this pod holds")["involvedObject"]["name"] == "p"
    one.offers(mem=24)
    one.fence_file.unlink()
    assert one.event("GPUUnfenced", "which this pod holds")["involvedObject"]["name"] == "p"
    one.offers(mem=48)


def test_an_xid_reaches_kubelet_although_the_driver_hangs(node: MakeNode) -> None:
    """The query about the recovery action does not return: the XID's class decides."""
    one = node("1.36", box(2, 24))
    watched(one)
    one.simulator.hang("nvmlDeviceGetFieldValues", 0)
    one.simulator.xid(0, 79)
    one.offers(mem=24)


def test_a_lost_gpu_returns(node: MakeNode) -> None:
    """Lost and restored: back after the settle time without a restart of the agent."""
    one = node("1.36", box(2, 24))
    watched(one, settle=0.2)
    one.simulator.lose(0)
    one.offers(mem=24)
    one.simulator.restore(0)
    one.offers(mem=48)


def test_a_gpu_that_is_lost_without_a_word_leaves_the_list(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """No XID, and no wait for events fails: only calls about the GPU show it. The log tells it once."""
    one = node("1.36", box(2, 24))
    watched(one, settle=0.2)
    one.simulator.lose(0, silent=True)
    one.offers(mem=24)
    one.simulator.restore(0)
    one.offers(mem=48)
    assert sum("fell off the bus" in str(getattr(record, "error", "")) for record in caplog.records) == 1


def test_an_xid_that_any_waiter_receives_costs_its_own_gpu(node: MakeNode) -> None:
    """XID 79 of GPU 1, which the driver hands to a waiter of GPU 0: GPU 1 is Unhealthy, GPU 0 stays."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    watched(one)
    one.simulator.xid(1, 79, any_waiter=True)
    one.offers(mem=24)
    healthy = [i for i, health in one.kubelet.lists(MEM)[-1].health.items() if health == "Healthy"]
    assert ids_on(one.uuids[0], healthy) == healthy
    assert one.event("GPUUnhealthy", one.uuids[1])


def test_an_odd_answer_about_a_gpu_costs_that_gpu_alone(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """A UUID that would be two in an environment variable, a duplicate, and back: in condition, Event and log."""
    one = node("1.36", box(4, 24), labels={MODE_LABEL: "share"})
    one.simulator.odd(2, "uuid", f"{one.uuids[0]},{one.uuids[1]}")
    agent = one.run(settle=0.2)
    one.offers(mem=72)
    words = "GPU 2 is left out: nvmlDeviceGetUUID: answered 'GPU-"
    assert one.event("GPUUnreadable", words)
    assert any(words in str(record.__dict__) for record in caplog.records)
    assert any(words in problem["message"] for problem in agent.status()["problems"])
    wait_for(lambda: any(words in c["message"] for c in one.api.node()["status"]["conditions"]))
    one.simulator.odd(2, "uuid", one.uuids[3])
    agent.nvml.reread()
    one.offers(mem=48)
    assert one.event("GPUUnhealthy", f"its UUID ({one.uuids[3]}) is also that of GPU 2")
    one.simulator.odd(2, "uuid", None)
    agent.nvml.reread()
    one.offers(mem=96)


def test_a_driver_without_recovery_actions_has_xids_judged_by_class(node: MakeNode) -> None:
    """Driver 535: XID 94 costs the settle time, XID 79 stands until the GPU was away, an ignored one costs nothing."""
    one = node("1.36", replace(box(2, 24), driver_version="535.288.01"), labels={MODE_LABEL: "share"})
    watched(one, settle=0.2, ignore_xids=frozenset({63}))
    one.simulator.xid(0, 63)
    assert one.event("HarmlessXID", "XID 63")
    one.simulator.xid(0, 94)
    one.offers(mem=24)
    one.offers(mem=48)
    one.simulator.xid(0, 79)
    one.offers(mem=24)
    observe(0.5)
    one.offers(mem=24)
    one.simulator.lose(0)
    assert one.event("GPUUnhealthy", "GPU is lost")
    one.simulator.restore(0)
    one.offers(mem=48)


def test_a_gpu_that_relapses_stays_out_longer(node: MakeNode) -> None:
    """Three illnesses in a row: the settle time doubles each time, and the lists change twice for each."""
    one = node("1.36", box(2, 24))
    watched(one, settle=0.3)
    count, took = len(one.kubelet.lists(MEM)), []
    for _ in range(3):
        one.simulator.action(0, 1)
        one.offers(mem=24)
        began = time.monotonic()
        one.simulator.action(0, 0)
        one.offers(mem=48)
        took.append(time.monotonic() - began)
    assert len(one.kubelet.lists(MEM)) == count + 6
    assert [seconds >= least for seconds, least in zip(took, (0.3, 0.6, 1.2), strict=True)] == [True] * 3


def test_a_pod_gets_events_about_the_gpu_that_it_holds(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Two pods on two GPUs: the one whose GPU becomes unhealthy and recovers gets both Events, the other none.

    The lines of the log name the pod, too: else they would repeat those about the node.
    """
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    agent = one.run(settle=0.2)
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    held = [one.kubelet.admit(one.bind(pod(name, {MEM: 20}))).containers["c0"].ids[MEM] for name in ("first", "second")]
    agent.holdings.refresh()
    wait_for(lambda: len(agent.state.living_holdings) == 2)
    unhealthy = next(n for n, uuid in enumerate(one.uuids) if ids_on(uuid, held[0]))
    one.simulator.action(unhealthy, 1)
    one.event("GPUUnhealthy", "which this pod holds")
    one.simulator.action(unhealthy, 0)
    one.offers(mem=48)

    def events() -> list[tuple[str, str]]:
        about = [(event["involvedObject"], event["reason"]) for event in one.server.events()]
        return sorted((thing["name"], reason) for thing, reason in about if thing["kind"] == "Pod")

    wait_for(lambda: events() == [("first", "GPURecovered"), ("first", "GPUUnhealthy")], what=events)
    pods = [getattr(record, "pods", "") for record in caplog.records if record.getMessage() == "GPUUnhealthy"]
    assert sorted(pods) == ["", "default/first"]


def test_metrics_name_the_last_xid_and_count_them_all(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """XID 94 twice and 31 once on GPU 0: the last, its time, and counts by number; nothing of GPU 1."""
    one = node("1.36", box(2, 24))
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    began = time.time()
    for xid in (94, 94, 31):
        one.simulator.xid(0, xid)
    gpu = f'UUID="{one.uuids[0]}",gpu="0"'
    named = f"{{{gpu}}}"
    wait_for(lambda: f"gpuagent_gpu_last_xid{named} 31.0" in agent.metrics.page().decode())
    page = agent.metrics.page().decode()
    assert f'gpuagent_gpu_xids_total{{{gpu},xid="94"}} 2.0' in page
    assert f'gpuagent_gpu_xids_total{{{gpu},xid="31"}} 1.0' in page
    at = next(line for line in page.splitlines() if line.startswith(f"gpuagent_gpu_last_xid_timestamp_seconds{named}"))
    assert float(at.rpartition(" ")[2]) == pytest.approx(began, abs=PATIENCE_S), (
        "Unix time, not that of a clock of its own"
    )
    assert one.uuids[1] not in "".join(line for line in page.splitlines() if "xid" in line)
    later = SimpleNamespace(time=lambda: time.time() + 3600.0, monotonic=time.monotonic)
    monkeypatch.setattr("gpuagent.metrics.reading.time", later)
    assert at in agent.metrics.page().decode(), "a clock that is set moves no XID"
