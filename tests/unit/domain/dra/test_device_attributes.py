"""Every device of every node has every attribute: a selector that names one that is absent is an error everywhere."""

import re

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_attributes import architecture, version
from gpuagent.domain.dra.resource_slice import device_name, slice_specs
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.domain.sharing.mode import Mode
from gpuagent.nvml.gpu_reader import discover
from gpuagent.simulation import boxes
from gpuagent.simulation.simulator import Simulator
from tests.unit.domain.builders import DGX1V, box, gpu, in_force
from tests.unit.domain.dra.prepared_claims import prepared

TYPES = {
    "type": "string",
    "uuid": "string",
    "minor": "int",
    "productName": "string",
    "brand": "string",
    "architecture": "string",
    "cudaComputeCapability": "version",
    "driverVersion": "version",
    "cudaDriverVersion": "version",
    "isolation": "string",
    "memoryIsolated": "bool",
    "computeIsolated": "bool",
    "nvlinkDomain": "string",
    "numaNode": "int",
    "gpus": "int",
    "minors": "string",
    "linkGBps": "int",
    "resource.kubernetes.io/pciBusID": "string",
    "resource.kubernetes.io/pcieRoot": "string",
    "resource.kubernetes.io/numaNode": "int",
}


def attributes_of(node):
    """Name of each device to its attributes."""
    specs = slice_specs(node.state, "n").values()
    return {device["name"]: device["attributes"] for spec in specs for device in spec.get("devices", ())}


def check(node):
    found = attributes_of(node)
    assert found
    for attributes in found.values():
        assert {name: next(iter(value)) for name, value in attributes.items()} == TYPES
        for value in attributes.values():
            assert len(value) == 1
            assert len(str(next(iter(value.values())))) <= 64
        versions = [value["version"] for value in attributes.values() if "version" in value]
        assert all(re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", text) for text in versions)
    return found


@pytest.mark.parametrize("name", boxes.names())
@pytest.mark.parametrize("sets", [False, True])
def test_every_device_of_every_box_has_every_attribute(name, sets):
    with Simulator(boxes.load(name)):
        inventory = discover()
    node = in_force(Mode.DRA, (), gpu_sets=sets)
    node.send(ev.InventoryRead(inventory, 0.0)).holdings()
    for attributes in check(node).values():
        if attributes["productName"]["string"]:  # the GPUs of a set may differ
            assert attributes["architecture"]["string"] != "Unknown"
            assert attributes["brand"]["string"] in {"Nvidia", "Tesla"}
        assert attributes["cudaDriverVersion"]["version"] == "13.0.0"


def test_a_gpu_of_which_nothing_is_known_has_every_attribute():
    node = in_force(Mode.DRA, [gpu(0, compute_capability=None, numa_node=None), gpu(1)])
    node.send(ev.InventoryRead(Inventory(box(2)), 0.0))
    first = check(node)[device_name(gpu(0))]
    assert first["numaNode"] == first["resource.kubernetes.io/numaNode"] == {"int": -1}
    assert first["driverVersion"] == first["cudaComputeCapability"] == {"version": "0.0.0"}
    assert first["architecture"] == first["brand"] == {"string": "Unknown"}


def test_what_is_not_known_brings_no_devices_together():
    """`matchAttribute` takes devices with equal values."""
    found = check(in_force(Mode.DRA, box(4))).values()
    for name in ("nvlinkDomain", "resource.kubernetes.io/pcieRoot"):
        assert len({attributes[name]["string"] for attributes in found}) == 4


def test_a_set_that_a_claim_keeps_has_every_attribute():
    node = in_force(Mode.DRA, box(4))
    gone = prepared("c", gpu(2), gpu(9), mib=16384, device="gpus-2-kept")
    node.send(ev.ClaimsPrepared((gone,), node.now))
    assert check(node)["gpus-2-kept"]["gpus"] == {"int": 2}, "one of them is lost"


def test_a_set_has_what_all_of_its_gpus_have():
    gpus = [gpu(n, numa_node=n // 4, pcie_root=f"pci0000:0{n // 4}", compute_capability=(7, 0)) for n in range(8)]
    node = in_force(Mode.DRA, (), gpu_sets=True)
    node.inventory(*gpus, wiring=DGX1V).holdings()
    pairs = [attributes for attributes in check(node).values() if attributes["gpus"]["int"] == 2]
    assert pairs
    for attributes in pairs:
        quads = {int(minor) // 4 for minor in attributes["minors"]["string"].split(",")}
        assert attributes["numaNode"]["int"] == (quads.pop() if len(quads) == 1 else -1)
        assert attributes["architecture"] == {"string": "Volta"}
    near = [attributes for attributes in pairs if attributes["numaNode"]["int"] == 0]
    assert {attributes["resource.kubernetes.io/pcieRoot"]["string"] for attributes in near} == {"pci0000:00"}


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((12, 1), "Blackwell"),
        ((10, 0), "Blackwell"),
        ((9, 0), "Hopper"),
        ((8, 9), "Ada Lovelace"),
        ((8, 6), "Ampere"),
        ((7, 5), "Turing"),
        ((7, 2), "Volta"),
        ((6, 1), "Pascal"),
        ((5, 2), "Maxwell"),
        ((3, 5), "Kepler"),
        ((2, 0), "Unknown"),
        (None, "Unknown"),
    ],
)
def test_architectures(capability, name):
    assert architecture(capability) == name


@pytest.mark.parametrize(("text", "expected"), [("13.0", "13.0.0"), ("8", "8.0.0"), ("", "0.0.0"), ("a.b", "0.0.0")])
def test_versions(text, expected):
    assert version(text) == expected
