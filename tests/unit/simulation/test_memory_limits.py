"""Memory limits of the simulated driver, seen through the binding, for processes in directories that stand for cgroups."""

import os
from pathlib import Path

import pynvml
import pytest

from gpuagent.nvml.binding.limit_calls import NO_LIMIT, LimitCalls, LimitRefusal, MemoryLimits, refusal
from gpuagent.nvml.driver_errors import CallError
from gpuagent.simulation.simulator import FaultError, inject, install

MIB = 1 << 20
GIB = 1 << 30
POD = "kubepods/pod1"
LEAF = "kubepods/pod1/a"
NEIGHBOR = "kubepods/pod2/a"


class Limited:
    """A simulated driver with limits, and NVML in a session."""

    def __init__(self, simulator, cgroups):
        self.simulator = simulator
        self.cgroups = cgroups
        self.nvml = LimitCalls()
        self.session = self.nvml.session()
        self.session.__enter__()
        for path in (LEAF, NEIGHBOR):
            cgroups.make(path)

    def set(self, path, hard, soft=0, gpu=0):
        self.nvml.set_memory_limits(self.nvml.handle(gpu), self.cgroups.root / path, soft, hard)

    def get(self, path, gpu=0):
        return self.nvml.memory_limits(self.nvml.handle(gpu), self.cgroups.root / path)

    def refusal(self, call, *args):
        with pytest.raises(CallError) as err:
            call(*args)
        return refusal(err.value)

    def allocate(self, mib, path=LEAF, pid=4711, **fields):
        self.cgroups.process(pid, path)
        self.simulator.alloc(0, pid, mib, **fields)

    def new_session(self):
        """Close NVML and open it again."""
        self.session.__exit__(None, None, None)
        self.session = self.nvml.session()
        self.session.__enter__()


@pytest.fixture
def limited(simulate_limits, cgroups):
    made = []

    def make(backend, **gpu):
        made.append(Limited(simulate_limits(backend, **gpu), cgroups))
        return made[-1]

    yield make
    for limited in made:
        limited.session.__exit__(None, None, None)


@pytest.fixture(params=["dmem", "misc"])
def both(request, limited):
    return limited(request.param)


def test_a_limit_is_set_read_and_enforced(both):
    both.set(LEAF, 3 * GIB)
    assert both.get(LEAF) == MemoryLimits(soft=0, hard=3 * GIB, used=0)
    both.allocate(2048)
    assert both.get(LEAF) == MemoryLimits(0, 3 * GIB, 2 * GIB)
    with pytest.raises(FaultError, match="the driver refuses: OUT_OF_MEMORY"):
        both.allocate(1025)
    both.allocate(1025, NEIGHBOR, pid=4712)
    both.simulator.end(0, 4711)
    assert both.get(LEAF).used == 0


def test_the_other_gpu_has_its_own(both):
    both.set(LEAF, GIB, gpu=1)
    both.allocate(2048)
    assert both.get(LEAF, gpu=1) == MemoryLimits(0, GIB, 0)


def test_the_codes_of_both_backends(both):
    assert both.refusal(both.set, "", 1) is LimitRefusal.NOT_SUPPORTED, "the root cgroup"
    assert both.get("") is None
    for call in (both.get, lambda path: both.set(path, 1)):
        assert both.refusal(call, "kubepods/pod3") is LimitRefusal.NOT_FOUND
        assert both.refusal(call, "../proc") is LimitRefusal.INVALID_LIMIT, "no cgroup"
        assert both.refusal(call, "kubepods/../../removed") is LimitRefusal.INVALID_LIMIT
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetMemoryLimits_v1(both.nvml.handle(0).pointer, limits)


def test_other_faults_hold_for_these_calls_too(both):
    both.simulator.fail("nvmlDeviceSetMemoryLimits_v1", "NO_PERMISSION", 0)
    assert both.refusal(both.set, POD, 1) is LimitRefusal.NO_PERMISSION
    both.set(POD, 1, gpu=1)
    both.simulator.lose(0)
    assert both.refusal(both.get, POD) is LimitRefusal.OTHER


def test_a_path_may_have_any_bytes(both):
    name = os.fsdecode(b"kubepods/\xff")
    both.cgroups.make(name)
    both.set(name, 1)
    assert both.get(name).hard == 1


def test_what_is_not_limited_reads_differently(limited):
    dmem = limited("dmem")
    dmem.set(POD, GIB)
    assert dmem.get(LEAF) == MemoryLimits(0, NO_LIMIT, 0)
    misc = limited("misc")
    assert misc.get(LEAF) is None
    misc.set(POD, GIB)
    assert misc.get(LEAF) == MemoryLimits(0, GIB, 0)


