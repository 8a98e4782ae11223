"""The watch against faults: each event once, at once, and for the right GPU."""

import threading
import time
from dataclasses import replace

import pynvml
import pytest

from gpuagent.domain.events import DriverUnavailable, GpuLost, HealthRead, InventoryRead, XidRaised
from gpuagent.domain.gpus.gpu import Gpu, Inventory
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.host.nvidia_driver import ControlDevice
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.discovery import lacks_nodes, unsettled
from gpuagent.nvml.gpu_reader import device_nodes
from gpuagent.nvml.health import xid_watch
from gpuagent.simulation.driver import SimulatedGpu
from gpuagent.simulation.simulator import inject
from standin.waiting import PATIENCE_S
from tests.unit.nvml.conftest import wait_logged


def uuid(simulator, index):
    return simulator.gpus[index].spec.uuid


def test_the_first_look_is_posted_at_once(simulate, watch):
    watched = watch(simulate("dgx-a100"))
    before = time.monotonic()
    event = watched.next(InventoryRead)
    assert len(event.inventory.gpus) == 8
    assert event.at == pytest.approx(before, abs=PATIENCE_S)
    watched.watching(*range(8))
    assert watched.up()
    assert watched.quiet()


def test_an_xid_wakes_the_idle_wait(simulate, watch, monkeypatch):
    simulator = simulate("dgx-a100")
    watched = watch(simulator, wait_s=3600.0)  # longer than a test may take: only an event can wake it
    watched.next(InventoryRead)
    watched.watching(*range(8))
    try:
        assert simulator.xid(3, 79) == 1
        event = watched.next(XidRaised)
        assert (event.uuid, event.xid) == (uuid(simulator, 3), 79)
        simulator.double_bit_ecc(4)
        event = watched.next(XidRaised)
        assert (event.uuid, event.xid) == (uuid(simulator, 4), 48)
    finally:
        watched.watch.stop()
        monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", 0.0)  # nothing answers any more
        for gpu in range(8):
            simulator.xid(gpu, 1)  # ends the long waits
    assert watched.quiet(), "nothing is posted after stop"


