"""Conformance checks 36 to 39: restarts of kubelet and agent, overlap, mode switches, the end."""

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.agent import loop
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.kubelet.deviceplugin.endpoint import Endpoint
from standin.kubelet.pods import Container, StartError
from standin.waiting import PATIENCE_S
from tests.contract.harness import (
    ALWAYS,
    CORE,
    EXCLUSIVE,
    MEM,
    VERSIONS,
    WHOLE,
    Isolating,
    Node,
    box,
    ids_on,
    in_thread,
    observe,
    pod,
    terminate,
    wait_for,
)

MakeNode = Callable[..., Node]


@pytest.mark.parametrize("down_s", [0.0, 1.5])
@pytest.mark.parametrize("version", VERSIONS)
def test_36_a_new_kubelet_is_served(node: MakeNode, version: str, down_s: float) -> None:
    """Connected, 3 pods running; kubelet restarts (sockets deleted, new inode): registered and lists sent at
    the new kubelet.sock, same ids, pods admitted again, nothing held twice."""
    one = node(version, box(1, 24))
    one.run()
    one.offers(mem=24)
    pods = [pod(f"p{n}", {MEM: 4}) for n in range(3)]
    assert all(one.kubelet.admit(each) for each in pods)
    held, ids = one.kubelet.holders(MEM), set(one.ids(MEM))
    count = {resource: len(one.kubelet.lists(resource)) for resource in ALWAYS}
    one.kubelet.restart(down_s)
    assert one.kubelet.wait(lambda: all(len(one.kubelet.lists(r)) > count[r] for r in ALWAYS))
    assert set(one.kubelet.lists(MEM)[count[MEM]].health) == ids
    assert all(again for again in one.kubelet.readmit())
    assert one.kubelet.holders(MEM) == held
    assert one.kubelet.admit(pod("new", {MEM: 12}))
    assert all(len(holders) == 1 for holders in one.kubelet.holders(MEM).values())
    assert not one.kubelet.refused


@pytest.mark.parametrize("version", VERSIONS)
def test_37_a_killed_agent_comes_back_clean(node: MakeNode, version: str) -> None:
    """Connected, a pod runs; SIGKILL, then a restart: left-over sockets removed, registered, capacity never below what
    it was, allocatable 0 and then back, the pod's ids are not given out again."""
    one = node(version, box(1, 24))
    first = one.spawn("--mode", "share")
    one.offers(mem=24)
    held = one.kubelet.admit(pod("p", {MEM: 4})).containers["c0"].ids[MEM]
    left = one.sockets()
    lowest = [24]

    def offers(mem: int) -> None:
        def reached() -> bool:
            lowest.append(one.kubelet.capacity(MEM) or 0)
            return one.kubelet.allocatable(MEM) == mem

        assert one.kubelet.wait(reached)

    terminate(first, signal.SIGKILL)
    offers(0)
    assert one.sockets() == left
    one.spawn("--mode", "share")
    offers(24)
    assert min(lowest) == 24
    assert len(one.sockets()) == 3
    assert not one.sockets() & left
    again = one.kubelet.admit(pod("q", {MEM: 20}))
    assert again, again.failed
    assert not held & again.containers["c0"].ids[MEM]


