"""How a box file tells how its GPUs are joined: what follows from it, and what is refused."""

import re

import pytest

from gpuagent.domain.gpus.link_reports import End
from gpuagent.nvml.gpu_reader import discover
from gpuagent.simulation import boxes
from gpuagent.simulation.box_links import BoxFabric
from gpuagent.simulation.boxes import BoxError

GPUS = """
[[gpus]]
model = "NVIDIA A40"
memory_mib = 46068
compute_capability = "8.6"
pci_bus_ids = ["00000000:17:00.0", "00000000:31:00.0", "00000000:B1:00.0"]
"""
BRIDGES = """
[[nvlinks]]
version = "3.1"
pairs = [[0, 1, 4]]
"""
SWITCH = """
[nvswitch]
version = "4.0"
links = 18
"""


def test_nothing_is_needed():
    for gpu in boxes.parse("mine", GPUS).gpus:
        assert (gpu.pcie, gpu.pcie_path, gpu.links, gpu.fabric) == (None, (), (), None)


def test_bridges_come_before_switches_and_each_end_knows_the_other():
    box = boxes.parse("mine", GPUS + BRIDGES + BRIDGES.replace("3.1", "2.0").replace("0, 1, 4", "2, 0, 1") + SWITCH)
    first, second, third = (gpu.links for gpu in box.gpus)
    assert [(link.end, link.version) for link in first[:6]] == [(End.GPU, 5)] * 4 + [(End.GPU, 2), (End.SWITCH, 6)]
    assert [link.bus_id for link in first[:5]] == ["00000000:31:00.0"] * 4 + ["00000000:B1:00.0"]
    assert {link.bus_id for link in second[:4]} == {"00000000:17:00.0"}
    assert [len(links) for links in (first, second, third)] == [23, 22, 19]


def test_a_switch_for_some_gpus_with_all_that_can_be_said_of_it():
    more = """
    gpus = [2, 0]
    pci_id = "22A310DE"
    bus_ids = ["00000000:05:00.0", "00000000:06:00.0"]
    tells_type = false
    fabric = true
    cluster = "00000000-0000-0000-0000-00000000000a"
    clique = 3
    """
    first, second, third = boxes.parse("mine", GPUS + SWITCH + more).gpus
    assert (second.links, second.fabric) == ((), None)
    assert first.links == third.links
    assert first.fabric == third.fabric == BoxFabric("00000000-0000-0000-0000-00000000000a", 3)
    assert {(link.end, link.pci_id) for link in first.links} == {(End.UNKNOWN, 0x22A310DE)}
    assert [link.bus_id for link in first.links[:3]] == ["00000000:05:00.0", "00000000:06:00.0", "00000000:05:00.0"]


@pytest.mark.parametrize(
    ("one", "other", "relation"),
    [
        ("0/0/0/1", "0/0/0/1", "PIX"),
        ("0/0/0", "0/0/0", "PIX"),
        ("0/0/0/1", "0/0/0/2", "PXB"),
        ("0/0/0/1", "0/0/0", "PXB"),
        ("0/0/0/0", "0/0/1/0", "PHB"),
        ("0/0", "0/0", "PHB"),
        ("0/0", "0/0/0", "PHB"),
        ("0/0", "0/1", "NODE"),
        ("0/0/0/0", "0/1/0/0", "NODE"),
        ("0/0/0/0", "1/0/0/0", "SYS"),
    ],
)
def test_where_two_paths_part_is_how_near_they_are(one, other, relation, simulate, tmp_path):
    simulate(boxes.parse("mine", GPUS + f"pcie_paths = ['{one}', '{other}', '9/9']"))
    seen = discover(sysfs=tmp_path, dev=tmp_path)
    first, second, _ = seen.gpus
    assert seen.wiring[first.uuid].relations[second.pci_bus_id] == relation
    assert seen.wiring[second.uuid].relations[first.pci_bus_id] == relation


def test_without_a_path_the_driver_does_not_say_how_near():
    box = boxes.parse("mine", GPUS + 'pcie_paths = ["0/0", "0/0", ""]')
    assert [gpu.pcie_path for gpu in box.gpus] == [("0", "0"), ("0", "0"), ()]


def switch(key):
    return GPUS + SWITCH + key


