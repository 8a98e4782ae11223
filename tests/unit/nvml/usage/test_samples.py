"""What GPUs are used for, asked through the real binding; in time, or not at all."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpuagent.domain.usage.process_cgroup import ProcessContainer
from gpuagent.nvml.driver_errors import CallError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.nvml.usage.samples import Sampler
from gpuagent.nvml.usage.usage_queries import UsageNvml, placed, read_sample
from gpuagent.simulation import boxes
from gpuagent.simulation.simulator import FaultError, Simulator
from gpuagent.system.process_cgroups import ProcessCgroups, boot_s
from standin.waiting import PATIENCE_S

ID = "ab" * 32
GIB = 1 << 30


class Clock:
    """Monotonic seconds that pass when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def proc(root: Path, pid: int, cgroup: str = f"0::/kubepods/{ID}\n", began: int = 1) -> None:
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    fields = ["S", *["0"] * 18, str(began), "0"]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")


@pytest.fixture
def box(simulate) -> Simulator:
    return simulate("dgx-a100")


def take(box: Simulator, root: Path, index: int = 0):
    nvml = UsageNvml()
    with nvml.session():
        return placed(*read_sample(nvml, index, box.gpus[index].spec.uuid, lambda: 7.0), ProcessCgroups(root))


# -- what NVML says --------------------------------------------------------------------------------------------


def test_a_sample_has_everything(box: Simulator, tmp_path: Path) -> None:
    proc(tmp_path, 10)
    box.process(0, 10, 2048, sm=30)
    box.process(0, 11, 512)
    box.busy(0, 60)
    sample = take(box, tmp_path)
    assert (sample.at, sample.memory_used_bytes, sample.busy) == (7.0, 2560 << 20, 0.6)
    assert (sample.temperature_celsius, sample.power_watts) == (30, 40.0)
    assert {(p.pid, p.memory_bytes, p.busy, p.place) for p in sample.processes} == {
        (10, 2 * GIB, 0.3, ProcessContainer(ID)),
        (11, 512 << 20, 0.0, None),
    }
    assert take(box, tmp_path, 1).processes == ()


def test_a_process_in_several_lists_counts_once(box: Simulator, tmp_path: Path) -> None:
    box.process(0, 10, 2048)
    box.process(0, 10, 2048, kind="graphics")
    (process,) = take(box, tmp_path).processes
    assert process.memory_bytes == 2 * GIB


def test_memory_that_is_not_reported_is_not_zero(box: Simulator, tmp_path: Path) -> None:
    box.process(0, 10, None)
    (process,) = take(box, tmp_path).processes
    assert process.memory_bytes is None


def test_a_client_of_mps_without_a_sample_may_be_at_work(box: Simulator, tmp_path: Path) -> None:
    """The server's process is the one that drivers tell of."""
    box.process(0, 9, 30, sm=80)
    box.process(0, 10, 2048, kind="mps")
    box.process(0, 11, 1024, kind="mps", sm=20)
    assert {p.pid: (p.memory_bytes, p.busy) for p in take(box, tmp_path).processes} == {
        9: (30 << 20, 0.8),
        10: (2 * GIB, None),
        11: (GIB, 0.2),
    }


def test_in_mig_mode_the_driver_does_not_say_how_busy_a_process_is(box: Simulator, tmp_path: Path) -> None:
    box.process(0, 10, 2048, sm=30)
    box.mig(0, True)
    sample = take(box, tmp_path)
    assert sample.busy is None
    assert [p.busy for p in sample.processes] == [None]


def test_many_processes_fit(box: Simulator, tmp_path: Path) -> None:
    for pid in range(1, 61):
        box.process(0, pid, 1, sm=1)
    assert len(take(box, tmp_path).processes) == 60


