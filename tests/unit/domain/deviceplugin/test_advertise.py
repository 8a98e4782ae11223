"""What is advertised, event by event: state in, event, state out."""

import pytest

from gpuagent.domain.deviceplugin.advertise import SETTLE_S, deadline
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MAX_LIST_BYTES, MemoryUnit
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    node_json,
    pod_json,
    unit_ids,
    uuid,
)

EXCLUSIVE = "nvidia.com/gpu"


def settle(node: NodeUnderTest, *held) -> NodeUnderTest:
    """Let a switch come to its end as far as the holdings allow."""
    return node.wait(SETTLE_S).wait(0.1).holdings(*held)


# -- what is known, and what is not ----------------------------------------------------------------------------


def test_every_resource_is_listed_from_the_start_and_empty():
    node = NodeUnderTest(Mode.SHARE)
    assert node.state.advertised.lists == {MEM: (), CORE: (), WHOLE: ()}
    assert node.inventory(*box()).state.advertised.lists == {MEM: (), CORE: (), WHOLE: ()}


def test_nothing_is_offered_before_kubelets_allocations_were_read():
    node = NodeUnderTest(Mode.SHARE).inventory(*box())
    assert node.offer(MEM) == {}
    assert node.holdings().offer(MEM) == {0: 16, 1: 16}


def test_the_order_of_inventory_and_allocations_does_not_matter():
    node = NodeUnderTest(Mode.SHARE).holdings()
    assert node.inventory(*box()).offer(MEM) == {0: 16, 1: 16}


@pytest.mark.parametrize(
    ("mode", "offers"),
    [
        (Mode.DEFAULT, {EXCLUSIVE: 1}),
        (Mode.SHARE, {MEM: 16}),
        (Mode.CGPU, {MEM: 16}),
        (Mode.MPS, {MEM: 16}),
        (Mode.CORE_MEM, {MEM: 16, CORE: 100}),
        (Mode.TOPOLOGY, {WHOLE: 1}),
    ],
)
def test_a_mode_offers_its_resources_and_the_others_are_zero_not_absent(mode, offers):
    from gpuagent.domain.sharing.mode import Resources

    node = in_force(mode, resources=Resources(EXCLUSIVE))
    assert set(node.state.advertised.lists) == {MEM, CORE, WHOLE, EXCLUSIVE}
    for resource in (MEM, CORE, WHOLE, EXCLUSIVE):
        count = offers.get(resource)
        assert node.offer(resource) == ({0: count, 1: count} if count else {})
        assert node.fenced(resource) == {}


def test_mode_default_offers_nothing_unless_configured():
    assert all(blocks == () for blocks in in_force(Mode.DEFAULT).state.advertised.lists.values())


def test_mixed_gpus_have_their_own_number_of_units():
    assert in_force(Mode.CGPU, (gpu(0, 16), gpu(1, 80), gpu(2, 24))).offer(MEM) == {0: 16, 1: 80, 2: 24}


# -- the switch ------------------------------------------------------------------------------------------------


def test_a_label_fences_the_old_units_at_once_under_the_same_ids():
    node = in_force(Mode.SHARE)
    before = node.ids(MEM)
    node.label("topology")
    assert node.state.node.mode is Mode.TOPOLOGY
    assert node.ids(MEM) == before
    assert node.fenced(MEM) == {0: 16, 1: 16}
    assert node.offer(MEM) == {}
    assert node.offer(WHOLE) == {}
    assert node.announced() == ["ModeSwitch"]


def test_old_units_leave_after_two_quiet_seconds_and_not_before():
    node = in_force(Mode.SHARE).label("topology")
    assert deadline(node.state) == SETTLE_S
    assert node.wait(SETTLE_S - 0.01).fenced(MEM) == {0: 16, 1: 16}
    node.wait(0.01)
    assert node.ids(MEM) == set()
    assert deadline(node.state) is None


def test_new_units_wait_for_a_read_of_allocations_that_began_after_the_drop():
    node = in_force(Mode.SHARE).label("topology").wait(SETTLE_S)
    assert node.offer(WHOLE) == {}
    node.wait(0.5).holdings(began=SETTLE_S - 0.1)
    assert node.offer(WHOLE) == {}, "this read may have missed the last grant"
    node.holdings(began=SETTLE_S)
    assert node.offer(WHOLE) == {0: 1, 1: 1}


