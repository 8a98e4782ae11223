"""Conformance checks 10 to 18: what ListAndWatch says, and when."""

import dataclasses
import time
from collections.abc import Callable

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent.agent import device_plugins, loop
from gpuagent.domain.sharing.mode import MODE_LABEL
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
    SlowReader,
    box,
    ids_on,
    key,
    observe,
    wait_for,
)

MakeNode = Callable[..., Node]

FATAL_XID = 79
ACTIVE = {"share": {MEM}, "core_mem": {MEM, CORE}, "topology": {WHOLE}}


@pytest.mark.parametrize("version", VERSIONS)
def test_10_the_first_list_comes_at_once_also_when_it_is_empty(
    node: MakeNode, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default mode, 2 GPUs: the first message of each resource comes without a change, zeroed ones with an explicit
    empty list."""
    # A busy machine may read the GPUs later than the agent waits for them.
    monkeypatch.setattr(device_plugins, "FIRST_LIST_WAIT_S", PATIENCE_S)
    one = node(version)
    one.run(mode="default", exclusive_resource=EXCLUSIVE)
    assert one.kubelet.wait(lambda: all(one.kubelet.lists(r) for r in (*ALWAYS, EXCLUSIVE)))
    firsts = {resource: one.kubelet.lists(resource)[0] for resource in (*ALWAYS, EXCLUSIVE)}
    assert {r: len(first.message.devices) for r, first in firsts.items()} == {MEM: 0, CORE: 0, WHOLE: 0, EXCLUSIVE: 2}
    assert {one.kubelet.capacity(resource) for resource in ALWAYS} == {0}


@pytest.mark.parametrize(
    ("mode", "counts"),
    [("share", {MEM: 1128}), ("core_mem", {MEM: 1128, CORE: 800}), ("topology", {WHOLE: 8})],
)
def test_11_lists_of_a_large_node_are_small(node: MakeNode, mode: str, counts: dict[str, int]) -> None:
    """8 GPUs of 141 GiB, GiB units: encoded below 100 kB; 1,128 / 800 / 8 devices by mode."""
    one = node("1.36", box(8, 141, numa=[0, 0, 0, 0, 1, 1, 1, 1]))
    one.run(Isolating(), mode=mode)
    one.offers(mem=counts.get(MEM, 0), core=counts.get(CORE, 0), whole=counts.get(WHOLE, 0))
    assert all(message.size < 100_000 for resource in ALWAYS for message in one.kubelet.lists(resource))


@pytest.mark.parametrize(("told", "nodes"), [(True, {0, 1}), (False, set())])
def test_the_numa_nodes_of_shares_are_in_the_list_unless_they_are_switched_off(
    node: MakeNode, *, told: bool, nodes: set[int]
) -> None:
    """The NUMA nodes limit kubelet's offer to one of them if its Topology Manager has such a policy."""
    one = node("1.36", box(2, 24, numa=[0, 1]), labels={MODE_LABEL: "share"})
    one.run(numa_of_shares=told)
    one.offers(mem=48)
    devices = one.kubelet.lists(MEM)[-1].message.devices
    assert {numa.ID for device in devices for numa in device.topology.nodes} == nodes


def test_12_a_unit_that_is_too_small_is_refused_and_the_others_work(node: MakeNode) -> None:
    """8 GPUs of 81,920 MiB, units of 1 MiB, core_mem: nothing above 4,000,000 bytes is sent, the reason is in problems
    and an Event and names a unit that fits, the other resource works."""
    one = node("1.36", box(8), labels={MODE_LABEL: "core_mem"})
    agent = one.run(Isolating(), memory_unit=_unit("MiB"))
    one.offers(core=800)
    assert one.event("DeviceListTooLarge", "--memory-unit to 8MiB")
    (problem,) = [p for p in agent.status()["problems"] if p["reason"] == "DeviceListTooLarge"]
    assert "655360" in problem["message"]
    one.label("topology")
    one.offers(whole=8)
    assert max(message.size for resource in ALWAYS for message in one.kubelet.lists(resource)) <= 4_000_000


def test_12_the_unit_that_the_refusal_names_fits(node: MakeNode) -> None:
    """The same node with the unit that check 12's message names: kubelet takes the list."""
    one = node("1.36", box(8, numa=[0, 0, 0, 0, 1, 1, 1, 1]))
    one.run(memory_unit=_unit("8MiB"))
    one.offers(mem=81920)
    assert one.kubelet.lists(MEM)[-1].size <= 4_000_000


def _unit(text: str) -> object:
    from gpuagent.domain.sharing.units import MemoryUnit

    return MemoryUnit.parse(text)


@pytest.mark.parametrize("mode", ["share", "cgpu", "mps", "core_mem", "topology", "default"])
def test_13_ids_are_unique_short_and_stable(node: MakeNode, mode: str) -> None:
    """All lists of a mode: ids unique over resources, 1 to 63 characters; the same after a plugin restart, with the
    GPUs in another order, and, for those that are left, with one GPU missing."""
    gpus = box(4, 16)
    one = node("1.36", gpus)

    def listed(expected: int) -> set[str]:
        resources = (*ALWAYS, EXCLUSIVE)
        before = {r: len(one.kubelet.lists(r)) for r in resources}
        agent = one.run(Isolating(), mode=mode, exclusive_resource=EXCLUSIVE)
        assert one.kubelet.wait(lambda: all(len(one.kubelet.lists(r)) > before[r] for r in resources))
        assert one.kubelet.wait(lambda: sum(len(one.ids(r)) for r in resources) == expected)
        ids = [i for r in resources for i in one.ids(r)]
        assert len(set(ids)) == len(ids)
        assert all(1 <= len(i) <= 63 for i in ids)
        one.stop(agent)
        return set(ids)

    each = {"core_mem": 116, "topology": 1, "default": 1}.get(mode, 16)
    first = listed(4 * each)
    assert listed(4 * each) == first
    for other, count in ((gpus.gpus[::-1], 4), ((gpus.gpus[0], *gpus.gpus[2:]), 3)):
        one.simulator.close()
        one.simulator = type(one.simulator)(dataclasses.replace(gpus, gpus=other))
        again = listed(count * each)
        assert again == {i for i in first if any(i.startswith(f"{key(gpu.uuid)}-") for gpu in other)}


def test_13_ids_of_all_modes_differ(node: MakeNode) -> None:
    """Ids seen over a walk through every mode: none is ever listed under two resources."""
    one = node("1.36", box(1, 8), labels={MODE_LABEL: "share"})
    one.run(Isolating(), exclusive_resource=EXCLUSIVE)
    for mode, amounts in (("share", {"mem": 8}), ("core_mem", {"mem": 8, "core": 100}), ("topology", {"whole": 1})):
        one.label(mode)
        one.offers(**amounts)
    seen: dict[str, set[str]] = {}
    for resource in (*ALWAYS, EXCLUSIVE):
        for message in one.kubelet.lists(resource):
            for device in message.message.devices:
                seen.setdefault(device.ID, set()).add(resource)
    assert all(len(resources) == 1 for resources in seen.values())


def test_14_an_idle_agent_sends_nothing(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connected and idle for 24 turns of the loop (for the check's 120 s, one each 5 s): no message after the first."""
    monkeypatch.setattr(loop, "BEAT_S", 0.05)
    one = node("1.36", labels={MODE_LABEL: "share"})
    agent = one.run()
    one.offers(mem=160)
    counts = {resource: len(one.kubelet.lists(resource)) for resource in ALWAYS}
    assert counts[CORE] == counts[WHOLE] == 1
    for _ in range(24):
        before = agent.beat_at
        wait_for(lambda: agent.beat_at > before)  # noqa: B023
        agent.holdings.refresh()
    assert {resource: len(one.kubelet.lists(resource)) for resource in ALWAYS} == counts


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ACTIVE)
def test_15_fatal_error_marks_all_units_of_that_gpu_unhealthy(node: MakeNode, version: str, mode: str) -> None:
    """2 GPUs, a fatal XID on GPU 0: one message per active resource, the same ids, all of GPU 0
    `Unhealthy`, spelled exactly, and no other."""
    one = node(version, box(2, 24))
    agent = one.run(Isolating(), mode=mode)
    active = ACTIVE[mode]
    assert one.kubelet.wait(lambda: all(len(one.kubelet.lists(r)) >= 1 for r in ALWAYS))
    wait_for(lambda: agent.nvml.health_watch_up)
    both_gpus = {MEM: 48, CORE: 200, WHOLE: 2}
    assert one.kubelet.wait(lambda: all(one.kubelet.allocatable(r) == both_gpus[r] for r in active))
    before = {resource: (len(one.kubelet.lists(resource)), one.ids(resource)) for resource in ALWAYS}
    assert one.simulator.xid(0, FATAL_XID) == 1
    assert one.kubelet.wait(lambda: all(len(one.kubelet.lists(r)) > before[r][0] for r in active))
    observe(1.5)
    for resource in ALWAYS:
        count, ids = before[resource]
        assert len(one.kubelet.lists(resource)) == count + (resource in active)
        assert one.ids(resource).keys() == ids.keys()
        unhealthy = set(ids_on(one.uuids[0], ids))
        assert {i for i, health in one.ids(resource).items() if health == "Unhealthy"} == unhealthy
        assert {i for i, health in one.ids(resource).items() if health == "Healthy"} == ids.keys() - unhealthy


@pytest.mark.parametrize("fault", ["lose", "double_bit_ecc"])
def test_15_a_lost_gpu_and_an_uncorrectable_memory_error_too(node: MakeNode, fault: str) -> None:
    """The same for a GPU that falls off the bus and for a double-bit ECC error: its neighbour keeps serving."""
    one = node("1.36", box(2, 24))
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    getattr(one.simulator, fault)(0)
    one.offers(mem=24)
    assert one.kubelet.capacity(MEM) == 48


def test_15_an_applications_own_fault_costs_no_gpu(node: MakeNode) -> None:
    """XID 31 (a program's own page fault) changes no list."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    count = len(one.kubelet.lists(MEM))
    assert one.simulator.xid(0, 31) == 1
    assert one.event("ApplicationXID", one.uuids[0])
    assert len(one.kubelet.lists(MEM)) == count


@pytest.mark.parametrize("lost_at_last", [True, False])
def test_16_flapping_health_takes_few_messages(node: MakeNode, lost_at_last: bool) -> None:
    """A GPU is lost and comes back 20 times in 1 s: at most 3 messages, and the last one is the final state.

    A GPU that is back stays Unhealthy for the settle time, here longer than the test.
    """
    one = node("1.36", box(2, 24))
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    count = len(one.kubelet.lists(MEM))
    for turn in range(20 + lost_at_last):
        (one.simulator.restore if turn % 2 else one.simulator.lose)(0)
        time.sleep(0.05)
    one.offers(mem=24)
    observe(1.5)
    assert len(one.kubelet.lists(MEM)) - count <= 3
    assert one.kubelet.allocatable(MEM) == 24


@pytest.mark.parametrize("version", VERSIONS)
def test_17_of_two_streams_one_may_end(node: MakeNode, version: str) -> None:
    """Two streams on one socket, one closes: the other keeps receiving, the agent ends none itself."""
    one = node(version, box(2, 24))
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.nvml.health_watch_up)
    first, second = one.kubelet.open_stream(MEM), one.kubelet.open_stream(MEM)
    assert first.wait(lambda: len(first.messages) == 1)
    assert second.wait(lambda: len(second.messages) == 1)
    first.close()
    one.simulator.xid(0, FATAL_XID)
    assert second.wait(lambda: len(second.messages) == 2)
    one.offers(mem=24)
    observe(1)
    assert not second.ended
    assert not one.kubelet.ended
    assert len(one.kubelet.registrations) == 3


def test_17_the_end_of_kubelets_own_stream_is_noticed_beside_others(node: MakeNode) -> None:
    """A stream of somebody else stays open on the socket and kubelet's own ends (1.36 drops the plugin then): that
    resource registers again, as in check 9."""
    one = node("1.36", box(1, 24))
    one.run()
    one.offers(mem=24)
    other = one.kubelet.open_stream(MEM)
    assert other.wait(lambda: len(other.messages) == 1)
    one.kubelet.close_connection(MEM)
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 4)
    one.offers(mem=24)


@pytest.mark.parametrize(("gib_or_unit", "pause_s"), [("64MiB", 0.1), ("GiB", 0.02)])
def test_18_a_reader_that_does_not_read_delays_no_other(node: MakeNode, gib_or_unit: str, pause_s: float) -> None:
    """A reader that does not read: 50 changes of the list meanwhile (in 5 s with a list that fills the transport's
    window of 64 KiB by itself, in 1 s with one of 40 KB; the check says 30 s), then `Allocate` is answered; reading
    then, it gets at most 3 stale lists and the newest one."""
    one = node("1.36", box(8, 192), labels={MODE_LABEL: "share"})
    agent = one.run(memory_unit=_unit(gib_or_unit))
    units = 8 * 192 * (16 if gib_or_unit == "64MiB" else 1)
    one.offers(mem=units)
    registered = one.kubelet.registrations
    slow = SlowReader(one.plugins / next(r.endpoint for r in registered if r.resource == MEM))
    ids = ids_on(one.uuids[0], one.ids(MEM))
    for turn in range(50):
        one.label("topology" if turn % 2 == 0 else "share")
        time.sleep(pause_s)
    one.caught_up(agent)  # a list of a label on the way would come while it reads, and not be a stale one
    one.offers(mem=units)
    one.allocate(MEM, ids[:2])

    def is_newest(message: dp.ListAndWatchResponse) -> bool:
        return [d.health for d in message.devices] == ["Healthy"] * units

    messages = slow.read(quiet_s=1.5, is_last=is_newest)
    assert len(messages) <= 4
    assert is_newest(messages[-1])