@pytest.mark.parametrize("version", VERSIONS)
def test_38_an_agent_survives_the_end_of_its_predecessor(node: MakeNode, version: str) -> None:
    """Two agent processes overlap (surge rollout) and the old one ends. 1.36 drops the new one then: it notices, and is
    connected again; on the others the new one goes on."""
    one = node(version, box(1, 24))
    old = one.spawn("--mode", "share")
    one.offers(mem=24)
    agent = one.run()
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 6)
    wait_for(lambda: agent.unready_because() is None)
    terminate(old)
    assert one.kubelet.wait(lambda: len(one.kubelet.ended) >= 3)

    def connected() -> bool:
        return agent.unready_because() is None and one.kubelet.allocatable(MEM) == 24

    if version == "1.36":
        assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 9)
    assert one.kubelet.wait(connected)
    observe(1)
    assert connected()
    assert one.kubelet.admit(pod("p", {MEM: 4}))
    assert not one.kubelet.refused or version != "1.37"
    assert len(one.sockets()) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_39_modes_are_switched_without_allocating_a_gpu_twice(node: MakeNode, version: str) -> None:
    """`default` → `cgpu` → `core_mem` → `topology` → label removed, a pod of each old mode still running: after each
    only the right resources non-zero, GPUs with old pods left out; they come when the pods end; label removal keeps
    the last mode."""
    one = node(version, box(4, 10), labels={MODE_LABEL: "default"}, seed=39)
    agent = one.run(Isolating())
    one.offers()
    seen: set[str] = set()

    def admit(name: str, **limits: int) -> Any:
        names = {"mem": MEM, "core": CORE, "whole": WHOLE}
        asked = one.bind(pod(name, {names[short]: n for short, n in limits.items()}))
        outcome = one.kubelet.admit(asked)
        assert outcome, outcome.failed
        granted = outcome.containers["c0"]
        gpus = set(granted.env["NVIDIA_VISIBLE_DEVICES"].split(","))  # before 1.19, ids are counts and name no GPU
        assert len(gpus) == 1
        assert not gpus & seen, "a GPU was allocated twice"
        seen.update(gpus)
        return asked

    one.label("cgpu")
    one.offers(mem=40)
    first = admit("of-cgpu", mem=1)
    one.label("core_mem")
    one.offers(mem=30, core=300)
    one_core = 1 if version == "1.18" else 5
    if version == "1.18":  # no preferred allocation: kubelet's random pick of two resources fails more often than not
        second = None
    else:
        second = admit("of-core-mem", mem=2, core=one_core)
    one.label("topology")
    one.offers(whole=2 if second else 3)
    third = admit("of-topology", whole=1)
    page = agent.status()
    assert page["switch"]["phase"] == "waiting"
    waiting = {item["container"] for item in page["switch"]["waiting_for"]}
    assert waiting == {f"default/{each.name}[c0]" for each in (first, second) if each}
    assert one.event("ModeSwitchWaiting", "default/of-cgpu[c0]")
    one.label(None)
    assert one.event("ModeLabelRemoved", "topology")
    observe(1)
    one.offers(whole=2 if second else 3)
    one.end(first)
    one.offers(whole=3 if second else 4)
    if second:
        one.end(second)
        one.offers(whole=4)
    wait_for(lambda: agent.status()["switch"]["phase"] == "steady")
    one.end(third)
    one.stop(agent)
    again = one.run(Isolating())
    one.offers(whole=4)
    assert again.status()["mode"] == "topology"
    assert not one.kubelet.crashes


def test_39_the_whole_node_goes_back_to_the_exclusive_resource(node: MakeNode) -> None:
    """`share` → `default` with the agent serving it: whole GPUs under NVIDIA's name, but not the one a pod still
    shares."""
    one = node("1.36", box(2, 10), labels={MODE_LABEL: "share"})
    one.run(exclusive_resource=EXCLUSIVE)
    one.offers(mem=20)
    sharing = one.bind(pod("p", {MEM: 4}))
    granted = one.kubelet.admit(sharing).containers["c0"]
    (shared,) = [uuid for uuid in one.uuids if ids_on(uuid, granted.ids[MEM])]
    one.label("default")
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(EXCLUSIVE) == 1)
    assert not ids_on(shared, one.ids(EXCLUSIVE))
    one.offers()
    one.end(sharing)
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(EXCLUSIVE) == 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_39_units_of_an_init_container_alone_are_not_advertised_again(node: MakeNode, version: str) -> None:
    """Pod-resources leaves ordinary init containers out; kubelet's checkpoint does not, also after a restart."""
    one = node(version, box(1, 10), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=10)
    asked = one.bind(pod("slow-init", {}, init=[Container("first", {MEM: 4})]))
    assert one.kubelet.admit(asked)
    one.label("topology")
    assert one.kubelet.wait(lambda: one.kubelet.capacity(MEM) == 0)
    observe(1)
    one.offers()
    one.end(asked)
    one.offers(whole=1)