def pairs(value):
    return GPUS + BRIDGES.replace("[[0, 1, 4]]", value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GPUS + 'pcie = "fast"', "[[gpus]] number 1: pcie must be generation and lanes, like \"4x16\", not 'fast'"),
        (GPUS + 'pcie = "7x16"', "not '7x16'"),
        (GPUS + "pcie = 4", "pcie must be str, not 4"),
        (GPUS + 'pcie_paths = ["0/0"]', "pcie_paths has 1 entries, pci_bus_ids 3"),
        (GPUS + 'pcie_paths = ["0/0", "0", "0/0"]', "pcie_paths: '0' is not like"),
        (GPUS + 'pcie_paths = ["0/0", "0/0", "0/0/0/0/0"]', "pcie_paths: '0/0/0/0/0' is not like"),
        (GPUS + 'numa_nodes = [0, 0, 1]\npcie_paths = ["0/0", "1/0", "2/0"]',
         "box mine: numa_nodes and pcie_paths do not agree whether GPU 0 and GPU 1 are near"),
        (GPUS + 'numa_nodes = [0, 1, -1]\npcie_paths = ["0/0", "0/1", "2/0"]', "whether GPU 0 and GPU 1 are near"),
        ("nvlinks = 3" + GPUS, "nvlinks must be list, not 3"),
        ("nvlinks = [3]" + GPUS, "[[nvlinks]] number 1: must be a table"),
        (GPUS + BRIDGES + "colour = 3", "[[nvlinks]] number 1: unknown key 'colour'"),
        (GPUS + BRIDGES.replace("3.1", "3.2"), "version '3.2' is not one of 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0"),
        (GPUS + BRIDGES.replace('version = "3.1"', ""), "[[nvlinks]] number 1: version is missing"),
        (pairs("[0, 1]"), "pairs must be a list of list, not 0"),
        (pairs("[[0, 1]]"), "pairs: [0, 1] is not GPU, other GPU (0 to 2), number of links"),
        (pairs("[[0, 3, 1]]"), "pairs: [0, 3, 1] is not"),
        (pairs("[[1, 1, 1]]"), "pairs: [1, 1, 1] is not"),
        (pairs("[[0, 1, 0]]"), "pairs: [0, 1, 0] is not"),
        (pairs("[[0, 1, true]]"), "pairs: [0, 1, True] is not"),
        (pairs("[[0, 1, 1], [1, 0, 2]]"), "pairs: GPU 1 and GPU 0 are joined twice"),
        (pairs("[[0, 1, 37]]"), "GPU 0 has 37 NVLinks; NVML counts 36 at most"),
        (pairs("[[0, 1, 19]]") + SWITCH, "GPU 0 has 37 NVLinks; NVML counts 36 at most"),
        ("disabled_links = 19" + GPUS + SWITCH, "box mine: disabled_links 19: NVML counts 36 at most"),
        ("disabled_links = -1" + GPUS, "box mine: disabled_links -1: NVML counts"),
        ("nvswitch = 3" + GPUS, "nvswitch must be dict, not 3"),
        (switch("colour = 3"), "[nvswitch]: unknown key 'colour'"),
        (GPUS + SWITCH.replace("links = 18", ""), "[nvswitch]: links is missing"),
        (GPUS + SWITCH.replace("18", "0"), "[nvswitch]: links must be at least 1, not 0"),
        (GPUS + SWITCH.replace("4.0", "x"), "[nvswitch]: version 'x' is not one of"),
        (switch("gpus = []"), "gpus [] must be different GPUs from 0 to 2"),
        (switch("gpus = [0, 0]"), "gpus [0, 0] must be different GPUs"),
        (switch("gpus = [3]"), "gpus [3] must be different GPUs"),
        (switch('pci_id = "1af1"'), "pci_id: '1af1' is not like"),
        (switch('bus_ids = ["05:00.0"]'), "bus_ids: '05:00.0' is not like"),
        (switch('fabric = true\ncluster = "x"'), "cluster: 'x' is not like"),
        (switch("fabric = true\nclique = -1"), "clique must not be below 0, but is -1"),
        (switch("clique = 3"), "[nvswitch]: cluster and clique need fabric = true"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(text, words):
    with pytest.raises(BoxError, match=re.escape(words)):
        boxes.parse("mine", text)