def test_an_allocate_in_flight_postpones_the_drop_until_two_seconds_after_its_end():
    node = in_force(Mode.SHARE).allocate_begins().label("topology")
    assert node.wait(60).fenced(MEM) == {0: 16, 1: 16}
    node.allocate_ends()
    assert deadline(node.state) == 62
    assert node.wait(SETTLE_S - 0.01).fenced(MEM) == {0: 16, 1: 16}
    assert node.wait(0.01).ids(MEM) == set()


def test_the_last_of_several_allocates_counts():
    node = in_force(Mode.SHARE).label("topology").allocate_begins().allocate_begins()
    node.wait(1).allocate_ends()
    assert node.wait(5).fenced(MEM) == {0: 16, 1: 16}
    node.allocate_ends()
    assert node.wait(SETTLE_S - 0.1).fenced(MEM) == {0: 16, 1: 16}
    assert node.wait(0.1).ids(MEM) == set()


def test_an_allocate_that_comes_after_the_fence_postpones_the_drop_too():
    node = in_force(Mode.SHARE).label("topology").wait(1.9).allocate_begins()
    node.now += 0.05
    node.allocate_ends()
    assert node.wait(1.9).fenced(MEM) == {0: 16, 1: 16}
    assert node.wait(0.2).ids(MEM) == set()


def test_a_held_gpu_is_offered_only_when_its_pod_is_gone():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 3))
    node = settle(in_force(Mode.SHARE).holdings(old).label("topology"), old)
    assert node.offer(WHOLE) == {1: 1}
    assert node.wait(600).holdings(old).offer(WHOLE) == {1: 1}
    assert node.wait(1).holdings().offer(WHOLE) == {0: 1, 1: 1}


def test_a_pod_that_ended_holds_nothing_even_while_kubelet_still_lists_it():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 3))
    node = settle(in_force(Mode.SHARE).holdings(old).label("topology"), old)
    assert node.pods(pod_json("old", {MEM: 1}, phase="Running")).offer(WHOLE) == {1: 1}
    assert node.pods(pod_json("old", {MEM: 1}, phase="Succeeded")).offer(WHOLE) == {0: 1, 1: 1}


def test_a_pod_that_is_not_seen_at_the_api_server_still_holds_its_gpu():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 3))
    node = settle(in_force(Mode.SHARE).holdings(old).label("topology"), old)
    assert node.pods().offer(WHOLE) == {1: 1}


def test_the_switch_back_in_the_middle_lifts_the_fence():
    node = in_force(Mode.SHARE).label("topology").wait(1).label("share")
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.state.advertised.draining == ()
    node.wait(0.5).label("topology")
    assert node.wait(1.9).fenced(MEM) == {0: 16, 1: 16}, "the fence counts from the second change"
    assert node.wait(0.1).ids(MEM) == set()


def test_the_switch_back_after_the_drop_waits_for_the_allocations_too():
    node = in_force(Mode.SHARE).label("topology").wait(SETTLE_S).label("share")
    assert node.offer(MEM) == {}
    assert node.holdings().offer(MEM) == {0: 16, 1: 16}


def test_switch_back_with_new_units_sold_meanwhile_blocks_only_their_gpu():
    node = settle(in_force(Mode.SHARE).label("topology"))
    whole = holding("new", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    node = settle(node.holdings(whole).label("share"), whole)
    assert node.offer(MEM) == {1: 16}
    assert node.ids(WHOLE) == set()


def test_modes_that_sell_one_resource_do_not_mix_their_units_on_a_gpu():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0))
    node = in_force(Mode.SHARE).label("cgpu")
    assert node.fenced(MEM) == {0: 16, 1: 16}
    node = settle(node, old)
    assert node.ids(MEM) == unit_ids(1, Kind.MEMORY_CGPU, *range(16))


def test_three_modes_in_a_row_wait_for_the_first_ones_pods():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0))
    node = in_force(Mode.SHARE).holdings(old).label("cgpu").wait(1).label("core_mem")
    assert settle(node, old).offer(CORE) == {1: 100}


def test_core_and_memory_leave_together():
    node = in_force(Mode.CORE_MEM).label("topology")
    assert (node.fenced(MEM), node.fenced(CORE)) == ({0: 16, 1: 16}, {0: 100, 1: 100})
    assert settle(node).offer(WHOLE) == {0: 1, 1: 1}