def test_the_buffer_of_a_list_has_to_be_large_enough(box: Simulator) -> None:
    """NVML's protocol, as other users of the binding meet it."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)
    for pid in (1, 2):
        box.process(0, pid, None, sm=1)
    function = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
    count, array = pynvml.c_uint(1), (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    assert function(gpu, pynvml.byref(count), array) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 2
    assert array[0].pid == 0
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)[0].usedGpuMemory is None
    assert [s.pid for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)] == [1, 2]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(gpu, 1 << 62)


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "UNKNOWN"])
def test_a_gpu_that_does_not_list_its_processes_reports_the_rest(box: Simulator, tmp_path: Path, error: str) -> None:
    box.process(0, 10, 2048)
    box.fail("nvmlDeviceGetComputeRunningProcesses", error)
    sample = take(box, tmp_path)
    assert sample.processes is None
    assert sample.memory_used_bytes == 2 * GIB


def test_a_gpu_without_graphics_lists_what_it_has(box: Simulator, tmp_path: Path) -> None:
    box.process(0, 10, 2048)
    box.fail("nvmlDeviceGetGraphicsRunningProcesses", "NOT_SUPPORTED")
    assert [p.pid for p in take(box, tmp_path).processes] == [10]


def test_drivers_before_510_have_the_second_version(simulate, tmp_path: Path) -> None:
    lists = {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")}
    box = simulate(replace(boxes.load("dgx-a100"), missing=frozenset({*lists, "nvmlDeviceGetMemoryInfo_v2"})))
    box.process(0, 10, 2048)
    sample = take(box, tmp_path)
    assert [p.pid for p in sample.processes] == [10]
    assert sample.memory_used_bytes == (2048 + box.gpus[0].spec.reserved_mib) << 20


def test_a_gpu_under_another_index_is_not_taken_for_this_one(box: Simulator) -> None:
    nvml = UsageNvml()
    with nvml.session(), pytest.raises(CallError, match="another index"):
        read_sample(nvml, 1, box.gpus[0].spec.uuid, lambda: 0.0)


def test_a_process_comes_and_goes_from_elsewhere_too(box: Simulator, tmp_path: Path) -> None:
    box.apply({"fault": "process", "gpu": 0, "pid": 5, "mib": 7, "kind": "mps", "sm": None})
    assert len(take(box, tmp_path).processes) == 1
    box.apply({"fault": "end", "gpu": 0, "pid": 5})
    assert take(box, tmp_path).processes == ()
    for wrong in ({"kind": "tensor"}, {"pid": "x"}, {"mib": 1.5}):
        with pytest.raises(FaultError):
            box.apply({"fault": "process", "gpu": 0, "pid": 5, **wrong})


# -- where processes run -----------------------------------------------------------------------------------------


def test_a_pid_that_somebody_else_has_by_now_is_nobodys(tmp_path: Path) -> None:
    places, asked = ProcessCgroups(tmp_path), boot_s()
    ticks = os.sysconf("SC_CLK_TCK")
    proc(tmp_path, 10, began=int((asked - 1) * ticks))
    assert places.of(10, asked) == ProcessContainer(ID)
    proc(tmp_path, 10, f"0::/kubepods/{'cd' * 32}\n", began=int((asked + 5) * ticks))
    assert places.of(10, asked) is None
    assert places.of(10, asked + 6) == ProcessContainer("cd" * 32)


def test_a_process_beside_the_agent_is_told_from_one_that_is_nowhere(tmp_path: Path) -> None:
    """In the agent's cgroup namespace, its own cgroups are the root."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    proc(tmp_path, 10, "0::/\n")
    proc(tmp_path, 11, "0::/../docker\n")
    places = ProcessCgroups(tmp_path)
    assert places.of(10, boot_s()) == ProcessContainer(of_agent=True)
    assert places.of(11, boot_s()) == ProcessContainer()


def test_a_process_that_ended_is_nowhere(tmp_path: Path) -> None:
    assert ProcessCgroups(tmp_path).of(10, boot_s()) is None
    proc(tmp_path, 10)
    (tmp_path / "10" / "stat").write_text("10 (x) Z 0 0")
    assert ProcessCgroups(tmp_path).of(10, boot_s()) is None


