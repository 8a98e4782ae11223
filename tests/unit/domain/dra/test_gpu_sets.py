"""Sets of linked GPUs as devices: which there are, in which order, and how they are published and written."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_health import device_healths
from gpuagent.domain.dra.gpu_sets import (
    MOST_SETS,
    PART,
    SIZES,
    best_sets,
    members_of,
    offered_sets,
    ranked_sets,
    set_name,
    single_gpus_first,
)
from gpuagent.domain.dra.resource_slice import device_name, slice_specs
from gpuagent.domain.reconcile.slice_writes import slice_name, slice_writes
from gpuagent.domain.sharing.mode import Mode
from tests.unit.domain.builders import DGX1V, box, gpu, in_force, uuid
from tests.unit.domain.dra.prepared_claims import prepared

HEX = "0123456789"


def dgx1(**policy):
    node = in_force(Mode.DRA, (), **{"gpu_sets": True, **policy})
    return node.inventory(*box(8, 16), wiring=DGX1V).holdings().send(ev.SlicesSeen({}, node.now))


def minors(node, size):
    """Minor numbers of the sets of a size, in the order in which the scheduler takes them."""
    found = sorted((name, spec) for name, spec in slice_specs(node.state, "n").items() if f"-{size}-" in name)
    return [one["attributes"]["minors"]["string"].replace(",", "") for _, spec in found for one in spec["devices"]]


def order(node):
    return [device["attributes"]["minor"]["int"] for device in slice_specs(node.state, "n")[""]["devices"]]


def mbps_of(node):
    return node.state.gpus.topology.mbps


# -- which sets -----------------------------------------------------------------------------------------------------


def test_on_a_dgx1_sets_are_pairs_and_rings_of_nvlinks_and_the_whole_node():
    node = dgx1()
    assert minors(node, 2)[0] in {"03", "04", "12", "15", "23", "47", "56", "67"}, "two links"
    assert len(minors(node, 2)) == 16, "every pair with an NVLink"
    assert set(minors(node, 4)) == {"0123", "4567", "0145", "0246", "0347", "1256", "1357", "2367"}
    assert minors(node, 4)[0] in {"0123", "4567"}
    assert minors(node, 8) == ["01234567"]


def test_equal_links_make_every_set_worth_having():
    node = in_force(Mode.DRA, box(8), gpu_sets=True)
    assert [len(minors(node, size)) for size in SIZES] == [28, 70, 1]
    assert minors(node, 4)[:2] == ["0123", "4567"]


def test_gpus_far_from_each_other_are_no_set_but_where_they_are_all():
    slow = tuple(tuple(0 if i == j else 20 if i // 2 == j // 2 else 5 for j in range(4)) for i in range(4))
    assert offered_sets(slow, 2) == ((0, 1), (2, 3))
    assert offered_sets(slow, 4) == ((0, 1, 2, 3),)
    assert offered_sets(slow, 8) == ()


def test_two_boards_of_fast_links_are_no_set_of_all_sizes():
    boards = tuple(tuple(0 if i == j else 20 if i // 4 == j // 4 else 5 for j in range(12)) for i in range(12))
    assert offered_sets(boards, 8) == ()
    assert offered_sets(boards, 4) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))


def test_many_equal_sets_are_a_choice_that_fills_the_node_and_has_every_gpu():
    equal = tuple(tuple(0 if i == j else 5 for j in range(16)) for i in range(16))
    for size in SIZES:
        found = offered_sets(equal, size)
        assert len(found) == min(MOST_SETS, len([*combinations(range(16), size)]))
        whole = [tuple(range(start, start + size)) for start in range(0, 16, size)]
        assert set(whole) <= set(found)
        assert {n for some in found[len(whole) :] for n in some} == set(range(16))


@pytest.mark.parametrize("count", [0, 1, 17])
def test_nodes_too_small_or_too_large_have_no_sets(count):
    node = in_force(Mode.DRA, [gpu(n) for n in range(count)], gpu_sets=True)
    assert all(not minors(node, size) for size in SIZES)
    assert len(order(node)) == count
    assert not any("consumesCounters" in device for device in devices(node)), "there are no counters"


def test_without_the_setting_nothing_is_different():
    assert slice_specs(dgx1(gpu_sets=False).state, "n").keys() == {""}


@given(st.sets(st.integers(0, 15), min_size=2, max_size=8), st.sets(st.integers(0, 15)))
def test_the_name_of_a_set_says_which_gpus_it_has(members, others):
    known = {uuid(n) for n in members | others}
    name = set_name(uuid(n) for n in members)
    assert name == set_name(uuid(n) for n in sorted(members, reverse=True))
    if len(members) in SIZES:
        assert set(members_of(name, known)) == {uuid(n) for n in members}
        assert members_of(name, known - {uuid(min(members))}) == ()
    assert members_of(f"gpu-{HEX}", known) == ()


# -- in which order -------------------------------------------------------------------------------------------------


def test_the_first_set_is_the_best_one_of_those_that_are_free():
    node = dgx1()
    node.send(ev.ClaimsPrepared((prepared("c", gpu(0)),), node.now))
    assert minors(node, 4)[0] == "4567"
    assert order(node)[:4] == [0, *order(node)[1:4]]
    assert set(order(node)[:4]) == {0, 1, 2, 3}, "single GPUs leave the other quad whole"


def test_single_gpus_come_from_the_set_that_is_broken_already():
    node = dgx1()
    node.send(ev.ClaimsPrepared((prepared("c", gpu(5), mib=16384),), node.now))
    assert set(order(node)[:3]) == {4, 6, 7}
    assert order(node)[-1] == 5


def test_an_unhealthy_gpu_counts_as_taken():
    node = dgx1()
    node.send(ev.GpuLost(uuid(1), "fell off the bus", node.now))
    assert minors(node, 4)[0] == "4567"
    sets = slice_specs(node.state, "n")["-sets-4-0"]["devices"]
    tainted = {one["attributes"]["minors"]["string"] for one in sets if "taints" in one}
    assert tainted == {"0,1,2,3", "0,1,4,5", "1,2,5,6", "1,3,5,7"}
    assert {taint["value"] for one in sets for taint in one.get("taints", ())} == {"lost"}


speeds = st.sampled_from([5, 10, 20])


@given(st.data())
def test_the_order_is_total_and_stable_and_begins_with_a_best_set(data):
    count = data.draw(st.integers(2, 7))
    pairs = {pair: data.draw(speeds) for pair in combinations(range(count), 2)}
    mbps = tuple(tuple(pairs.get((min(i, j), max(i, j)), 0) for j in range(count)) for i in range(count))
    free = frozenset(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
    chooser = best_sets(mbps)
    assert sorted(single_gpus_first(mbps, free)) == sorted(free)
    assert single_gpus_first(mbps, free)[0] == chooser.choose(free, 1)[0]
    for size in SIZES:
        sets = offered_sets(mbps, size)
        found = ranked_sets(mbps, size, 0, free)
        assert sorted(found) == sorted(sets), "whatever is free, the sets are the same"
        assert chooser.ranked(free, sets) == [*found]
        usable = [members for members in found if free.issuperset(members)]
        assert [*found[: len(usable)]] == usable, "those that can be had come first"
        quality = [(-(chooser.weakest(some) or 0), -chooser.total(some)) for some in usable]
        assert quality == sorted(quality)
        if usable and (best := chooser.choose(free, size)) in usable:
            assert quality[0] == (-(chooser.weakest(best) or 0), -chooser.total(best))


# -- how they are published -----------------------------------------------------------------------------------------


def devices(node):
    return [device for spec in slice_specs(node.state, "n").values() for device in spec.get("devices", ())]


def test_a_set_that_a_claim_has_stays_a_device_whatever_becomes_of_its_links():
    node = dgx1()
    claim = prepared("c", *(gpu(n) for n in (0, 1, 2, 3)), mib=16384, device=set_name(uuid(n) for n in range(4)))
    node.send(ev.ClaimsPrepared((claim,), node.now))
    node.inventory(*(gpu(n, 16, mig=n == 0) for n in range(8)), wiring=DGX1V)
    (kept,) = (one for one in devices(node) if one["name"] == claim.gpus[0].device)
    (counted,) = slice_specs(node.state, "n")["-counters"]["sharedCounters"]
    assert kept["consumesCounters"][0]["counters"].keys() <= counted["counters"].keys()
    again = in_force(Mode.DRA, (), gpu_sets=False).inventory(*box(2, 16)).holdings()
    again.send(ev.ClaimsPrepared((claim,), again.now))
    assert claim.gpus[0].device in {one["name"] for one in devices(again)}
    assert all(one["consumesCounters"] for one in devices(again)), "also without the setting, while the claim is there"
    again.send(ev.ClaimsPrepared((), again.now))
    assert slice_specs(again.state, "n").keys() == {""}


def test_kubelet_gets_the_health_of_a_set_that_a_claim_has():
    node = dgx1()
    name = set_name(uuid(n) for n in range(4))
    node.send(ev.ClaimsPrepared((prepared("c", *(gpu(n) for n in range(4)), device=name),), node.now))
    assert {one.device: one.healthy for one in device_healths(node.state)}[name] is True
    node.send(ev.GpuLost(uuid(1), "fell off the bus", node.now))
    (found,) = (one for one in device_healths(node.state) if one.device == name)
    assert (found.healthy, found.message) == (False, f"GPU 1 ({uuid(1)}) is unhealthy: fell off the bus")


# -- how they are written -------------------------------------------------------------------------------------------


def apply(node, *, most=99):
    """Do up to so many of the wanted writes, as an API server does; how many there were."""
    found, writes = dict(node.state.claims.slices), slice_writes(node.state, "n")
    for one in writes[:most]:
        version = str(int(found.get(one.name, {}).get("metadata", {}).get("resourceVersion", "0")) + 1)
        metadata = {"name": one.name, "uid": one.name, "resourceVersion": version}
        if one.verb == "delete":
            del found[one.name]
        else:
            found[one.name] = {"metadata": metadata, "spec": one.body["spec"]}
    node.send(ev.SlicesSeen(found, node.now))
    return len(writes)


def pool(node):
    """Generation and count of each slice."""
    return [
        (one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"])
        for one in node.state.claims.slices.values()
    ]


def test_a_new_order_is_a_write_of_slices_and_no_new_generation():
    node = dgx1()
    apply(node)
    assert apply(node) == 0
    assert pool(node) == [(1, 5)] * 5
    node.send(ev.ClaimsPrepared((prepared("c", gpu(0)),), node.now))
    assert {one.verb for one in slice_writes(node.state, "n")} == {"patch"}
    apply(node)
    assert pool(node) == [(1, 5)] * 5


def test_other_devices_are_a_new_generation_that_ends_when_all_slices_are_written():
    node = dgx1()
    apply(node)
    node.inventory(*(gpu(n, 16, mig=n == 7) for n in range(8)), wiring=DGX1V)
    for _ in range(20):
        if not apply(node, most=1):
            break
    assert pool(node) == [(2, 4)] * 4, "there is no set of eight any more"
    names = set(node.state.claims.slices)
    assert names == {slice_name("n") + end for end in ("", "-counters", "-sets-2-0", "-sets-4-0")}


def test_slices_that_are_gone_come_back_in_the_same_generation():
    node = dgx1()
    apply(node)
    left = {name: one for name, one in node.state.claims.slices.items() if not name.endswith("counters")}
    node.send(ev.SlicesSeen(left, node.now))
    assert [(one.name, one.verb) for one in slice_writes(node.state, "n")] == [("n-gpu.gpuagent.io-counters", "create")]
    apply(node)
    assert pool(node) == [(1, 5)] * 5
    node.label("share")
    assert {one.verb for one in slice_writes(node.state, "n")} == {"delete"}


def test_a_taint_keeps_its_time_when_the_order_changes():
    node = dgx1()
    node.send(ev.GpuLost(uuid(7), "gone", node.now))
    apply(node)
    found = dict(node.state.claims.slices)
    for one in found.values():
        for device in one["spec"].get("devices", ()):
            device["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"} for taint in device.get("taints", ())]
            if not device["taints"]:
                del device["taints"]
    node.send(ev.SlicesSeen(found, node.now))
    assert not slice_writes(node.state, "n")
    node.send(ev.ClaimsPrepared((prepared("c", gpu(0)),), node.now))
    node.send(ev.GpuLost(uuid(6), "gone", node.now))
    (change,) = (one for one in slice_writes(node.state, "n") if one.name == "n-gpu.gpuagent.io")
    times = {
        device["attributes"]["minor"]["int"]: [taint.get("timeAdded") for taint in device["taints"]]
        for device in change.body["spec"]["devices"]
        if "taints" in device
    }
    assert times == {7: ["2026-01-01T00:00:00Z"], 6: [None]}


def test_no_slice_has_more_devices_than_the_api_takes():
    node = in_force(Mode.DRA, box(16), gpu_sets=True)
    sizes = [len(spec.get("devices", ())) for spec in slice_specs(node.state, "n").values()]
    assert max(sizes) == PART


def test_gpus_that_reach_each_other_over_nvlinks_have_the_same_attribute():
    """In a DGX-1 all do, over others. Without NVLinks each is a domain of its own, so `matchAttribute` brings none together."""

    def domains(node):
        return [one["attributes"].get("nvlinkDomain") for one in slice_specs(node.state, "n")[""]["devices"]]

    (domain,) = {one["string"] for one in domains(dgx1())}
    assert domain == device_name(gpu(0, 16))
    apart = [one["string"] for one in domains(in_force(Mode.DRA, box(2, 16)))]
    assert apart == [device_name(gpu(n, 16)) for n in range(2)]
