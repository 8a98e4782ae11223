"""What GPUs report of their links, read through the real binding on every box."""

from collections import Counter
from dataclasses import replace

import pynvml
import pytest

from gpuagent.domain.gpus.link_reports import End, Fabric, Relation, Wiring
from gpuagent.domain.gpus.topology import NVLINK_GBPS, topology
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.simulation import boxes

# The pictures are those of `nvidia-smi topo -m` on the real machines.
DGX1_PASCAL = """
X   NV1 NV1 NV1 NV1 SYS SYS SYS
NV1 X   NV1 NV1 SYS NV1 SYS SYS
NV1 NV1 X   NV1 SYS SYS NV1 SYS
NV1 NV1 NV1 X   SYS SYS SYS NV1
NV1 SYS SYS SYS X   NV1 NV1 NV1
SYS NV1 SYS SYS NV1 X   NV1 NV1
SYS SYS NV1 SYS NV1 NV1 X   NV1
SYS SYS SYS NV1 NV1 NV1 NV1 X
"""
DGX1_VOLTA = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""
TWO_BRIDGES = """
X   NV4 SYS SYS
NV4 X   SYS SYS
SYS SYS X   NV4
SYS SYS NV4 X
"""
EIGHT_BELOW_SWITCHES = """
X    PIX  NODE NODE SYS  SYS  SYS  SYS
PIX  X    NODE NODE SYS  SYS  SYS  SYS
NODE NODE X    PIX  SYS  SYS  SYS  SYS
NODE NODE PIX  X    SYS  SYS  SYS  SYS
SYS  SYS  SYS  SYS  X    PIX  NODE NODE
SYS  SYS  SYS  SYS  PIX  X    NODE NODE
SYS  SYS  SYS  SYS  NODE NODE X    PIX
SYS  SYS  SYS  SYS  NODE NODE PIX  X
"""
FOUR_AT_HOST_BRIDGES = """
X    NODE SYS  SYS
NODE X    SYS  SYS
SYS  SYS  X    NODE
SYS  SYS  NODE X
"""
MIXED = """
X    NODE NODE SYS  SYS
NODE X    NODE SYS  SYS
NODE NODE X    SYS  SYS
SYS  SYS  SYS  X    NODE
SYS  SYS  SYS  NODE X
"""
DGX2_PCIE = """
X    PIX  PXB  PXB  NODE NODE NODE NODE
PIX  X    PXB  PXB  NODE NODE NODE NODE
PXB  PXB  X    PIX  NODE NODE NODE NODE
PXB  PXB  PIX  X    NODE NODE NODE NODE
NODE NODE NODE NODE X    PIX  PXB  PXB
NODE NODE NODE NODE PIX  X    PXB  PXB
NODE NODE NODE NODE PXB  PXB  X    PIX
NODE NODE NODE NODE PXB  PXB  PIX  X
"""


def picture(text):
    return [line.split() for line in text.strip().splitlines()]


def all_joined(count, kind):
    return [["X" if one == other else kind for other in range(count)] for one in range(count)]


@pytest.fixture
def look(tmp_path):
    return lambda: discover(sysfs=tmp_path, dev=tmp_path)


def types(inventory):
    return [[link.type if link else "X" for link in row] for row in topology(inventory.gpus, inventory.wiring).links]


def wirings(inventory):
    return [inventory.wiring[gpu.uuid] for gpu in inventory.gpus]


def relations(inventory, gpu, *others):
    """What one GPU says of others, nothing where it does not."""
    reported = wirings(inventory)[gpu].relations
    return [str(reported.get(inventory.gpus[other].pci_bus_id, "-")) for other in others]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dgx1-p100", picture(DGX1_PASCAL)),
        ("dgx1-v100", picture(DGX1_VOLTA)),
        ("dgx1-v100-32gb", picture(DGX1_VOLTA)),
        ("dgx2", all_joined(16, "NV6")),
        ("dgx-a100", all_joined(8, "NV12")),
        ("dgx-a100-mig", all_joined(8, "NV12")),
        ("hgx-h100", all_joined(8, "NV18")),
        ("hgx-h200", all_joined(8, "NV18")),
        ("hgx-b200", all_joined(8, "NV18")),
        ("gb200-tray", all_joined(4, "NV18")),
        ("pcie-4x-a40-nvlink", picture(TWO_BRIDGES)),
        ("pcie-8x-l40s", picture(EIGHT_BELOW_SWITCHES)),
        ("pcie-4x-a10", picture(FOUR_AT_HOST_BRIDGES)),
        ("mixed", picture(MIXED)),
        ("t4", [["X"]]),
        ("gb10", [["X"]]),
        ("limits-misc", all_joined(2, "NODE")),
        ("limits-dmem", all_joined(2, "NODE")),
    ],
)
def test_every_box_is_joined_as_the_real_machine(name, expected, simulate, look):
    simulate(name)
    inventory = look()
    found = topology(inventory.gpus, inventory.wiring)
    assert types(inventory) == expected
    assert found.notes == ()
    assert all((wiring.problems, wiring.inactive) == ((), 0) for wiring in wirings(inventory))
    assert {link.version for wiring in wirings(inventory) for link in wiring.nvlinks} <= NVLINK_GBPS.keys()