def test_a_limit_below_the_use(limited):
    for backend in ("dmem", "misc"):
        driver = limited(backend)
        driver.set(POD, 3 * GIB)
        driver.allocate(2048)
        if backend == "misc":
            assert driver.refusal(driver.set, POD, GIB) is LimitRefusal.INVALID_LIMIT
        else:
            driver.set(POD, GIB)
        assert driver.get(POD) == MemoryLimits(0, 3 * GIB, 2 * GIB)


def test_dmem_files_may_be_missing(limited):
    driver = limited("dmem")
    driver.set(POD, GIB)
    driver.simulator.dmem_files(str(driver.cgroups.root / POD), False)
    for path in (POD, LEAF):
        assert driver.refusal(driver.set, path, 1) is LimitRefusal.NOT_FOUND
    assert driver.get(LEAF) == MemoryLimits(0, NO_LIMIT, 0), "that of kubepods"
    driver.simulator.dmem_files(str(driver.cgroups.root / POD), True)
    driver.set(LEAF, 1)
    with pytest.raises(FaultError, match="not below .*, where the cgroups are"):
        driver.simulator.dmem_files("/etc", False)


def test_mig(limited):
    both = limited("misc", mig=False)
    both.set(POD, GIB)
    both.simulator.mig(0, True)
    assert both.refusal(both.set, POD, 1) is LimitRefusal.NOT_SUPPORTED
    assert both.get(POD) is None
    both.set(POD, GIB, gpu=1)
    both.simulator.limits("misc")
    assert both.refusal(both.set, POD, 1) is LimitRefusal.NOT_SUPPORTED, "still, after the driver is loaded anew"


def test_the_feature_may_be_off(limited):
    off = limited("none")
    assert off.refusal(off.set, POD, 1) is LimitRefusal.NOT_SUPPORTED
    assert off.get(POD) is None
    off.allocate(20000)


def test_a_driver_before_615_has_no_limits_until_it_is_upgraded(make_box, cgroups):
    with install(make_box(1), cgroups.source) as simulator:
        old = Limited(simulator, cgroups)
        assert old.nvml.driver_version() == "580.95.05"
        assert old.refusal(old.set, POD, 1) is LimitRefusal.FUNCTION_NOT_FOUND
        assert old.refusal(old.get, POD) is LimitRefusal.FUNCTION_NOT_FOUND
        with pytest.raises(FaultError, match=r"driver 580.95.05 has no memory limits; inject the fault limits first"):
            simulator.alloc(0, 1, 1)
        simulator.persistence(0, False)
        assert pynvml.nvmlDeviceGetPersistenceMode(old.nvml.handle(0).pointer) == 0
        for event in (simulator.reset, simulator.restore):
            event(0)
        simulator.limits("misc")
        assert old.nvml.driver_version() == "615.71.09"
        old.set(POD, 1)
        assert old.get(POD).hard == 1
        old.new_session()
        assert old.get(POD) is None, "persistence mode is still off"


def test_a_gpu_without_memory_of_its_own(limited):
    driver = limited("misc", memory_reported=False)
    assert driver.refusal(driver.set, POD, 1) is LimitRefusal.NOT_FOUND
    with pytest.raises(FaultError, match=r"GPU 0 \(NVIDIA A10\) has no memory of its own"):
        driver.allocate(1)
    driver.simulator.reset(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(driver.nvml.handle(0).pointer)


def test_a_gpu_that_reports_another_uuid_keeps_its_limits(both):
    both.set(POD, GIB)
    both.simulator.odd(0, "uuid", "GPU-1,GPU-2")
    assert both.get(POD).hard == GIB
    both.simulator.reset(0)


# -- cgroups that come and go --------------------------------------------------------------------------------------


def test_a_removed_cgroup_leaves_its_limit_to_the_next_at_its_address(limited):
    driver = limited("misc")
    driver.simulator.limits("misc", reused=100)
    driver.set(POD, GIB)
    driver.set(NEIGHBOR, 9 * GIB)
    driver.cgroups.remove(NEIGHBOR)
    driver.cgroups.make("kubepods/pod1/b")
    assert driver.get("kubepods/pod1/b").hard == 9 * GIB
    driver.allocate(8192, "kubepods/pod1/b")


def test_no_address_is_reused_if_told_so(limited):
    driver = limited("misc")
    driver.simulator.limits("misc", reused=0)
    driver.set(POD, GIB)
    for _ in range(20):
        driver.set(NEIGHBOR, 9 * GIB)
        driver.cgroups.remove(NEIGHBOR)
        driver.cgroups.make(NEIGHBOR)
        assert driver.get(NEIGHBOR) is None


def test_a_cgroup_made_again_with_its_children_is_another(limited):
    driver = limited("dmem")
    driver.set(POD, GIB)
    driver.set(LEAF, GIB)
    driver.allocate(512)
    driver.simulator.end(0, 4711)
    driver.cgroups.remove(POD)
    assert driver.refusal(driver.get, LEAF) is LimitRefusal.NOT_FOUND
    driver.cgroups.make(LEAF)
    assert driver.get(LEAF) == driver.get(POD) == MemoryLimits(0, NO_LIMIT, 0)


def test_a_cgroup_that_is_moved_is_another(limited):
    driver = limited("dmem")
    driver.set(LEAF, GIB)
    (driver.cgroups.root / LEAF).rename(driver.cgroups.root / "kubepods/pod2/b")
    assert driver.get("kubepods/pod2/b") == MemoryLimits(0, NO_LIMIT, 0)


# -- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "0::/{}",
        "12:cpu,memory:/{}\n3:pids:/elsewhere\n0::/elsewhere",
        "0::/elsewhere\n4:memory:/{}",
        "1:name=systemd:/elsewhere\n0::/{}",
    ],
)
def test_the_cgroup_of_a_process(line, both):
    both.cgroups.process(4711, LEAF, line)
    both.simulator.alloc(0, 4711, 512)
    both.set(LEAF, GIB)
    used = both.get(POD).used if both.simulator.device_memory.accounting.backend == "dmem" else 0
    assert used in {0, 512 * MIB}
    both.simulator.alloc(0, 4711, 1)
    assert both.get(LEAF).used in {MIB, 513 * MIB}