def test_a_real_process_is_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert ProcessCgroups().of(child.pid, boot_s()) is not None
        child.communicate(b"\n")
    assert ProcessCgroups().of(child.pid, boot_s()) is None


# -- when ------------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_while_nobody_asks_and_a_fresh_sample_is_given_again(box: Simulator, tmp_path: Path) -> None:
    gpus, clock = discover().gpus, Clock()
    before = set(threading.enumerate())  # one of another test may be about to end
    sampler = Sampler(clock, proc=tmp_path)
    assert set(threading.enumerate()) <= before
    first = sampler.samples(gpus)
    assert len(first.by_uuid) == 8
    box.process(0, 10, 2048)
    assert sampler.samples(gpus).by_uuid == first.by_uuid
    clock.now += 2.0
    assert sampler.samples(gpus).by_uuid[gpus[0].uuid].memory_used_bytes == 2 * GIB


def test_only_the_gpus_that_are_asked_for_are_queried_and_the_others_stay_known(box: Simulator, tmp_path: Path) -> None:
    gpus, clock = discover().gpus, Clock()
    sampler = Sampler(clock, proc=tmp_path)
    sampler.samples(gpus)
    box.process(0, 10, 2048)
    box.process(1, 11, 2048)
    clock.now += 10.0
    by_uuid = sampler.samples(gpus, {gpus[1].uuid}).by_uuid
    assert len(by_uuid) == 8
    assert by_uuid[gpus[0].uuid].memory_used_bytes == 0  # as of ten seconds ago
    assert by_uuid[gpus[1].uuid].memory_used_bytes == 2 * GIB
    assert {sample.at for sample in by_uuid.values()} == {1000.0, 1010.0}


def test_a_gpu_that_hangs_costs_no_other_and_is_waited_for_once(box: Simulator, tmp_path: Path) -> None:
    gpus, clock = discover().gpus, Clock()
    sampler = Sampler(clock, proc=tmp_path, patience_s=0.05)
    sampler.samples(gpus)
    box.hang("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    for _ in range(3):
        clock.now += 3.0
        hanging = sampler.samples(gpus)
    assert list(hanging.failing) == [gpus[3].uuid]
    assert "nvmlDeviceGetComputeRunningProcesses_v3" in hanging.failing[gpus[3].uuid]
    assert len(hanging.by_uuid) == 8
    assert len([t for t in threading.enumerate() if t.name == "nvml-sample-3"]) == 1
    clock.now += 30.0
    assert len(sampler.samples(gpus).by_uuid) == 7  # too old to be shown
    box.unhang()
    for thread in threading.enumerate():
        if thread.name == "nvml-sample-3":
            thread.join(PATIENCE_S)
    clock.now += 3.0
    healed = sampler.samples(gpus)
    assert (len(healed.by_uuid), healed.failing) == (8, {})


def test_a_lost_gpu_is_reported_and_ends(box: Simulator, tmp_path: Path) -> None:
    gpus, clock = discover().gpus, Clock()
    sampler = Sampler(clock, proc=tmp_path)
    sampler.samples(gpus)
    box.lose(0)
    clock.now += 5.0
    lost = sampler.samples(gpus)
    assert "GPU is lost" in lost.failing[gpus[0].uuid]
    assert len(lost.by_uuid) == 8
    clock.now += 30.0
    assert gpus[0].uuid not in sampler.samples(gpus).by_uuid


def test_a_driver_that_is_away_fails_every_gpu(box: Simulator, tmp_path: Path) -> None:
    gpus = discover().gpus
    box.driver(False)
    samples = Sampler(Clock(), proc=tmp_path).samples(gpus)
    assert (len(samples.failing), samples.by_uuid) == (8, {})


def test_whether_every_pid_is_seen_is_asked_of_the_kernel(tmp_path: Path) -> None:
    assert Sampler(Clock(), proc=tmp_path).samples(()).pids_seen is False