def test_units_that_left_in_their_own_mode_are_audited_before_another_mode_sells_the_gpu():
    """A grant that kubelet's allocations as last read do not show yet must not be forgotten."""
    node = in_force(Mode.SHARE, (gpu(0), gpu(1)))
    node.allocate_begins().allocate_ends()  # a container gets units of GPU 0; kubelet's allocations are not read
    node.wait(1).inventory(gpu(0, mig=True), gpu(1)).wait(SETTLE_S)
    assert node.ids(MEM) == unit_ids(1, Kind.MEMORY_SHARE, *range(16))
    node.label("topology").wait(1).inventory(gpu(0), gpu(1))
    assert node.offer(WHOLE) == {}, "GPU 0 may be held by a container of mode share"


# -- labels ----------------------------------------------------------------------------------------------------


def test_removing_the_label_changes_nothing_and_is_reported():
    node = in_force(Mode.DEFAULT).label("share").holdings()
    node.announced()
    assert node.label(None).offer(MEM) == {0: 16, 1: 16}
    assert node.state.node.mode is Mode.SHARE
    assert node.announced() == ["ModeLabelRemoved"]


def test_an_unknown_value_changes_nothing_and_is_reported_once():
    node = in_force(Mode.DEFAULT).label("share").holdings()
    node.announced()
    node.label("shared").wait(5).label("shared")
    assert node.state.node.mode is Mode.SHARE
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.announced() == ["InvalidModeLabel"]
    assert "'shared' is not a mode; share stays in force" in node.state.node.label_problem
    assert node.label("share").state.node.label_problem is None


@pytest.mark.parametrize("value", ["", "Share", "none", "core-mem"])
def test_values_are_taken_literally(value):
    assert in_force(Mode.CGPU).label(value).state.node.mode is Mode.CGPU


def test_only_default_gives_the_node_back():
    node = settle(in_force(Mode.SHARE).label("default"))
    assert all(blocks == () for blocks in node.state.advertised.lists.values())


def test_the_remembered_mode_stays_in_force_over_a_restart_without_label():
    assert in_force(Mode.TOPOLOGY).label(None).offer(WHOLE) == {0: 1, 1: 1}


def test_a_forced_mode_beats_the_label():
    node = in_force(Mode.SHARE, forced_mode=Mode.SHARE).label("topology").wait(5)
    assert (node.state.node.mode, node.state.node.label) == (Mode.SHARE, "topology")
    assert node.offer(MEM) == {0: 16, 1: 16}


def test_placement_follows_its_label_and_removal_means_binpack():
    node = in_force(Mode.SHARE).label("share", "spread")
    assert node.state.node.placement == "spread"
    node.announced()
    assert node.label("share", "scatter").state.node.placement == "spread"
    assert node.announced() == ["InvalidPlacementLabel"]
    assert node.label("share").state.node.placement == "binpack"
    assert node.announced() == ["PlacementSwitch"]


@pytest.mark.parametrize("node_object", [{}, {"metadata": None}, {"metadata": {"labels": None}}])
def test_a_node_without_labels_is_a_node_without_a_mode_label(node_object):
    from gpuagent.domain.events import NodeSeen

    assert in_force(Mode.CGPU).send(NodeSeen(node_object, 1.0)).state.node.mode is Mode.CGPU


# -- isolation, sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "isolates", "offered"),
    [
        (Mode.SHARE, (), True),
        (Mode.TOPOLOGY, (), True),
        (Mode.CGPU, (), False),
        (Mode.MPS, (), False),
        (Mode.CORE_MEM, (), False),
        (Mode.CGPU, (Isolates.COMPUTE,), False),
        (Mode.CORE_MEM, (Isolates.MEMORY,), False),
        (Mode.CGPU, (Isolates.MEMORY,), True),
        (Mode.CORE_MEM, (Isolates.MEMORY, Isolates.COMPUTE), True),
    ],
)
def test_a_mode_without_the_isolation_it_promises_stays_at_zero(mode, isolates, offered):
    node = in_force(mode, isolates=frozenset(isolates))
    assert any(node.state.advertised.lists.values()) is offered
    trial = in_force(mode, isolates=frozenset(isolates), allow_unisolated=True)
    assert any(trial.state.advertised.lists.values())


def test_a_unit_too_small_leaves_only_its_resource_at_zero():
    node = in_force(Mode.CORE_MEM, tuple(gpu(n, 80) for n in range(8)), unit=MemoryUnit(1))
    assert node.ids(MEM) == set()
    assert len(node.offer(CORE)) == 8
    assert "DeviceListTooLarge" in node.announced()