@pytest.mark.parametrize("path", ["../kubepods", "kubepods/pod9", "kubepods/\0", "x" * 5000])
def test_a_process_elsewhere_is_a_mistake_that_is_told(path, both):
    with pytest.raises(FaultError, match=r"process 4711 is in cgroup .*, which is not below"):
        both.allocate(1, path)


def test_a_process_that_has_ended(both):
    both.cgroups.process(4711, LEAF)
    both.cgroups.end(4711)
    with pytest.raises(FaultError, match="NOT_FOUND"):
        both.simulator.alloc(0, 4711, 1)
    both.cgroups.process(4711, f"{LEAF} (deleted)")
    with pytest.raises(FaultError, match="NOT_FOUND"):
        both.simulator.alloc(0, 4711, 1)


def test_the_creator_of_the_client(limited):
    misc = limited("misc")
    for path in (LEAF, NEIGHBOR):
        misc.set(path, GIB)
    misc.cgroups.process(4710, NEIGHBOR)
    misc.allocate(512, creator=4710)
    assert (misc.get(LEAF).used, misc.get(NEIGHBOR).used) == (0, 512 * MIB)
    misc.cgroups.end(4710)
    misc.allocate(4096, creator=4710)
    assert (misc.get(LEAF).used, misc.get(NEIGHBOR).used) == (0, 512 * MIB), "an ended creator is not charged"


def test_managed_memory(both):
    both.set(LEAF, GIB)
    both.allocate(20000, kind="managed")
    assert both.get(LEAF).used == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(both.nvml.handle(0).pointer).used == 20512 * MIB
    with pytest.raises(FaultError, match="kind: 'host' is not one of device, managed"):
        both.allocate(1, kind="host")


def test_memory_as_this_process_is_told(limited):
    misc = limited("misc")
    gpu = misc.nvml.handle(0).pointer

    def info():
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
        return memory.total // MIB, memory.used // MIB, memory.free // MIB

    assert info() == (23028, 0, 22516), "this process is not known to be in a cgroup"
    misc.cgroups.process(os.getpid(), NEIGHBOR)
    misc.allocate(1024)
    assert info() == (23028, 1024, 21492)
    misc.set("kubepods/pod2", 4 * GIB)
    assert info() == (4096, 0, 4096)
    misc.allocate(1000, NEIGHBOR, pid=4712)
    assert info() == (4096, 1000, 3096)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).total == 23028 * MIB, "the first version of the call tells all"
    misc.simulator.limits("dmem")
    misc.set("kubepods/pod2", 4 * GIB)
    assert info() == (23028, 0, 22516), "a limit of the pod is not told"
    misc.set(NEIGHBOR, 4 * GIB)
    assert info() == (4096, 0, 4096)


# -- when limits are lost ------------------------------------------------------------------------------------------


def is_limited(driver, path=POD):
    limits = driver.get(path)
    return limits is not None and limits.hard != NO_LIMIT


