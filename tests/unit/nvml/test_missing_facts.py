"""Every fact of the driver may be missing: in each mode the GPU is served without it, or a problem says why not."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import slice_spec
from gpuagent.domain.gpus.gpu import Gpu, Inventory
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.status.problems import problems
from gpuagent.domain.status.status_page import status
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import UNKNOWN_MODEL, discover
from gpuagent.simulation import boxes
from gpuagent.simulation.driver import base_name
from gpuagent.simulation.simulator import _FUNCTIONS
from tests.unit.domain.builders import NodeUnderTest

FACTS = sorted({base_name(name) for name in _FUNCTIONS if name.startswith("nvmlDeviceGet")})
NEEDED = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCount"}
"""Without these, a GPU cannot be named in containers."""
WHOLE = (Mode.TOPOLOGY, Mode.DEFAULT, Mode.DRA)
ABSENT = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
REFUSED = ("UNKNOWN", "NO_PERMISSION", "INVALID_ARGUMENT")


@pytest.fixture
def read(tmp_path):
    """The node's GPUs as the driver reports them, or why it reports none."""

    def look() -> ev.InventoryRead | ev.DriverUnavailable:
        try:
            return ev.InventoryRead(discover(sysfs=tmp_path, dev=tmp_path, proc=tmp_path), 0.0)
        except DriverError as err:
            return ev.DriverUnavailable(str(err), 0.0)

    return look


def node_in(mode: Mode, seen: ev.InventoryRead | ev.DriverUnavailable) -> NodeUnderTest:
    node = NodeUnderTest(mode, resources=Resources(exclusive="nvidia.com/gpu"))
    return node.send(seen).holdings()


def served(node: NodeUnderTest) -> set[str]:
    """UUIDs of the GPUs that a container can get."""
    state = node.state
    if state.node.mode is Mode.DRA:
        devices = (slice_spec(state, "n") or {})["devices"]
        return {device["attributes"]["uuid"]["string"] for device in devices if not device.get("taints")}
    by_resource = [
        {block.gpu.uuid for block in blocks if block.healthy and block.count}
        for resource, blocks in state.advertised.lists.items()
        if resource in state.resource_kinds
    ]
    return set.intersection(*by_resource)


def is_explained(node: NodeUnderTest, box: boxes.Box) -> bool:
    """Whether a problem tells about each GPU that is not served, and the condition is False if that is all."""
    out = {gpu.uuid: index for index, gpu in enumerate(box.gpus) if gpu.uuid not in served(node)}
    texts = [problem.message for problem in problems(node.state)]
    words = ("NVIDIA driver", "all ", "none of the")
    wide = any(text.startswith(words) for text in texts)
    named = all(wide or any(f"GPU {index} " in text or uuid in text for text in texts) for uuid, index in out.items())
    return named and (len(out) < len(box.gpus) or node_condition(node.state)["status"] == "False")


@pytest.mark.parametrize("name", boxes.names())
def test_a_fact_that_is_missing_is_no_loss_or_a_problem_in_every_mode(name, simulate, read):
    box = boxes.load(name)
    simulator = simulate(box)
    complete = {mode: served(node_in(mode, read())) for mode in Mode}
    for fact in FACTS:
        simulator.fail(fact, "NOT_SUPPORTED")
        seen = read()
        for mode in Mode:
            node = node_in(mode, seen)
            assert is_explained(node, box), (fact, mode)
            needs_memory = mode not in WHOLE
            if fact not in NEEDED and not (needs_memory and fact == "nvmlDeviceGetMemoryInfo"):
                assert served(node) >= complete[mode], (fact, mode)
        simulator.fail(fact, None)


@pytest.mark.parametrize("error", [*ABSENT, *REFUSED])
@pytest.mark.parametrize("gpu", [None, 1])
@pytest.mark.parametrize("fact", FACTS)
def test_an_error_in_place_of_a_fact_is_explained(fact, gpu, error, simulate, read):
    box = boxes.load("pcie-4x-a10")
    simulate(box).fail(fact, error, gpu)
    seen = read()
    for mode in Mode:
        node = node_in(mode, seen)
        assert is_explained(node, box), mode
        others = {spec.uuid for index, spec in enumerate(box.gpus) if index != gpu}
        assert gpu is None or served(node) >= others, mode


# -- a GPU that does not report its memory -------------------------------------------------------------------------


@pytest.fixture
def gb10(simulate, read):
    simulate("gb10")
    return read()


@pytest.mark.parametrize("mode", WHOLE)
def test_a_gb10_is_served_whole(gb10, mode):
    node = node_in(mode, gb10)
    assert len(served(node)) == 1
    assert problems(node.state) == []
    assert node_condition(node.state)["status"] == "True"
    (shown,) = status(node.state)["gpus"]
    assert (shown["model"], shown["memory_mib"], shown["health"]) == ("NVIDIA GB10", 0, "Healthy")


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode not in WHOLE])
def test_a_gb10_has_no_shares_and_the_problem_says_what_to_do(gb10, mode):
    node = node_in(mode, gb10)
    assert not served(node)
    text = next(problem.message for problem in problems(node.state) if problem.reason == "GPUMemoryUnknown")
    assert "Use it whole: with mode topology" in text
    assert node_condition(node.state)["status"] == "False"
    assert len(status(node.state)["gpus"]) == 1


def test_a_gb10_is_a_device_that_one_claim_has_whole(gb10):
    (device,) = (slice_spec(node_in(Mode.DRA, gb10).state, "n") or {})["devices"]
    assert "capacity" not in device
    assert not device.get("allowMultipleAllocations")


def test_a_gpu_without_a_name_has_a_name_for_people(simulate, read):
    simulate("t4").fail("nvmlDeviceGetName", "NOT_SUPPORTED")
    assert read().inventory.gpus[0].model == UNKNOWN_MODEL


def test_gpus_without_a_pci_address_are_told_apart_by_the_rest(simulate, read):
    simulate("dgx-a100").fail("nvmlDeviceGetPciInfo", "NOT_SUPPORTED")
    inventory: Inventory = read().inventory
    assert [gpu.pci_bus_id for gpu in inventory.gpus] == [""] * 8
    assert len(served(node_in(Mode.TOPOLOGY, read()))) == 8


def test_a_minor_number_comes_from_the_kernel_module_if_nvml_has_none(simulate, tmp_path):
    simulate("t4").fail("nvmlDeviceGetMinorNumber", "NOT_SUPPORTED")
    folder = tmp_path / "driver/nvidia/gpus/0000:00:1e.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t Tesla T4\nBus Location: \t 0000:00:1e.0\nDevice Minor: \t 3\n")
    (gpu,) = discover(sysfs=tmp_path, dev=tmp_path, proc=tmp_path).gpus
    assert isinstance(gpu, Gpu)
    assert gpu.minor == 3