def test_an_event_without_a_gpu_is_tied_to_none(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    simulator.xid(None, 61)
    event = watched.next(XidRaised)
    assert (event.uuid, event.xid) == (None, 61)


@pytest.mark.parametrize("code", [79, 94])
def test_an_xid_belongs_to_the_gpu_in_the_event_whichever_thread_receives_it(simulate, watch, make_box, code):
    simulator = simulate(make_box(4))
    watched = watch(simulator, healthy_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(0, 1, 2, 3)
    for index in (2, 0, 3, 1):
        assert simulator.xid(index, code, any_waiter=True) == 1
        event = watched.next(XidRaised)
        assert (event.uuid, event.xid) == (uuid(simulator, index), code)
        assert event.reading == HealthReading(action=2 if code == 79 else 0), "with what the driver says of that GPU"
    assert watched.quiet()


def test_an_xid_that_another_thread_receives_is_tied_although_its_gpu_is_lost(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1, 2)
    with simulator.changed:
        simulator.lose(1, silent=True)
        receive(simulator, 0, simulator.gpus[1].address, 79)
    assert watched.event_named("XidRaised").uuid == uuid(simulator, 1)


@pytest.mark.parametrize("handle", [0xDEAD00, 0x51_0000_0900], ids=["no GPU's", "a GPU that is not watched"])
def test_an_xid_of_an_unknown_gpu_is_reported_and_charged_to_none(simulate, watch, make_box, caplog, handle):
    simulator = simulate(make_box(2))
    watched = watch(simulator, healthy_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    stranger = SimulatedGpu(9, replace(simulator.gpus[0].spec, uuid="GPU-stranger"), None)
    with simulator.changed:
        simulator.at = lambda address, at=simulator.at: stranger if address == stranger.address else at(address)
        simulator.action(1, 1)
        receive(simulator, 0, handle, 79)
    events = [watched.any_event(), watched.any_event()]
    assert {type(event) for event in events} == {XidRaised, HealthRead}
    untied = next(event for event in events if isinstance(event, XidRaised))
    assert (untied.uuid, untied.xid) == (None, 79)
    asked = next(event for event in events if isinstance(event, HealthRead))
    assert asked.uuid == uuid(simulator, 1), "every GPU is asked what the driver says of it"
    (line,) = [record for record in caplog.records if "fault" in record.message]
    assert line.xid == 79
    assert ("GPU-stranger" in line.error) == (handle == stranger.address)


def test_an_event_whose_gpu_is_asked_for_and_hangs_hides_no_other(simulate, watch, make_box, monkeypatch):
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", 0.05)
    simulator = simulate(make_box(3))
    watched = watch(simulator, healthy_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(0, 1, 2)
    simulator.hang("nvmlDeviceGetUUID", 1)
    with simulator.changed:
        receive(simulator, 0, simulator.gpus[1].address + 1, 79)
        receive(simulator, 0, simulator.gpus[0].address, 48)
    events = [watched.event_named("XidRaised") for _ in range(2)]
    assert [(event.uuid, event.xid) for event in events] == [(None, 79), (uuid(simulator, 0), 48)]


def receive(simulator, index, handle, code):
    """An event set of the GPU at `index` receives an XID with that handle."""
    events = next(events for events in simulator.sets.values() if index in events.registered)
    with simulator.changed:
        events.queue.append((handle, int(pynvml.nvmlEventTypeXidCriticalError), code))
        simulator.changed.notify_all()


def test_an_xid_of_a_gpu_that_is_lost_at_once_is_still_tied_to_it(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1, 2)
    with simulator.changed:
        simulator.lose(1)
        simulator.xid(1, 79)
    events = [watched.next(XidRaised | GpuLost) for _ in range(2)]
    assert {type(event) for event in events} == {XidRaised, GpuLost}
    assert {event.uuid for event in events} == {uuid(simulator, 1)}


def test_a_lost_gpu_is_posted_once_and_the_others_stay_watched(simulate, watch):
    simulator = simulate("pcie-4x-a10")
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1, 2, 3)
    simulator.lose(2)
    event = watched.next(GpuLost)
    assert event.uuid == uuid(simulator, 2)
    assert "GPU is lost; it fell off the bus" in event.reason
    watched.watching(0, 1, 3)
    assert watched.up()
    simulator.xid(3, 48)
    assert watched.next(XidRaised).uuid == uuid(simulator, 3)
    assert watched.quiet()


def test_a_gpu_that_comes_back_is_watched_again(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, reread_s=0.05)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    simulator.lose(0)
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)
    simulator.restore(0)
    watched.watching(0, 1)
    event = watched.next(HealthRead)
    assert (event.uuid, event.returned) == (uuid(simulator, 0), True)
    simulator.lose(0)
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)


def test_a_wait_that_fails_for_no_gpu_blames_none_and_comes_back(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    first = set(simulator.sets)
    simulator.fail("nvmlEventSetWait", "UNKNOWN")
    with simulator.changed:
        assert simulator.changed.wait_for(lambda: not first & set(simulator.sets), PATIENCE_S), "the watch is rebuilt"
    simulator.fail("nvmlEventSetWait", None)
    watched.watching(0, 1)
    simulator.xid(0, 13)
    assert watched.next(XidRaised).uuid == uuid(simulator, 0)
    assert watched.up()


def test_a_gpu_without_xid_events_is_reported_and_the_others_are_watched(simulate, watch, make_box, caplog):
    box = make_box(2)
    deaf = make_box(1, xid_events=False)
    simulator = simulate(type(box)(name="deaf", gpus=(deaf.gpus[0], box.gpus[1])))
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(1)
    assert watched.up()
    assert any("reports no XIDs" in getattr(record, "error", "") for record in caplog.records)


def test_a_gpu_that_cannot_be_registered_leaves_the_others_watched(simulate, watch, make_box, caplog):
    simulator = simulate(make_box(3))
    simulator.fail("nvmlDeviceRegisterEvents", "UNKNOWN", gpu=1)
    watched = watch(simulator, reread_s=0.05)
    watched.next(InventoryRead)
    watched.watching(0, 2)
    wait_logged(caplog, "Failed to watch a GPU")
    assert caplog.text.count("Failed to watch a GPU") == 1
    simulator.fail("nvmlDeviceRegisterEvents", None, gpu=1)
    watched.watching(0, 1, 2)


def test_a_late_driver(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    simulator.driver(False, "LIBRARY_NOT_FOUND")
    watched = watch(simulator)
    assert "libnvidia-ml.so.1 was not found" in watched.next(DriverUnavailable).reason
    assert not watched.watch.health_watch_up
    simulator.driver(False, "DRIVER_NOT_LOADED")
    assert "not loaded" in watched.next(DriverUnavailable).reason
    assert watched.quiet(), "the same reason is posted once"
    simulator.driver(True)
    assert len(watched.next(InventoryRead).inventory.gpus) == 1
    watched.watching(0)


def test_a_driver_that_goes_away_and_comes_back(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator)
    before = watched.next(InventoryRead).inventory
    watched.watching(0, 1)
    simulator.driver(False)
    assert "Driver Not Loaded" in watched.next(DriverUnavailable).reason
    simulator.driver(True)
    assert watched.next(InventoryRead).inventory == before
    watched.watching(0, 1)
    assert watched.quiet(), "no GPU is blamed for the driver"


def test_no_gpu_and_unreadable_gpus_are_looked_at_again(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.lose(1)
    watched = watch(simulator, reread_s=0.02)
    assert watched.next(InventoryRead).inventory.unreadable
    watched.watching(0)
    simulator.restore(1)
    assert not watched.next(InventoryRead).inventory.unreadable
    watched.watching(0, 1)


def test_zero_gpus(simulate, watch, make_box):
    watched = watch(simulate(make_box(0)))
    assert watched.next(InventoryRead).inventory.gpus == ()
    watched.watch.stop()


def test_gpus_that_hang_at_the_first_look_hide_no_other(simulate, watch, make_box):
    simulator = simulate(make_box(6))
    for gpu in (1, 4):
        simulator.hang("nvmlDeviceGetMemoryInfo", gpu)
    watched = watch(simulator, patience_s=0.2, stall_s=1000.0)
    inventory = watched.next(InventoryRead).inventory
    assert [gpu.index for gpu in inventory.gpus] == [0, 2, 3, 5]
    assert [(bad.index, bad.reason) for bad in inventory.unreadable] == [
        (n, f"nvmlDeviceGetMemoryInfo on GPU {n} has not returned for 0.2 s") for n in (1, 4)
    ]
    watched.watching(0, 2, 3, 5)
    assert not watched.watch.health_watch_up
    simulator.xid(3, 79)
    assert watched.next(XidRaised).uuid == uuid(simulator, 3)
    simulator.lose(5)
    assert watched.next(GpuLost).uuid == uuid(simulator, 5)
    simulator.restore(5)
    simulator.unhang()
    while watched.next(InventoryRead).inventory.unreadable:
        pass
    watched.watching(0, 1, 2, 3, 4, 5)
    assert watched.up()


def test_a_slow_gpus_answer_counts_when_it_comes(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.hang("nvmlDeviceGetName", 1)
    watched = watch(simulator, patience_s=0.1)
    assert [bad.index for bad in watched.next(InventoryRead).inventory.unreadable] == [1]
    simulator.unhang()
    assert len(watched.next(InventoryRead).inventory.gpus) == 2
    assert [thread.name for thread in threading.enumerate()].count("nvml-read-1") <= 1
    watched.watching(0, 1)


def test_a_health_watch_that_hangs_is_reported_and_silences_no_other(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    simulator.hang("nvmlDeviceRegisterEvents", 1)
    watched = watch(simulator, stall_s=0.1)
    before = watched.next(InventoryRead).inventory
    after = watched.next(InventoryRead).inventory
    assert after.gpus == before.gpus
    assert [(bad.index, bad.reason) for bad in after.unreadable] == [
        (1, "nvmlDeviceRegisterEvents on GPU 1 has not returned for 0.1 s")
    ]
    assert not watched.watch.health_watch_up
    simulator.xid(2, 79)
    assert watched.next(XidRaised).uuid == uuid(simulator, 2)
    simulator.unhang()
    assert watched.next(InventoryRead).inventory == before
    watched.watching(0, 1, 2)
    assert watched.up()


def test_a_gpu_that_hangs_after_it_was_read_is_still_read(simulate, watch, make_box, monkeypatch):
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", 0.05)
    simulator = simulate(make_box(2))
    watched = watch(simulator, patience_s=0.1, reread_s=0.05)
    before = watched.next(InventoryRead).inventory
    watched.watching(0, 1)
    simulator.hang("nvmlDeviceGetUUID", 1)
    simulator.lose(0)
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)
    watched.watch.reread()
    while not (inventory := watched.next(InventoryRead).inventory).unreadable or len(inventory.gpus) > 1:
        pass
    assert inventory.gpus == before.gpus[1:], "it stays as it was read before"
    simulator.xid(1, 79)
    assert watched.next(XidRaised).uuid == uuid(simulator, 1)


def test_a_driver_that_hangs_as_a_whole_is_reported_once_and_its_end_too(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.hang("nvmlDeviceGetCount")
    watched = watch(simulator, stall_s=0.1)
    assert watched.next(DriverUnavailable).reason == "nvmlDeviceGetCount has not returned for 0.1 s"
    assert not watched.watch.health_watch_up
    simulator.unhang()
    assert len(watched.next(InventoryRead).inventory.gpus) == 2
    watched.watching(0, 1)
    assert watched.quiet()


def test_a_driver_that_hangs_for_every_gpu_is_reported_as_soon(simulate, watch, make_box):
    simulator = simulate(make_box(8))
    simulator.hang("nvmlDeviceGetUUID")
    watched = watch(simulator, patience_s=0.1)
    inventory = watched.next(InventoryRead).inventory
    assert (len(inventory.gpus), len(inventory.unreadable)) == (0, 8)
    simulator.unhang()
    while watched.next(InventoryRead).inventory.unreadable:
        pass
    watched.watching(*range(8))


def test_stop_does_not_wait_for_a_call_that_hangs(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    simulator.hang("nvmlInit")
    watched = watch(simulator, stall_s=0.05)
    assert watched.next(DriverUnavailable).reason == "nvmlInit has not returned for 0.05 s"
    watched.watch.stop()
    assert "nvml-discovery" in {thread.name for thread in threading.enumerate()}, "it is left behind in the driver"
    simulator.unhang()


def test_a_fault_in_the_agent_itself_is_survived(simulate, watch, make_box, monkeypatch, caplog):
    def broken(*_, **__):
        monkeypatch.undo()
        raise RuntimeError("a slip")

    monkeypatch.setattr("gpuagent.nvml.driver_reader.inventory_of", broken)
    watched = watch(simulate(make_box(1)))
    assert "a slip" in watched.next(DriverUnavailable).reason
    watched.next(InventoryRead)


def test_from_another_thread_over_the_socket(simulate, watch, make_box, tmp_path):
    simulator = simulate(make_box(2))
    simulator.listen(tmp_path / "s")
    watched = watch(simulator)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    assert inject(tmp_path / "s", {"fault": "xid", "gpu": uuid(simulator, 1), "code": 79})["heard_by"] == 1
    assert watched.next(XidRaised).uuid == uuid(simulator, 1)


def test_missing_device_nodes_are_looked_for_without_the_driver(simulate, watch, make_box, tmp_path, monkeypatch):
    looked, read = threading.Semaphore(0), []
    count, nodes = Nvml.count, device_nodes
    monkeypatch.setattr(Nvml, "count", lambda nvml: (read.append(nvml), count(nvml))[1])
    monkeypatch.setattr("gpuagent.nvml.discovery.device_nodes", lambda dev: (looked.release(), nodes(dev))[1])
    watched = watch(simulate(make_box(2)), reread_s=0.02)
    assert watched.next(InventoryRead).inventory.device_nodes == frozenset()
    for _ in range(10):
        assert looked.acquire(timeout=PATIENCE_S)
    assert len(read) == 1
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia-uvm").touch()
    assert watched.next(InventoryRead).inventory.device_nodes == {"/dev/nvidia-uvm"}


def gpu(**changes):
    values = {"uuid": "GPU-1", "index": 0, "minor": 0, "pci_bus_id": "", "model": "", "memory_mib": 1, **changes}
    return Gpu(**values)


def test_what_is_worth_another_look():
    nodes = frozenset({"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"})
    assert not unsettled(Inventory((gpu(),), device_nodes=nodes))
    assert unsettled(Inventory((gpu(mig=True),), device_nodes=nodes))
    assert unsettled(Inventory((), device_nodes=nodes))
    assert not lacks_nodes(Inventory((gpu(),), device_nodes=nodes))
    assert lacks_nodes(Inventory((gpu(minor=1),), device_nodes=nodes))
    assert lacks_nodes(Inventory((gpu(),), device_nodes=nodes - {"/dev/nvidia-uvm"}))


def test_mig_mode_that_is_switched_under_a_running_agent_is_noticed_in_both_directions(simulate, watch):
    simulator = simulate("dgx-a100")
    watched = watch(simulator, healthy_s=0.05)
    assert not any(gpu.mig for gpu in watched.next(InventoryRead).inventory.gpus)
    for enabled in (True, False):
        simulator.mig(3, enabled=enabled)
        gpus = watched.next(InventoryRead).inventory.gpus
        assert [gpu.index for gpu in gpus if gpu.mig] == ([3] if enabled else [])


def test_memory_that_changes_under_a_running_agent_is_noticed_in_both_directions(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, healthy_s=0.05)
    before = watched.next(InventoryRead).inventory.gpus
    for mib in (before[1].memory_mib - 1024, before[1].memory_mib + 1024):
        simulator.odd(1, "memory_mib", mib)
        after = watched.next(InventoryRead).inventory.gpus
        assert [gpu.memory_mib for gpu in after] == [before[0].memory_mib, mib]


def test_a_gpu_that_does_not_report_its_mig_mode_is_read_once(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    watched = watch(simulator, healthy_s=0.02)
    watched.next(InventoryRead)
    simulator.fail("nvmlDeviceGetMigMode", "NOT_SUPPORTED")
    simulator.action(0, 1)
    watched.event_named("HealthRead")
    assert watched.quiet()


# -- what all GPUs share ------------------------------------------------------------------------------------------


@pytest.fixture
def forbidden(monkeypatch):
    """The container has lost its devices: the kernel refuses to open the driver's control device."""
    control = ControlDevice("/dev/nvidiactl", "Operation not permitted", forbidden=True)
    monkeypatch.setattr("gpuagent.nvml.driver_reader.control_device", lambda dev: control)


SHARED = ("UNKNOWN", "NO_PERMISSION", "OPERATING_SYSTEM")


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("error", SHARED)
def test_an_error_that_all_gpus_give_is_the_drivers_and_is_said_once(simulate, watch, make_box, function, error):
    simulator = simulate(make_box(4))
    watched = watch(simulator, alive_s=0.05, healthy_s=0.1, unhealthy_s=0.1)
    before = watched.next(InventoryRead).inventory
    watched.watching(*range(4))
    simulator.fail(function, error)
    reason = watched.next(DriverUnavailable).reason
    assert reason.startswith(function)
    assert "none of the 4 GPUs can be read" in reason
    assert "nvidiactl cannot be opened (No such file or directory)" in reason
    assert watched.quiet(), "no GPU is blamed"
    simulator.fail(function, None)
    while watched.event_named("InventoryRead").inventory != before:  # it may see the error go from GPU to GPU
        pass
    assert watched.watch.restart_helps is None


def test_a_container_that_lost_its_devices_is_to_be_restarted(simulate, watch, make_box, forbidden):
    simulator = simulate(make_box(2))
    watched = watch(simulator, alive_s=0.05)
    watched.next(InventoryRead)
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN")
    assert "container has lost its devices" in watched.next(DriverUnavailable).reason
    assert watched.watch.restart_helps == "/dev/nvidiactl cannot be opened any more (Operation not permitted)"
    simulator.fail("nvmlDeviceGetMemoryInfo", None)
    watched.next(InventoryRead)
    assert watched.watch.restart_helps is None


def test_a_container_that_never_had_the_devices_is_not_restarted_in_vain(simulate, watch, make_box, forbidden):
    simulator = simulate(make_box(1))
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN")
    watched = watch(simulator)
    assert "the only GPU cannot be read" in watched.next(DriverUnavailable).reason
    assert watched.watch.restart_helps is None


def test_the_only_gpu_of_a_node_is_blamed_while_the_driver_can_be_opened(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    watched = watch(simulator, alive_s=0.05)
    watched.next(InventoryRead)
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN")
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)


def test_one_gpu_among_others_is_blamed_for_its_own_error(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    watched = watch(simulator, alive_s=0.05)
    watched.next(InventoryRead)
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN", gpu=1)
    assert watched.next(GpuLost).uuid == uuid(simulator, 1)


def test_a_gpu_that_is_lost_already_does_not_hide_what_the_others_share(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    watched = watch(simulator, alive_s=0.05, healthy_s=0.1)
    watched.next(InventoryRead)
    simulator.lose(0)
    watched.event_named("GpuLost")
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN", gpu=1)
    simulator.fail("nvmlDeviceGetMemoryInfo", "UNKNOWN", gpu=2)
    assert "none of the 3 GPUs can be read" in watched.event_named("DriverUnavailable").reason


@pytest.mark.parametrize(("loaded", "helps"), [("580.95.05", False), ("590.10", True), ("", False)])
def test_a_restart_helps_if_the_driver_was_replaced(simulate, watch, make_box, tmp_path, loaded, helps):
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {loaded}  Mon Sep  1 2025\n")
    simulator = simulate(make_box(1))
    watched = watch(simulator, proc=tmp_path / "proc")
    watched.next(InventoryRead)
    simulator.driver(False, "LIB_RM_VERSION_MISMATCH")
    assert "of different versions" in watched.next(DriverUnavailable).reason
    assert bool(watched.watch.restart_helps) is helps


def test_a_call_that_hangs_on_every_gpu_is_the_drivers(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, patience_s=0.05)
    watched.next(InventoryRead)
    simulator.hang("nvmlDeviceGetName")
    watched.watch.reread()
    assert "none of the 2 GPUs answers: nvmlDeviceGetName on GPU 0" in watched.next(DriverUnavailable).reason
    simulator.unhang()
    assert len(watched.event_named("InventoryRead").inventory.gpus) == 2


def test_a_gpu_that_does_not_report_its_memory_is_watched_like_any_other(simulate, watch):
    simulator = simulate("gb10")
    watched = watch(simulator, healthy_s=0.02, alive_s=0.01)
    assert len(watched.next(InventoryRead).inventory.gpus) == 1
    watched.watching(0)
    simulator.action(0, 2)
    while watched.event_named("HealthRead").reading.action != 2:
        pass
    simulator.lose(0, silent=True)
    assert watched.event_named("GpuLost").uuid == uuid(simulator, 0)


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_posted(simulate, watch, make_box, tmp_path):
    for name, driver in (("0000:01:00.0", "nvidia"), ("0000:02:00.0", "nvidia"), ("0000:03:00.0", "vfio-pci")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de")
        (folder / "class").write_text("0x030200")
        (tmp_path / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers" / driver)
    watched = watch(simulate(make_box(1)))
    inventory = watched.next(InventoryRead).inventory
    assert inventory.gpus[0].pci_bus_id == "00000000:01:00.0"
    assert inventory.absent == {"0000:02:00.0": "bound to driver nvidia"}