def test_a_gpu_that_makes_the_list_too_long_fences_before_anything_is_dropped():
    node = in_force(Mode.SHARE, (gpu(0, 100),), unit=MemoryUnit(1))
    assert node.offer(MEM) == {0: 102400}
    node.inventory(gpu(0, 100), gpu(1, 100))
    assert node.fenced(MEM) == {0: 102400}
    assert node.wait(SETTLE_S).ids(MEM) == set()
    assert MAX_LIST_BYTES == 4_000_000


def test_a_gpu_smaller_than_one_unit_has_no_block():
    assert in_force(Mode.SHARE, (gpu(0, 16), gpu(1, 4)), unit=MemoryUnit(8192)).offer(MEM) == {0: 2}


# -- GPUs that come, go and fail -------------------------------------------------------------------------------


def test_a_mig_gpu_is_left_out_and_its_neighbours_serve():
    node = in_force(Mode.SHARE, (gpu(0, mig=True), gpu(1)))
    assert (node.offer(MEM), node.fenced(MEM)) == ({1: 16}, {})
    assert node.announced() == ["MIGEnabled", "MixedGPUs"]
    assert node.inventory(gpu(0), gpu(1)).offer(MEM) == {0: 16, 1: 16}


def test_an_unreadable_gpu_is_left_out_and_reported():
    node = in_force(Mode.SHARE, (gpu(0),)).inventory(gpu(0), unreadable=(UnreadableGpu(1, "GPU is lost"),))
    assert node.offer(MEM) == {0: 16}
    assert node.announced() == ["GPUUnreadable"]


@pytest.mark.parametrize("xid", [48, 62, 74, 79, 95, 119, 140])
def test_an_unhealthy_gpu_has_all_its_ids_unhealthy_and_its_neighbours_serve(xid):
    from gpuagent.domain.events import XidRaised

    node = in_force(Mode.CORE_MEM)
    before = node.ids(MEM), node.ids(CORE)
    node.send(XidRaised(uuid(0), xid, 1.0))
    assert (node.ids(MEM), node.ids(CORE)) == before
    assert (node.fenced(MEM), node.fenced(CORE)) == ({0: 16}, {0: 100})
    assert (node.offer(MEM), node.offer(CORE)) == ({1: 16}, {1: 100})
    assert node.announced() == ["GPUUnhealthy"]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_applications_own_fault_never_costs_a_gpu(xid):
    from gpuagent.domain.events import XidRaised

    node = in_force(Mode.SHARE).send(XidRaised(uuid(0), xid, 1.0))
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.announced() == ["ApplicationXID"]


def test_an_xid_of_no_gpu_or_an_unknown_one_costs_none():
    from gpuagent.domain.events import XidRaised

    node = in_force(Mode.SHARE).send(XidRaised(None, 79, 1.0)).send(XidRaised(uuid(7), 79, 1.0))
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.announced() == ["XIDUntied"]
    assert node.state.health.untied_xids == {79: 1}


def test_a_lost_gpu_keeps_its_identity_and_its_neighbours_keep_theirs():
    node = in_force(Mode.SHARE, box(3))
    before = node.ids(MEM)
    node.inventory(gpu(0), gpu(2, index=1))
    assert node.ids(MEM) == before
    assert sorted(node.offer(MEM).values()) == [16, 16]
    assert [b.gpu.uuid for b in node.state.advertised.lists[MEM] if not b.healthy] == [uuid(1)]
    assert "GPUUnhealthy" in node.announced()


def test_ids_do_not_depend_on_the_order_in_which_the_driver_counts():
    shuffled = in_force(Mode.SHARE, (gpu(0, index=2), gpu(1, index=0), gpu(2, index=1)))
    assert shuffled.ids(MEM) == in_force(Mode.SHARE, box(3)).ids(MEM)


def test_a_gpu_the_driver_says_is_lost_is_unhealthy():
    from gpuagent.domain.events import GpuLost

    node = in_force(Mode.SHARE).send(GpuLost(uuid(1), "GPU is lost", 1.0))
    assert (node.offer(MEM), node.fenced(MEM)) == ({0: 16}, {1: 16})


