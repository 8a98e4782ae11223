"""An answer that NVML's interface does not allow costs its GPU and no other, and is reported in words."""

import ctypes
import math
import time
from contextlib import contextmanager, suppress
from functools import partial
from unittest import mock

import pynvml
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gpuagent.domain.events import InventoryRead
from gpuagent.domain.sharing.mode import GPU_MEM, Mode
from gpuagent.domain.status.problems import problems
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.binding.wiring_calls import LINK_COUNT
from gpuagent.nvml.driver_errors import CallError, DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.nvml.inventory import Readings, inventory_of
from gpuagent.nvml.usage.usage_queries import UsageNvml
from gpuagent.simulation import boxes
from gpuagent.simulation.simulator import FaultError, inject, install
from tests.unit.domain.builders import NodeUnderTest

ODD_GPU = 2
WELL = {0, 1, 3}
OF_A_GPU = (
    "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNumaNodeId",
)  # fmt: skip
OF_LINKS = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetFieldValues",
)  # fmt: skip


class OddAnswer:
    """A structure whose every member is odd."""

    def __init__(self, value):
        self._value = value

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._value

    def __iter__(self):
        return iter((self._value, self._value))


LEAVES = (
    st.none()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=True)
    | st.text(max_size=100)
    | st.binary(max_size=20)
    | st.sampled_from(
        [math.nan, 1 << 63, 0xFFFFFFFF, -1, "", "all", "none", "GPU-1,GPU-2", "GPU-\n", "\x1b[31m", [], {}]
    )
)
ANSWERS = LEAVES | st.builds(OddAnswer, LEAVES) | st.lists(LEAVES, max_size=3)
RAISED = st.just(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))


@contextmanager
def answering(simulator, function, answer):
    """Let the binding answer so about the one GPU."""
    asked = getattr(pynvml, function)
    address = simulator.gpus[ODD_GPU].address

    def ask(first, *args):
        if (
            ODD_GPU != first
            if function == "nvmlDeviceGetHandleByIndex"
            else address != ctypes.cast(first, ctypes.c_void_p).value
        ):
            return asked(first, *args)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with mock.patch.object(pynvml, function, ask):
        yield


def read_by_the_agent(sysfs):
    """As in the agent: every GPU in a thread of its own."""
    readings = Readings(patience_s=30, links_patience_s=30, clock=time.monotonic, sysfs=sysfs, late=lambda: None)
    nvml = Nvml()
    with nvml.session():
        found = readings.look(nvml.count())
    return inventory_of(found, hung={}, former=None, patience_s=30, version="", nodes=frozenset())


def offered(inventory) -> set[int]:
    node = NodeUnderTest(Mode.SHARE).holdings()
    node.send(InventoryRead(inventory, 0.0))
    return set(node.offer(GPU_MEM))


@settings(max_examples=200, deadline=None)
@given(function=st.sampled_from(OF_A_GPU + OF_LINKS), answer=ANSWERS | RAISED)
def test_whatever_is_answered_about_one_gpu_the_others_are_offered(tmp_path_factory, function, answer):
    with install(boxes.load("pcie-4x-a40-nvlink")) as simulator, answering(simulator, function, answer):
        assume(answer not in [gpu.address for gpu in simulator.gpus])  # the handle of a second GPU
        # The number of another GPU is no odd answer: it costs both, as nothing says whose it is.
        assume(function != "nvmlDeviceGetMinorNumber" or answer not in list(WELL))
        root = tmp_path_factory.getbasetemp()
        inventory, seen = discover(sysfs=root, dev=root), read_by_the_agent(root)
        assert (seen.gpus, seen.unreadable, seen.wiring) == (inventory.gpus, inventory.unreadable, inventory.wiring)
        assert offered(inventory) >= WELL
        if function in OF_A_GPU:
            assert offered(inventory) == WELL or not inventory.unreadable
            assert {bad.index for bad in inventory.unreadable} <= {ODD_GPU}
            assert all(bad.reason.isprintable() and "0x" not in bad.reason for bad in inventory.unreadable)
        else:
            assert offered(inventory) == {*WELL, ODD_GPU}, "a query about links costs no GPU"