def test_39_a_mode_that_could_not_be_saved_is_saved_later(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state directory cannot be written when the mode is switched, later it can; then the label is removed and
    the agent restarts: the last mode in force is served."""
    monkeypatch.setattr(loop, "BEAT_S", 0.05)
    one = node("1.36", box(1, 10), labels={MODE_LABEL: "topology"})
    first = one.run()
    one.offers(whole=1)
    kept, file = one.root / "state", one.root / "state" / "mode.json"
    assert one.kubelet.wait(file.exists)
    kept.rename(one.root / "aside")
    kept.write_text("in the way")
    one.label("share")
    one.offers(mem=10)
    assert one.event("ModeNotSaved", "mode share")
    kept.unlink()
    (one.root / "aside").rename(kept)
    assert one.server.wait(lambda: "share" in file.read_text())
    assert one.server.wait(lambda: not first.status()["problems"])
    one.label(None)
    assert one.event("ModeLabelRemoved", "share")
    one.stop(first)
    one.run()
    one.offers(mem=10)


def test_39_an_unknown_label_changes_nothing_and_is_reported(node: MakeNode) -> None:
    """A label value that is no mode: the mode stays, an Event and the node condition say so."""
    one = node("1.36", box(1, 10), labels={MODE_LABEL: "share"})
    agent = one.run()
    one.offers(mem=10)
    one.label("cpgu")
    assert one.event("InvalidModeLabel", "'cpgu'")

    def condition() -> dict[str, Any]:
        conditions = one.server.node()["status"]["conditions"]
        return next((c for c in conditions if c["type"] == "GPUAgentReady"), {})

    assert one.server.wait(lambda: "'cpgu'" in condition().get("message", ""))
    assert (condition()["status"], condition()["reason"]) == ("True", "Ready"), "nothing is wrong with what is offered"
    one.offers(mem=10)
    one.label("share")
    assert one.server.wait(lambda: condition().get("status") == "True")
    assert agent.status()["mode"] == "share"


def test_39_a_mode_without_its_isolation_stays_at_zero(node: MakeNode) -> None:
    """`cgpu` without an isolation driver: 0, and the reason in an Event; `--allow-unisolated` offers it, aloud."""
    one = node("1.36", box(1, 10), labels={MODE_LABEL: "cgpu"})
    agent = one.run()
    assert one.event("IsolationMissing", "mode cgpu")
    one.offers()
    one.stop(agent)
    one.run(allow_unisolated=True)
    one.offers(mem=10)
    assert one.event("IsolationDisabled", "WITHOUT isolation")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_it_without_an_empty_list(node: MakeNode, version: str, number: int) -> None:
    """Connected; SIGTERM (SIGINT): exit code 0, own sockets gone, no empty list: capacity stays, allocatable
    is 0 by the end of the stream."""
    one = node(version, box(1, 24))
    process = one.spawn("--mode", "share")
    one.offers(mem=24)
    terminate(process, number)
    assert process.returncode == 0, one.stderr(process)
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(MEM) == 0)
    assert one.kubelet.capacity(MEM) == 24
    assert 0 not in one.sizes(MEM)
    assert not one.sockets()
    assert "Traceback" not in one.stderr(process)


def test_an_isolation_layer_that_dies_zeroes_new_offers_and_leaves_pods_alone(node: MakeNode) -> None:
    """The layer of mode cgpu dies and comes back: nothing is offered meanwhile, the condition says why, what runs runs."""
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "cgpu"})
    driver = Isolating()
    agent = one.run(driver)
    one.offers(mem=24)
    runs = one.bind(pod("runs", {MEM: 4}))
    assert one.kubelet.admit(runs)
    one.kubelet.start_container(runs, "c0")
    wait_for(lambda: driver.need.serves)
    driver.report(replace(driver.layer, problem="its module is gone"))
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(MEM) == 0)
    assert one.event("IsolationDown", "its module is gone")
    assert one.kubelet.wait(lambda: not one.ids(MEM))
    assert len(one.kubelet.holders(MEM)) == 4
    with pytest.raises(StartError, match="its module is gone"):
        one.kubelet.start_container(runs, "c0")
    driver.report(driver.layer)
    one.offers(mem=24)
    one.kubelet.start_container(runs, "c0")
    one.label("share")
    wait_for(lambda: not driver.need.serves and driver.need.in_use)
    one.end(runs)
    wait_for(lambda: not driver.need.in_use)
    one.stop(agent)


def test_stop_during_an_allocate_is_clean(node: MakeNode) -> None:
    """An Allocate is under way (isolation driver) and kubelet's allocations are about to be read when the agent stops: it waits
    for neither, and no thread dies of an exception."""
    one = node("1.36", box(1, 24))
    driver = Isolating()
    agent = one.run(driver, mode="cgpu")
    one.offers(mem=24)
    entered, leave = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    driver.on_prepare = slow
    with in_thread(lambda: one.kubelet.admit(pod("p", {MEM: 4}))):
        assert entered.wait(PATIENCE_S)
        agent.holdings.refresh()
        observe(0.2)
        one.stop(agent)
        assert agent.allocator.in_flight.now()[0] == 1, "the Allocate is still under way"
        observe(1.5)
        leave.set()
    assert one.kubelet.wait(lambda: one.kubelet.capacity(MEM) == 24)
    assert 0 not in one.sizes(MEM)


def test_stop_during_the_start_leaves_nothing_behind(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped when it has begun to start its endpoints: no thread dies of an exception, no socket is left."""
    one = node("1.36", box(1, 24))
    starting, stopping = threading.Event(), threading.Event()
    start, begin_stop = Endpoint.start, Endpoint.begin_stop

    def started(endpoint: Endpoint) -> None:
        starting.set()
        stopping.wait(0.3)  # a stop that does not wait gets ahead of the start
        start(endpoint)

    def stopped(endpoint: Endpoint) -> None:
        stopping.set()
        begin_stop(endpoint)

    monkeypatch.setattr(Endpoint, "start", started)
    monkeypatch.setattr(Endpoint, "begin_stop", stopped)
    agent = one.run()
    assert starting.wait(PATIENCE_S)
    one.stop(agent)
    wait_for(lambda: "directory-watch" not in {thread.name for thread in threading.enumerate()})
    wait_for(lambda: not one.sockets())


def test_stop_ends_with_everything_broken(node: MakeNode) -> None:
    """The driver hangs, the API server hangs, kubelet's registry is silent: SIGTERM still ends the process."""
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "share"})
    one.kubelet.hooks.never_answer = True
    one.server.pause()
    process = one.spawn("--kubeconfig", str(one.server.write_kubeconfig(one.root / "kubeconfig")), wait=False)
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 3), one.stderr(process)
    terminate(process)
    assert process.returncode == 0


def test_kubelet_calls_prestart_only_where_a_layer_has_to_be_verified(node: MakeNode) -> None:
    """In a mode without isolation a container that crashes starts again while the agent is away."""
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "share"})
    driver = Isolating()
    agent = one.run(driver)
    one.offers(mem=24)
    plain = one.bind(pod("plain", {MEM: 1}))
    assert one.kubelet.admit(plain)
    one.stop(agent)
    one.kubelet.start_container(plain, "c0")
    one.run(driver)
    one.end(plain)
    one.label("cgpu")
    assert one.kubelet.wait(lambda: (options := one.kubelet.options(MEM)) is not None and options.pre_start_required)
    one.offers(mem=24)
    isolated = one.bind(pod("isolated", {MEM: 1}))
    assert one.kubelet.admit(isolated)
    assert driver.verified == []
    one.kubelet.start_container(isolated, "c0")
    assert [str(owner) for owner in driver.verified] == ["default/isolated[c0]"]