def test_no_box_is_left_out():
    (mark,) = test_every_box_is_joined_as_the_real_machine.pytestmark
    assert {name for name, _ in mark.args[1]} == set(boxes.names())


@pytest.mark.parametrize(
    ("name", "gbps"),
    [("dgx1-p100", 20), ("dgx2", 150), ("dgx-a100", 300), ("hgx-h100", 450), ("hgx-b200", 900), ("gb200-tray", 900)],
)
def test_the_published_bandwidths(name, gbps, simulate, look):
    simulate(name)
    inventory = look()
    link = topology(inventory.gpus, inventory.wiring).links[0][1]
    assert link.gbps == gbps
    assert link.switched is (name != "dgx1-p100")


def test_below_the_nvlinks_is_pcie(simulate, look):
    simulate("dgx1-v100")
    assert relations(look(), 0, *range(1, 8)) == ["PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    simulate("dgx2")
    seen = look()
    for gpu, row in enumerate(picture(DGX2_PCIE)):
        others = [other for other in range(8) if other != gpu]
        assert relations(seen, gpu, *others) == [row[other] for other in others]
        assert relations(seen, gpu, *range(8, 16)) == ["SYS"] * 8
    simulate("dgx-a100")
    assert relations(look(), 0, 1, 2, 7) == ["PXB", "SYS", "SYS"], "its NUMA nodes are quarters of sockets"


def test_links_to_gpus_tell_which(simulate, look):
    simulate("dgx1-v100")
    inventory = look()
    first = wirings(inventory)[0]
    assert {link.end for link in first.nvlinks} == {End.GPU}
    assert {link.version for link in first.nvlinks} == {"2.0"}
    neighbours = Counter(link.remote_bus_id for link in first.nvlinks)
    assert neighbours == {inventory.gpus[n].pci_bus_id: count for n, count in ((1, 1), (2, 1), (3, 2), (4, 2))}
    assert first.pcie == (3, 16)
    assert first.fabric is None


def test_links_to_switches_tell_which(simulate, look):
    simulate("dgx-a100")
    links = wirings(look())[0].nvlinks
    assert {link.end for link in links} == {End.SWITCH}
    assert {link.remote_pci_id for link in links} == {0x1AF110DE}
    assert Counter(link.remote_bus_id for link in links) == {f"00000000:C{n}:00.0": 2 for n in range(4, 10)}


def test_switches_without_an_address(simulate, look):
    simulate("hgx-b200")
    links = wirings(look())[0].nvlinks
    assert {(link.end, link.version, link.remote_bus_id, link.remote_pci_id) for link in links} == {
        (End.SWITCH, "5.0", "", 0)
    }


def test_fabrics(simulate, look):
    simulate("hgx-h100")
    assert {wiring.fabric for wiring in wirings(look())} == {Fabric("00000000-0000-0000-0000-000000000000", 0, True)}
    simulate("gb200-tray")
    assert {wiring.fabric for wiring in wirings(look())} == {
        Fabric("5f1c4a2e-8d3b-4c76-9e0f-2b7a61d4c8e9", 32766, True)
    }


@pytest.mark.parametrize("name", boxes.names())
def test_two_looks_are_equal(name, simulate, look):
    simulate(name)
    assert look() == look()


# -- older drivers -------------------------------------------------------------------------------------------------

QUERIES = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
)  # fmt: skip


def without(name, *missing):
    box = boxes.load(name)
    return replace(box, missing=box.missing | set(missing))


def test_a_driver_that_knows_of_no_links_at_all(simulate, look):
    simulate(without("hgx-h100", *QUERIES))
    inventory = look()
    assert len(inventory.gpus) == 8
    assert set(map(repr, wirings(inventory))) == {repr(Wiring())}
    assert types(inventory) == all_joined(8, "SYS")


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx2", "hgx-b200"])
def test_a_driver_that_does_not_report_what_a_link_leads_to(name, simulate, look):
    simulate(name)
    expected = types(look())
    simulate(without(name, "nvmlDeviceGetNvLinkRemoteDeviceType"))
    inventory = look()
    assert {link.end for wiring in wirings(inventory) for link in wiring.nvlinks} == {End.UNKNOWN}
    assert types(inventory) == expected, "the address or the fabric tells"
    assert topology(inventory.gpus, inventory.wiring).notes == ()