OF_USE = (
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetProcessUtilization",
    *(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(function=st.sampled_from(OF_A_GPU + OF_LINKS + OF_USE), answer=ANSWERS | RAISED)
@example(function="nvmlDeviceGetNvLinkRemotePciInfo", answer=OddAnswer(math.inf))
def test_whatever_is_answered_the_facade_gives_a_value_or_an_error_of_that_call(function, answer):
    with install(boxes.load("pcie-4x-a40-nvlink")) as simulator, answering(simulator, function, answer):
        nvml = UsageNvml()
        with nvml.session():
            other = nvml.handle(1)
            with suppress(CallError):
                gpu = nvml.handle(ODD_GPU)
                for ask in (
                    nvml.uuid, nvml.name, nvml.minor, nvml.pci_bus_id, nvml.memory_bytes, nvml.compute_capability,
                    nvml.mig_enabled, nvml.numa_node, nvml.link_count, nvml.pcie, nvml.fabric, nvml.recovery_action,
                    nvml.condition, nvml.supported_events, nvml.memory_used_bytes, nvml.busy, nvml.temperature_celsius,
                    nvml.power_watts, nvml.processes, nvml.process_busy, lambda gpu: nvml.relation(gpu, other),
                    *(partial(ask, link=0) for ask in (nvml.link_is_up, nvml.link_version, nvml.link_end)),
                    partial(nvml.link_remote, link=0),
                ):  # fmt: skip
                    with suppress(CallError):
                        ask(gpu)


ANSWERED = [
    ("uuid", "GPU-1,GPU-2", "nvmlDeviceGetUUID: answered 'GPU-1,GPU-2', which is not GPU- and a UUID"),
    ("uuid", "", "answered '', which is not GPU- and a UUID"),
    ("uuid", "all", "answered 'all', which"),
    ("uuid", "GPU-8a56a4bc-5b4b-4d07-9c3e-0f6a2b1d7e9\n", r"0f6a2b1d7e9\n', which"),
    ("uuid", "\udcff", r"answered b'\xff', which is not text in UTF-8"),
    ("model", "NVIDIA \udcff", r"nvmlDeviceGetName: answered b'NVIDIA \xff', which is not text in UTF-8"),
    ("model", "\x1b[31mNVIDIA", r"answered '\x1b[31mNVIDIA', which is not a text of 1 to 96 printable characters"),
    ("minor", 0xFFFFFFFF, "nvmlDeviceGetMinorNumber: answered 4294967295, which is not a whole number from 0 to 255"),
    ("pci_bus_id", "../../x", "nvmlDeviceGetPciInfo: answered '../../x', which is not a PCI address"),
    ("memory_mib", 1 << 43, "nvmlDeviceGetMemoryInfo: answered 9223372036854775808, which is not a whole number from"),
    ("memory_mib", 0, "answered 0, which is not a whole number from 1048576 to 4398046511104"),
    ("reserved_mib", 1 << 40, "answered 1152921504606846976, which is not a whole number from 0 to 24146608128"),
]


@pytest.mark.parametrize(("what", "value", "words"), ANSWERED)
def test_an_odd_answer_is_reported_for_its_gpu_and_ends(what, value, words, simulate, make_box, watch):
    simulator = simulate(make_box(4))
    simulator.odd(ODD_GPU, what, value)
    watched = watch(simulator, reread_s=0.05)
    inventory = watched.next(InventoryRead).inventory
    assert offered(inventory) == WELL
    (bad,) = inventory.unreadable
    assert bad.index == ODD_GPU
    assert words in bad.reason
    simulator.odd(ODD_GPU, what, None)
    assert offered(watched.next(InventoryRead).inventory) == {*WELL, ODD_GPU}


@pytest.mark.parametrize("what", ["uuid", "minor", "pci_bus_id"])
def test_what_two_gpus_share_costs_these_two(what, simulate, make_box, watch):
    simulator = simulate(make_box(4))
    simulator.odd(ODD_GPU, what, getattr(simulator.box.gpus[1], what))
    watched = watch(simulator)
    node = NodeUnderTest(Mode.SHARE).holdings().send(watched.next(InventoryRead))
    assert set(node.offer(GPU_MEM)) == {0, 3}
    messages = [problem.message for problem in problems(node.state) if problem.reason == "GPUUnreadable"]
    assert sorted(text[:18] for text in messages) == ["GPU 1 is left out:", "GPU 2 is left out:"]


def test_a_gpu_that_is_read_elsewhere_is_not_confused_with_the_one_that_hangs(simulate, make_box, watch):
    """Indexes move when a GPU goes: the GPU that hangs may have the index that another one had."""
    simulator = simulate(make_box(3))
    watched = watch(simulator, patience_s=0.1, reread_s=0.05)
    before = watched.next(InventoryRead).inventory
    simulator.gpus[1].spec, simulator.gpus[2].spec = simulator.gpus[2].spec, simulator.gpus[1].spec
    simulator.hang("nvmlDeviceGetName", 2)
    watched.watch.reread()
    after = watched.next(InventoryRead).inventory
    assert [gpu.uuid for gpu in after.gpus] == [before.gpus[0].uuid, before.gpus[2].uuid]


@pytest.mark.parametrize("part", ["read_gpu", "read_links", "read_relations"])
def test_an_error_of_the_agents_own_about_one_gpu_costs_no_other(part, simulate, make_box, watch, monkeypatch, caplog):
    from gpuagent.nvml import inventory as reading

    whole = getattr(reading, part)

    def broken(nvml, index, *args):
        if index == ODD_GPU:
            raise ZeroDivisionError
        return whole(nvml, index, *args)

    monkeypatch.setattr(reading, part, broken)
    inventory = watch(simulate(make_box(4))).next(InventoryRead).inventory
    assert offered(inventory) == (WELL if part == "read_gpu" else {*WELL, ODD_GPU})
    messages = [
        *(bad.reason for bad in inventory.unreadable),
        *(text for wiring in inventory.wiring.values() for text in wiring.problems),
    ]
    assert len(messages) == 1
    assert messages[0].startswith("reading it: ZeroDivisionError, which this agent does not expect")
    assert any(record.exc_info for record in caplog.records)


def test_an_absurd_number_of_gpus_is_the_drivers(simulate, make_box, tmp_path):
    simulate(make_box(1))
    with (
        mock.patch.object(pynvml, "nvmlDeviceGetCount", lambda: 0xFFFFFFFF),
        pytest.raises(DriverError, match="answered 4294967295, which is not a whole number from 0 to 256"),
    ):
        discover(sysfs=tmp_path, dev=tmp_path)


def test_an_odd_driver_version_costs_nothing(simulate, make_box, tmp_path):
    simulate(make_box(1))
    with mock.patch.object(pynvml, "nvmlSystemGetDriverVersion", lambda: None):
        seen = discover(sysfs=tmp_path, dev=tmp_path)
    assert (len(seen.gpus), seen.driver_version) == (1, "")


def test_faults_that_are_none(simulate, make_box, tmp_path):
    simulator = simulate(make_box(1))
    simulator.listen(tmp_path / "s")
    for fault, words in (
        ({"what": "links", "value": 3}, "what: 'links' is not one of uuid, model"),
        ({"what": "minor", "value": "3"}, "value: '3' is no minor: that is a int"),
    ):
        with pytest.raises(FaultError, match=words):
            inject(tmp_path / "s", {"fault": "odd", "gpu": 0, **fault})


def test_a_link_count_out_of_range_is_a_problem_of_the_links(simulate, make_box):
    simulate(make_box(1))
    nvml = Nvml()
    counted = pynvml.c_nvmlFieldValue_t(fieldId=LINK_COUNT, valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    counted.value.uiVal = 37
    with nvml.session(), mock.patch.object(pynvml, "nvmlDeviceGetFieldValues", lambda *_: [counted]):
        with pytest.raises(Exception, match="answered 37, which is not a whole number from 0 to 36"):
            nvml.link_count(nvml.handle(0))