def test_a_driver_that_does_not_answer_changes_no_list():
    from gpuagent.domain.events import DriverUnavailable

    node = in_force(Mode.SHARE)
    before = node.state.advertised.lists
    assert node.send(DriverUnavailable("hangs", 1.0)).state.advertised.lists == before
    assert node.announced() == ["DriverUnavailable"]


def test_the_number_of_units_of_a_known_gpu_does_not_change_while_the_agent_runs():
    """A larger GPU keeps its units. A smaller one has fewer than it offers, so its units leave the list."""
    node = in_force(Mode.SHARE, (gpu(0, 16),))
    assert node.inventory(gpu(0, 20)).offer(MEM) == {0: 16}
    node.inventory(gpu(0, 12))
    assert (node.offer(MEM), node.fenced(MEM)) == ({}, {0: 16})


def test_gpus_whose_uuids_begin_alike_are_all_offered():
    """Those of NVIDIA's own C mock of NVML."""
    mock = tuple(gpu(n, uuid=f"GPU-12345678-1234-1234-1234-12345678{n:04d}") for n in range(8))
    node = in_force(Mode.SHARE, mock)
    assert node.offer(MEM) == dict.fromkeys(range(8), 16)
    assert len(node.ids(MEM)) == 8 * 16
    assert node.announced() == []