def test_a_driver_with_the_first_form_of_the_fabric_only(simulate, look):
    simulate("gb200-tray")
    expected = look()
    simulate(without("gb200-tray", "nvmlDeviceGetGpuFabricInfoV"))
    assert look() == expected


def test_a_driver_without_versions(simulate, look):
    simulate(without("pcie-4x-a40-nvlink", "nvmlDeviceGetNvLinkVersion"))
    inventory = look()
    assert {link.version for link in wirings(inventory)[0].nvlinks} == {""}
    assert types(inventory) == picture(TWO_BRIDGES)
    assert "NVLink version '' is not known" in topology(inventory.gpus, inventory.wiring).notes[0]


def test_a_level_or_version_that_this_agent_does_not_know(simulate, look, monkeypatch):
    simulate("pcie-4x-a40-nvlink")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTopologyCommonAncestor", lambda *_: 45)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkVersion", lambda *_: 9)
    first = wirings(look())[0]
    assert first.relations == {}
    assert {link.version for link in first.nvlinks} == {"#9"}
    assert first.problems == ()


# -- queries that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "problem", "change"),
    [
        ("nvmlDeviceGetNvLinkState", " (NVLink 0-35)", {"nvlinks": ()}),
        ("nvmlDeviceGetNvLinkVersion", " (NVLink 0-3)", {"version": ""}),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", " (NVLink 0-3)", {"end": End.UNKNOWN}),
        ("nvmlDeviceGetNvLinkRemotePciInfo", " (NVLink 0-3)", {"remote_bus_id": "", "remote_pci_id": 0}),
        ("nvmlDeviceGetTopologyCommonAncestor", " (GPU 0, 2-3)", {"relations": {}}),
        ("nvmlDeviceGetMaxPcieLinkGeneration", "", {"pcie": None}),
        ("nvmlDeviceGetMaxPcieLinkWidth", "", {"pcie": None}),
        ("nvmlDeviceGetGpuFabricInfo", "", {}),
        ("nvmlDeviceGetGpuFabricInfoV", "", {}),
    ],
)
def test_a_query_that_fails_costs_its_answer_and_is_reported_once(function, problem, change, simulate, look):
    simulator = simulate("pcie-4x-a40-nvlink")
    before = look()
    simulator.fail(function, "UNKNOWN", gpu=1)
    seen = look()
    assert seen.gpus == before.gpus
    assert not seen.unreadable
    was, now = wirings(before)[1], wirings(seen)[1]
    assert [words.removesuffix(problem) for words in now.problems] == [f"{function}: Unknown Error"]
    of_wiring = {key: value for key, value in change.items() if hasattr(was, key)}
    of_links = {key: value for key, value in change.items() if not hasattr(was, key)}
    links = tuple(replace(link, **of_links) for link in was.nvlinks)
    assert now == replace(was, **{"nvlinks": links, **of_wiring, "problems": now.problems})
    assert [wiring for n, wiring in enumerate(wirings(seen)) if n != 1] == [
        wiring for n, wiring in enumerate(wirings(before)) if n != 1
    ]
    assert seen == look(), "the same failure is the same inventory"
    simulator.fail(function, None, gpu=1)
    assert look() == before


def test_a_lost_gpu_is_missing_from_the_others_relations_no_more(simulate, look):
    simulator = simulate("dgx1-v100")
    before = look()
    simulator.lose(3)
    seen = look()
    assert [bad.index for bad in seen.unreadable] == [3]
    lost = before.gpus[3]
    assert lost.uuid not in seen.wiring
    for gpu in seen.gpus:
        was = before.wiring[gpu.uuid]
        relations = {bus: relation for bus, relation in was.relations.items() if bus != lost.pci_bus_id}
        assert seen.wiring[gpu.uuid] == replace(was, relations=relations)
    simulator.restore(3)
    assert look() == before


def test_a_gpu_that_is_lost_while_it_is_asked_is_no_problem_of_the_others(simulate, look):
    simulator = simulate("pcie-4x-a10")
    simulator.fail("nvmlDeviceGetTopologyCommonAncestor", "GPU_IS_LOST", gpu=0)
    seen = look()
    assert [dict(wirings(seen)[0].relations), wirings(seen)[0].problems] == [{}, ()]
    assert topology(seen.gpus, seen.wiring).links[0][1].relation is Relation.NODE, "the other end says it"


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"])
def test_a_driver_that_goes_away_meanwhile_is_no_matter_of_links(function, simulate, look):
    simulate("dgx2").fail(function, "DRIVER_NOT_LOADED", gpu=1)
    with pytest.raises(DriverError, match=f"{function}: Driver Not Loaded"):
        look()