def test_without_persistence_the_end_of_nvml_drops_limits(both):
    both.set(POD, GIB)
    both.new_session()
    assert is_limited(both), "persistence mode keeps the GPU running"
    both.simulator.persistence(0, False)
    assert is_limited(both), "NVML has the GPU open"
    both.allocate(10)
    both.new_session()
    assert is_limited(both), "a process has the GPU open"
    both.simulator.end(0, 4711)
    both.new_session()
    assert not is_limited(both)


def test_what_else_drops_limits(both):
    def driver_gone_and_back():
        both.simulator.driver(False)
        both.simulator.driver(True)
        both.new_session()

    def lost_and_back():
        both.simulator.lose(0)
        both.simulator.restore(0)

    for event in (
        lambda: both.simulator.reset(0),
        driver_gone_and_back,
        lost_and_back,
        lambda: both.simulator.limits("misc"),
    ):
        both.set(POD, GIB)
        both.allocate(10)
        assert is_limited(both)
        event()
        assert not is_limited(both)
        assert both.simulator.device_memory.used(both.simulator.box.gpus[0].uuid) == 0


# -- NVIDIA's toolkit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "limits"),
    [
        ({"limit": "2048"}, MemoryLimits(2 * GIB, 2 * GIB, 0)),
        ({"limit": "2048", "request": "0"}, MemoryLimits(0, 2 * GIB, 0)),
        ({"request": "1024"}, MemoryLimits(GIB, NO_LIMIT, 0)),
        ({}, MemoryLimits(0, 4 * GIB, 0)),
    ],
)
def test_the_toolkit_sets_what_the_environment_says(variables, limits, both):
    for gpu in (0, 1):
        both.set(LEAF, 4 * GIB, gpu=gpu)
    both.simulator.hook(str(both.cgroups.root / LEAF), **variables)
    assert both.get(LEAF) == both.get(LEAF, gpu=1) == limits


def test_the_toolkit_makes_the_container_fail(both):
    path = str(both.cgroups.root / LEAF)
    for variables, words in (
        ({"limit": "9" * 5000}, "limit '9999999999.* is not a number of MiB"),
        ({"limit": "1", "request": "2"}, "its request of 2 MiB is above its limit of 1 MiB"),
        ({"limit": "-1"}, "limit '-1' is not a number of MiB"),
        ({"limit": "²"}, "is not a number of MiB"),
    ):
        with pytest.raises(FaultError, match=words):
            both.simulator.hook(path, **variables)
    with pytest.raises(FaultError, match="there is no cgroup"):
        both.simulator.hook(f"{path}/none", limit="1")


def test_misc_a_forged_environment_replaces_the_pods_limit(limited):
    driver = limited("misc")
    driver.set(POD, GIB)
    driver.simulator.hook(str(driver.cgroups.root / LEAF), limit="16384", gpu=0)
    driver.allocate(16384)
    assert driver.get(POD).used == 0


def test_dmem_a_forged_environment_gains_nothing(limited):
    driver = limited("dmem")
    driver.set(POD, GIB)
    driver.simulator.hook(str(driver.cgroups.root / LEAF), limit="16384", gpu=0)
    with pytest.raises(FaultError, match="OUT_OF_MEMORY"):
        driver.allocate(1025)


def test_faults_as_data(both, tmp_path):
    socket = tmp_path / "s"
    both.simulator.listen(socket)
    both.cgroups.process(4711, LEAF)
    path = str(both.cgroups.root / LEAF)
    for fault in (
        {"fault": "hook", "path": path, "limit": "4096", "request": None, "gpu": 0},
        {"fault": "alloc", "gpu": 0, "pid": 4711, "mib": 1, "kind": "managed"},
        {"fault": "alloc", "gpu": 0, "pid": 4711, "mib": 2, "creator": 4711},
        {"fault": "persistence", "gpu": 0, "enabled": True},
        {"fault": "dmem_files", "path": str(Path(path).parent / "b"), "present": False},
    ):
        assert inject(socket, fault) == {"ok": True}
    assert both.get(LEAF) == MemoryLimits(4 * GIB, 4 * GIB, 2 * MIB)
    for fault in (
        {"fault": "end", "gpu": 0, "pid": 4711},
        {"fault": "reset", "gpu": 0},
        {"fault": "limits", "backend": "misc", "seed": 7, "reused": 100},
    ):
        assert inject(socket, fault) == {"ok": True}
    with pytest.raises(FaultError, match="backend: 'v1' is not one of dmem, misc, none"):
        inject(socket, {"fault": "limits", "backend": "v1"})
    with pytest.raises(FaultError, match="reused is a number from 0 to 100"):
        inject(socket, {"fault": "limits", "backend": "misc", "reused": 101})