SHARED = {
    "UUID": {"uuid": uuid(1)},
    "minor number": {"minor": 1},
    "PCI address": {"pci_bus_id": gpu(1).pci_bus_id},
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("what", SHARED)
def test_gpus_that_share_what_must_be_their_own_cost_no_other_in_any_order(what, order):
    four = [gpu(0), gpu(1), gpu(2), gpu(3, **SHARED[what])]
    node = in_force(Mode.SHARE, tuple(four[n] for n in order))
    assert node.offer(MEM) == {0: 16, 2: 16}
    texts = {problem.message for problem in problems(node.state) if problem.reason == "GPUUnreadable"}
    assert len(texts) == 2
    for index, other in ((1, 3), (3, 1)):
        assert any(
            text.startswith(f"GPU {index} is left out: its {what} (") and f"is also that of GPU {other} at" in text
            for text in texts
        ), texts
    assert node.announced().count("GPUUnreadable") == 2


def test_a_gpu_in_use_whose_uuid_a_second_one_reports_is_unhealthy_until_it_is_the_only_one():
    node = in_force(Mode.SHARE, (gpu(0), gpu(1))).holdings(holding("a", unit_ids(1, Kind.MEMORY_SHARE, 0)))
    twin = gpu(2, uuid=uuid(1))
    for order in ((gpu(0), gpu(1), twin), (twin, gpu(1), gpu(0))):
        node.inventory(*order)
        assert (node.offer(MEM), node.fenced(MEM)) == ({0: 16}, {1: 16})
        assert "its UUID" in node.state.health.faults[uuid(1)]


def test_two_uuids_with_one_key_are_both_left_out(monkeypatch):
    """It takes a collision of 50 bits; nothing of one GPU is counted for the other all the same."""
    monkeypatch.setattr("gpuagent.domain.gpus.gpu.key_of", lambda of: "bbbbbbbbbb" if of == uuid(0) else "aaaaaaaaaa")
    node = in_force(Mode.SHARE, (gpu(0), gpu(1), gpu(2)))
    assert node.offer(MEM) == {0: 16}
    node = in_force(Mode.SHARE, (gpu(0), gpu(1)))
    assert node.offer(MEM) == {0: 16, 1: 16}
    node.inventory(gpu(0), gpu(2))
    assert (node.offer(MEM), node.fenced(MEM)) == ({0: 16}, {1: 16}), "the ids that kubelet allocated are GPU 1's"


def test_a_gpu_that_appears_later_is_offered_at_once():
    assert in_force(Mode.SHARE, (gpu(0),)).inventory(gpu(0), gpu(1)).offer(MEM) == {0: 16, 1: 16}


def test_a_gpu_stays_unhealthy_through_a_mode_switch():
    from gpuagent.domain.events import XidRaised

    node = settle(in_force(Mode.SHARE).send(XidRaised(uuid(0), 79, 0.0)).label("topology"))
    assert (node.offer(WHOLE), node.fenced(WHOLE)) == ({1: 1}, {0: 1})


# -- the hot path ----------------------------------------------------------------------------------------------


def test_allocates_change_no_list_and_say_nothing_while_nothing_drains():
    node = in_force(Mode.SHARE)
    lists = node.state.advertised.lists
    node.announced()
    node.allocate_begins().allocate_begins().allocate_ends().allocate_ends()
    assert node.state.advertised.lists == lists
    assert (node.state.allocates.in_flight, node.announced()) == (0, [])


def test_unchanged_facts_change_nothing():
    node = in_force(Mode.DEFAULT).label("share").holdings()
    before = node.state
    node.announced()
    node.label("share").inventory(*box()).holdings().wait(0)
    assert node.state.advertised.lists == before.advertised.lists
    assert node.announced() == []


def test_allocations_that_cannot_be_read_are_reported_and_what_was_known_stays():
    from gpuagent.domain.events import HoldingsUnavailable

    node = in_force(Mode.SHARE).send(HoldingsUnavailable("UNAVAILABLE: no socket", 1.0))
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.announced() == ["PodResourcesUnavailable"]
    assert node.holdings().state.holdings.problem is None


def test_leaving_mode_default_waits_for_allocations_that_show_the_other_plugins_last_grant():
    """NVIDIA's own plugin may have allocated a GPU since kubelet's allocations were read."""
    node = in_force(Mode.DEFAULT).wait(20)
    node.label("share")
    assert node.offer(MEM) == {}, "kubelet's allocations are 20 s old"
    node.wait(0.1).holdings(holding("late", [uuid(0)], "nvidia.com/gpu"))
    assert node.offer(MEM) == {1: 16}


def test_a_gpu_that_is_read_after_the_switch_waits_for_allocations_read_after_it_too():
    """A slow driver at the start: kubelet's allocations from before the switch may miss another plugin's last grant."""
    node = NodeUnderTest(Mode.DEFAULT).holdings().wait(5).label("share").wait(1).inventory(*box())
    assert node.offer(MEM) == {}, "kubelet's allocations are from before the switch"
    assert node.wait(1).holdings().offer(MEM) == {0: 16, 1: 16}


@pytest.mark.parametrize("amount", ["2", 2])
def test_nothing_is_offered_while_another_plugin_offers_the_gpus_of_this_node(amount):
    from gpuagent.domain.events import NodeSeen

    def seen(amount):
        return NodeSeen({**node_json("share"), "status": {"allocatable": {"nvidia.com/gpu": amount}}}, 1.0)

    node = in_force(Mode.SHARE).send(seen(amount))
    assert node.fenced(MEM) == {0: 16, 1: 16}
    assert node.announced() == ["ConflictingDevicePlugin"]
    node.send(seen("0")).holdings()
    assert node.offer(MEM) == {0: 16, 1: 16}


def test_the_other_plugins_offer_is_as_it_should_be_in_mode_default():
    from gpuagent.domain.events import NodeSeen

    node = in_force(Mode.DEFAULT)
    node.send(NodeSeen({**node_json("default"), "status": {"allocatable": {"nvidia.com/gpu": "2"}}}, 1.0))
    assert node.announced() == []


def test_gpus_that_another_plugin_offered_are_audited_when_it_has_gone():
    """Its last grant may be younger than kubelet's allocations."""
    from gpuagent.domain.events import NodeSeen

    offer = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    node = in_force(Mode.SHARE).send(NodeSeen({**node_json("share"), **offer}, 0.0)).wait(SETTLE_S)
    assert node.ids(MEM) == set()
    node.wait(10).label("share")
    assert node.offer(MEM) == {}, "kubelet's allocations are 12 s old"
    node.holdings(holding("late", [uuid(1)], "nvidia.com/gpu"))
    assert node.offer(MEM) == {0: 16}


@pytest.mark.parametrize(("numa_of_shares", "listed"), [(True, 1), (False, None)])
def test_the_numa_node_of_shares_can_be_left_out_of_the_lists(numa_of_shares, listed):
    """Kubelet's Topology Manager then offers the units of all GPUs. Whole GPUs keep their NUMA nodes."""
    gpus = (gpu(0, numa_node=1), gpu(1, numa_node=1))
    for mode, resource in ((Mode.SHARE, MEM), (Mode.CORE_MEM, MEM), (Mode.CORE_MEM, CORE), (Mode.TOPOLOGY, WHOLE)):
        blocks = in_force(mode, gpus, numa_of_shares=numa_of_shares).state.advertised.lists[resource]
        assert {block.gpu.numa_node for block in blocks} == {1 if resource == WHOLE else listed}