# -- links that are down -------------------------------------------------------------------------------------------


def test_a_link_that_is_down_joins_nothing_and_is_counted(simulate, look):
    simulator = simulate("dgx-a100")
    simulator.nvlink(2, 5, up=False)
    seen = look()
    found = topology(seen.gpus, seen.wiring)
    assert [len(wiring.nvlinks) for wiring in wirings(seen)] == [12, 12, 11, 12, 12, 12, 12, 12]
    assert found.links[2][0].type == "NV11"
    assert found.links[0][1].type == "NV12"
    assert [wiring.inactive for wiring in wirings(seen)] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert found.notes == ("GPU 2: 1 of its 12 NVLinks is down",)
    simulator.nvlink(2, 5, up=True)
    assert types(look()) == all_joined(8, "NV12")


def test_one_end_down_is_noted_and_the_worse_report_counts(simulate, look):
    simulator = simulate("dgx1-v100")
    simulator.nvlink(0, 2, up=False)  # links 2 and 3 of GPU 0 lead to GPU 3
    seen = look()
    found = topology(seen.gpus, seen.wiring)
    assert found.links[0][3].type == found.links[3][0].type == "NV1"
    assert found.notes == (
        "GPU 0: 1 of its 6 NVLinks is down",
        "GPU 0 and GPU 3 report 1 and 2 NVLinks between them; 1 are counted",
    )
    simulator.nvlink(3, 1, up=False)  # links 0 and 1 of GPU 3 lead to GPU 0
    seen = look()
    found = topology(seen.gpus, seen.wiring)
    assert found.links[0][3].type == "NV1"
    assert found.notes == ("GPU 0: 1 of its 6 NVLinks is down", "GPU 3: 1 of its 6 NVLinks is down")


def test_a_pair_without_links_is_joined_by_pcie(simulate, look):
    simulator = simulate("pcie-4x-a40-nvlink")
    for link in range(4):
        simulator.nvlink(0, link, up=False)
        simulator.nvlink(1, link, up=False)
    seen = look()
    assert types(seen)[0] == ["X", "NODE", "SYS", "SYS"]
    assert [wiring.inactive for wiring in wirings(seen)] == [4, 4, 0, 0]
    assert topology(seen.gpus, seen.wiring).notes == (), "cards without a bridge are in order"


def test_links_that_a_gpu_does_not_have_are_not_down(simulate, look):
    """A driver may call them disabled, as NVIDIA's own mock of NVML does: the number of links decides."""
    simulator = simulate(replace(boxes.load("dgx-a100"), disabled_links=6))
    simulator.nvlink(2, 11, up=False)
    seen = look()
    assert [wiring.inactive for wiring in wirings(seen)] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert topology(seen.gpus, seen.wiring).notes == ("GPU 2: 1 of its 12 NVLinks is down",)


def test_a_card_without_nvlink_has_none_that_are_down(simulate, look):
    simulate(replace(boxes.load("t4"), disabled_links=36))
    assert [(wiring.nvlinks, wiring.inactive, wiring.problems) for wiring in wirings(look())] == [((), 0, ())]


def test_where_the_driver_does_not_count_links_every_disabled_one_is_down(simulate, look):
    box = boxes.load("dgx-a100")
    simulate(replace(box, disabled_links=6, missing=frozenset({"nvmlDeviceGetFieldValues"})))
    assert [wiring.inactive for wiring in wirings(look())] == [6] * 8


def test_a_number_of_links_that_cannot_be_read_is_reported(simulate, look):
    simulator = simulate(replace(boxes.load("dgx-a100"), disabled_links=6))
    simulator.fail("nvmlDeviceGetFieldValues", "UNKNOWN", 0)
    first = wirings(look())[0]
    assert (first.inactive, first.problems) == (6, ("nvmlDeviceGetFieldValues: Unknown Error",))


def test_a_fabric_that_is_not_ready_does_not_count(simulate, look):
    simulator = simulate("hgx-h100")
    simulator.fabric(6, ready=False)
    seen = look()
    found = topology(seen.gpus, seen.wiring)
    assert not wirings(seen)[6].fabric.ready
    assert [link.type if link else "X" for link in found.links[6]] == ["SYS"] * 4 + ["NODE", "NODE", "X", "NODE"]
    assert found.links[0][1].type == "NV18"
    assert [note.partition(":")[0] for note in found.notes] == ["GPU 6"]
    simulator.fabric(6, ready=True)
    assert types(look()) == all_joined(8, "NV18")
