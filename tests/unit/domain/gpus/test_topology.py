"""What joins the GPUs of a node, from what each of them reports."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.gpus.link_reports import End, Fabric, Nvlink, Relation, Wiring
from gpuagent.domain.gpus.topology import NVLINK_GBPS, NVSWITCH_PCI_IDS, Link, topology
from tests.unit.domain.builders import box, gpu, uuid

READY = Fabric("cluster", 0, ready=True)
SWITCH_ID = min(NVSWITCH_PCI_IDS)


def bus(n):
    return gpu(n).pci_bus_id


def to_gpu(n, count=1, version="2.0", end=End.GPU):
    return (Nvlink(version, end, bus(n)),) * count


def to_switch(count=6, version="3.0", **link):
    return (Nvlink(version, **{"end": End.SWITCH, **link}),) * count


def near(n, relation=Relation.NODE, count=2):
    """Relations of GPU `n` to all the others."""
    return {bus(other): relation for other in range(count) if other != n}


def joined(*wirings):
    """GPUs in the order of what they report; relations are NODE unless they are told."""
    count = len(wirings)
    reported = {
        uuid(n): wiring if wiring.relations else replace(wiring, relations=near(n, count=count))
        for n, wiring in enumerate(wirings)
    }
    return topology(box(count), reported)


def between(found, one=0, other=1):
    assert found.links[one][other] == found.links[other][one]
    return found.links[one][other]


# -- NVLinks between two GPUs ----------------------------------------------------------------------------------------


def test_nvlinks_between_two_gpus():
    found = joined(Wiring(nvlinks=to_gpu(1, 2)), Wiring(nvlinks=to_gpu(0, 2)))
    link = between(found)
    assert link == Link(relation=Relation.NODE, gbps=50.0, nvlinks=2)
    assert link.type == "NV2"
    assert found.notes == ()


def test_the_address_is_enough_where_the_driver_does_not_report_the_kind():
    unknown = [Wiring(nvlinks=to_gpu(other, 4, "1.0", End.UNKNOWN)) for other in (1, 0)]
    assert between(joined(*unknown)).type == "NV4"


def test_links_to_a_cpu_and_to_nowhere_join_no_gpus():
    idle = Wiring(nvlinks=(Nvlink("2.0", End.OTHER, bus(1)), Nvlink("2.0", End.UNKNOWN), Nvlink("2.0", End.GPU)))
    assert between(joined(idle, Wiring(nvlinks=to_gpu(0)))).type == "NODE"


def test_two_ends_that_differ_are_noted_and_the_worse_counts():
    found = joined(Wiring(nvlinks=to_gpu(1, 1)), Wiring(nvlinks=to_gpu(0, 2)))
    assert between(found).type == "NV1"
    assert between(found).gbps == 25.0
    assert found.notes == ("GPU 0 and GPU 1 report 1 and 2 NVLinks between them; 1 are counted",)


def test_a_link_that_only_one_end_reports_is_none():
    found = joined(Wiring(nvlinks=to_gpu(1)), Wiring())
    assert between(found).type == "NODE"
    assert "report 1 and 0 NVLinks" in found.notes[0]


def test_a_link_to_a_gpu_that_is_not_there_joins_nothing():
    found = joined(Wiring(nvlinks=to_gpu(7)), Wiring())
    assert between(found).type == "NODE"
    assert found.notes == ()


def test_links_of_two_versions_carry_each_their_own():
    mixed = [Wiring(nvlinks=(*to_gpu(other, 1, "2.0"), *to_gpu(other, 1, "5.0"))) for other in (1, 0)]
    assert between(joined(*mixed)).gbps == 75.0
    thin = joined(mixed[0], Wiring(nvlinks=to_gpu(0, 1, "2.0")))
    assert between(thin) == Link(relation=Relation.NODE, gbps=25.0, nvlinks=1), "the slower end is the measure"


def test_a_version_that_is_not_known_is_taken_for_the_slowest_and_noted():
    found = joined(*(Wiring(nvlinks=to_gpu(other, 2, "#9")) for other in (1, 0)))
    assert between(found).gbps == 2 * min(NVLINK_GBPS.values())
    assert [note for note in found.notes if "GPU 0" in note] == [
        "GPU 0: NVLink version '#9' is not known; its links are taken for the slowest kind"
    ]


# -- NVSwitch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "fabric"),
    [
        ({"end": End.SWITCH}, None),
        ({"end": End.UNKNOWN, "remote_pci_id": SWITCH_ID, "remote_bus_id": "00000000:C4:00.0"}, None),
        ({"end": End.UNKNOWN}, READY),
    ],
    ids=["by its kind", "by its PCI id", "by the fabric"],
)
def test_nvswitch_is_known(link, fabric):
    found = joined(*[Wiring(nvlinks=to_switch(12, **link), fabric=fabric)] * 3)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert between(found, one, other) == Link(relation=Relation.NODE, gbps=300.0, nvlinks=12, switched=True)
    assert found.notes == ()


def test_links_to_nowhere_without_a_fabric_are_no_switch():
    assert between(joined(*[Wiring(nvlinks=to_switch(end=End.UNKNOWN))] * 2)).type == "NODE"


def test_a_thin_gpu_is_noted_and_narrows_its_own_pairs_only():
    full, thin = Wiring(nvlinks=to_switch(12)), Wiring(nvlinks=to_switch(10))
    found = joined(full, thin, full)
    assert [between(found, *pair).type for pair in ((0, 1), (1, 2), (0, 2))] == ["NV10", "NV10", "NV12"]
    assert found.notes == ("GPU 1 has 10 NVLinks to the switches, other GPUs have 12",)


def test_links_that_are_down_are_noted_and_explain_why_a_gpu_is_thin():
    full, thin = Wiring(nvlinks=to_switch(12)), Wiring(nvlinks=to_switch(10), inactive=2)
    assert joined(full, thin).notes == ("GPU 1: 2 of its 12 NVLinks are down",)
    assert joined(thin, thin).notes == tuple(f"GPU {n}: 2 of its 12 NVLinks are down" for n in (0, 1))
    thinner = replace(thin, inactive=1)
    assert joined(full, thinner).notes == (
        "GPU 1: 1 of its 11 NVLinks is down",
        "GPU 1 has 10 NVLinks to the switches, other GPUs have 12",
    )


def test_a_card_whose_links_are_all_down_is_in_order():
    bare = Wiring(inactive=4)
    assert joined(bare, bare).notes == ()
    assert joined(Wiring(nvlinks=to_switch(12)), Wiring(inactive=12)).notes == (
        "GPU 1 has 0 NVLinks to the switches, other GPUs have 12",
    )


@pytest.mark.parametrize("other", [Fabric("cluster", 1, ready=True), Fabric("another", 0, ready=True), None])
def test_gpus_of_different_fabrics_do_not_reach_each_other(other):
    links = to_switch(18, "4.0")
    found = joined(*(Wiring(nvlinks=links, fabric=fabric) for fabric in (READY, READY, other)))
    assert between(found, 0, 1).type == "NV18"
    assert between(found, 0, 2).type == "NODE"


def test_a_fabric_that_is_not_ready_is_noted_and_does_not_count():
    links, waits = to_switch(18, "4.0"), replace(READY, ready=False)
    found = joined(*(Wiring(nvlinks=links, fabric=fabric) for fabric in (READY, waits, READY)))
    assert [between(found, *pair).type for pair in ((0, 1), (0, 2))] == ["NODE", "NV18"]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("GPU 1: its NVLink fabric is not ready")
    assert between(joined(*[Wiring(nvlinks=links, fabric=waits)] * 2)).type == "NODE", "nor do two that wait"


# -- PCIe ------------------------------------------------------------------------------------------------------------


def test_the_nearer_the_faster_by_pcie():
    def gbps(relation):
        return between(joined(*[Wiring(relations=near(n, relation), pcie=(4, 16)) for n in (0, 1)])).gbps

    speeds = [gbps(relation) for relation in Relation]
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) == len(Relation)
    assert speeds[0] == pytest.approx(31.5, abs=0.1)


def test_the_slower_slot_is_the_measure():
    slow, fast = (Wiring(relations=near(n, Relation.PIX), pcie=pcie) for n, pcie in ((0, (3, 8)), (1, (5, 16))))
    assert between(joined(slow, fast)).gbps == pytest.approx(8 * 0.985)


def test_a_generation_newer_than_this_table_is_at_least_as_fast_as_the_last():
    known, newer = ([Wiring(relations=near(n), pcie=(pcie, 16)) for n in (0, 1)] for pcie in (6, 9))
    assert between(joined(*newer)) == between(joined(*known))


def test_ends_that_differ_on_pcie_are_noted_and_the_farther_counts():
    found = joined(Wiring(relations=near(0, Relation.PIX)), Wiring(relations=near(1, Relation.SYS)))
    assert between(found).relation is Relation.SYS
    assert found.notes == ("GPU 0 and GPU 1 report PIX and SYS between them; SYS is taken",)


def test_what_one_end_does_not_say_the_other_does():
    reported = {uuid(0): Wiring(), uuid(1): Wiring(relations=near(1, Relation.PIX))}
    found = topology(box(2), reported)
    assert between(found).relation is Relation.PIX
    assert found.notes == ()


# -- as a whole --------------------------------------------------------------------------------------------------------


def test_no_wiring_at_all():
    found = topology(box(3), {})
    assert [[link and link.type for link in row] for row in found.links] == [
        [None if one == other else "SYS" for other in range(3)] for one in range(3)
    ]
    assert len(found.notes) == 3
    assert found.notes[0] == "how GPU 0 and GPU 1 are joined by PCIe is not known; SYS is taken"


def test_one_gpu_and_none():
    assert topology(box(1), {}).links == ((None,),)
    assert topology((), {}).links == ()
    assert topology((), {}).notes == ()


def test_problems_are_noted_with_their_gpu():
    reported = [Wiring(), Wiring(problems=("it hurts",))]
    assert joined(*reported).notes == ("GPU 1: it hurts",)


def test_gpus_stand_by_index_in_whatever_order_they_come():
    reported = {uuid(n): Wiring(relations=near(n, count=3)) for n in range(3)}
    assert topology(box(3)[::-1], reported) == topology(box(3), reported)
    assert topology(box(3), reported).gpus == (uuid(0), uuid(1), uuid(2))


def test_bandwidths_as_whole_numbers():
    found = joined(*(Wiring(nvlinks=to_gpu(other, 4, "3.1")) for other in (1, 0)))
    assert found.mbps == ((0, 56250), (56250, 0))


ENDS = st.sampled_from(list(End))
VERSIONS = st.sampled_from([*NVLINK_GBPS, "", "#9"])
BUSES = st.sampled_from(["", "00000000:C4:00.0", *(bus(n) for n in range(4))])
NVLINKS = st.builds(Nvlink, VERSIONS, ENDS, BUSES, st.sampled_from([0, SWITCH_ID, 0x1DB110DE]))
FABRICS = st.none() | st.builds(Fabric, st.sampled_from("ab"), st.integers(0, 1), st.booleans())
WIRINGS = st.builds(
    Wiring,
    nvlinks=st.lists(NVLINKS, max_size=8).map(tuple),
    relations=st.dictionaries(BUSES, st.sampled_from(list(Relation))),
    pcie=st.none() | st.tuples(st.integers(1, 7), st.sampled_from([1, 4, 8, 16])),
    fabric=FABRICS,
)


@given(st.lists(WIRINGS, min_size=1, max_size=4), st.integers(0, 4))
def test_whatever_is_reported_every_pair_is_joined_the_same_from_both_sides(wirings, silent):
    gpus = box(len(wirings))
    reported = {uuid(n): wiring for n, wiring in enumerate(wirings) if n != silent}
    found = topology(gpus, reported)
    assert len(found.links) == len(found.mbps) == len(gpus)
    for one, other in product(range(len(gpus)), repeat=2):
        link = found.links[one][other]
        assert (link is None) is (one == other)
        assert link == found.links[other][one]
        if link:
            assert link.gbps > 0
            assert link.type == (f"NV{link.nvlinks}" if link.nvlinks else link.relation)
            assert not link.switched or link.nvlinks
            assert link.nvlinks <= min(len(reported.get(uuid(n), Wiring()).nvlinks) for n in (one, other))
            assert found.mbps[one][other] == found.mbps[other][one] > 0


@given(st.permutations(range(4)))
def test_names_do_not_matter(order):
    """The same machine with its GPUs numbered in another way is joined in the same way."""
    ring = {n: to_gpu((n + 1) % 4, 2) + to_gpu((n - 1) % 4, 1) for n in range(4)}
    reported = {uuid(n): Wiring(nvlinks=links, relations=near(n, count=4)) for n, links in ring.items()}
    straight = topology(box(4), reported)
    shuffled = topology([replace(gpu(n), index=order[n]) for n in range(4)], reported)
    for one, other in product(range(4), repeat=2):
        assert shuffled.links[order[one]][order[other]] == straight.links[one][other]
