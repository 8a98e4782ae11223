"""NVML's data on a GPU's use: memory, work, and the processes behind them."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from gpuagent.domain.usage.by_container import GpuProcess, GpuSample
from gpuagent.nvml.answers import MOST_MEMORY, unsigned, whole
from gpuagent.nvml.binding.calls import ABSENT, GONE, Handle
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import CallError
from gpuagent.system.process_cgroups import ProcessCgroups, boot_s

T = TypeVar("T")

_MPS = "MPSCompute"
_LISTS = ("Compute", "Graphics", _MPS)
_NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
_FUNCTION_NOT_FOUND = int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
UTILISATION_WINDOW_S = 5.0
"""Older samples of processes do not count."""

MOST_POWER_MW = 100_000_000

_Process = tuple[int, int, int]
"""PID, and the MIG instance that it uses."""


class UsageNvml(Nvml):
    """NVML for a thread that reads the usage of GPUs."""

    def memory_used_bytes(self, gpu: Handle) -> int:
        """Memory in use. Drivers before 510 count the reserved part as used."""
        try:
            return self._read("nvmlDeviceGetMemoryInfo", gpu, _used, pynvml.nvmlMemory_v2)
        except CallError as err:
            if err.code not in ABSENT:
                raise
            return self._read("nvmlDeviceGetMemoryInfo", gpu, _used)

    def busy(self, gpu: Handle) -> float:
        """Part of the last sampling period in which the GPU worked."""
        percent = self._read("nvmlDeviceGetUtilizationRates", gpu, lambda rates: whole(rates.gpu, 0, 100))
        return percent / 100

    def temperature_celsius(self, gpu: Handle) -> int:
        sensor = pynvml.NVML_TEMPERATURE_GPU
        return self._read("nvmlDeviceGetTemperature", gpu, lambda degrees: whole(degrees, -99, 999), sensor)

    def power_watts(self, gpu: Handle) -> float:
        milliwatts = self._read("nvmlDeviceGetPowerUsage", gpu, lambda amount: whole(amount, 0, MOST_POWER_MW))
        return milliwatts / 1000

    def processes(self, gpu: Handle) -> dict[int, tuple[int | None, bool]]:
        """PID to its memory in bytes (None: not reported), and whether it is a client of an MPS server.

        A process may be in several lists, and once for each MIG instance that it uses.
        """
        by_instance: dict[_Process, int | None] = {}
        clients: set[int] = set()
        for kind in _LISTS:
            for process, used in self._process_list(kind, gpu):
                # Each list may have the same memory of it.
                known = by_instance.get(process, 0)
                by_instance[process] = _most(known, used)
                if kind == _MPS:
                    pid, _, _ = process
                    clients.add(pid)
        by_pid = _by_pid(by_instance)
        return {pid: (used, pid in clients) for pid, used in by_pid.items()}

    def process_busy(self, gpu: Handle) -> dict[int, float]:
        """PID to its recent part of the GPU's time; processes without work are absent."""
        since_us = int((time.time() - UTILISATION_WINDOW_S) * 1e6)
        try:
            samples = self._read("nvmlDeviceGetProcessUtilization", gpu, _samples, since_us)
        except CallError as err:
            if err.code not in {_NOT_FOUND, int(pynvml.NVML_SUCCESS)}:  # the binding takes "none" for an error
                raise
            return {}
        busy_by_pid = {}
        for _, pid, percent in sorted(samples):
            # Some drivers leave entries of which only the PID is set, or nothing.
            if pid and percent <= 100:
                busy_by_pid[pid] = percent / 100
        return busy_by_pid

    def _process_list(self, kind: str, gpu: Handle) -> Iterator[tuple[_Process, int | None]]:
        """Entries of one list. Drivers before 510 have only the second version, and older ones lack some lists."""
        for version in ("_v3", "_v2"):
            try:
                yield from self._read(f"nvmlDeviceGet{kind}RunningProcesses{version}", gpu, _processes_of)
            except CallError as err:
                if err.code == _FUNCTION_NOT_FOUND:
                    continue
                if err.code in ABSENT and kind != "Compute":  # no graphics, or no MPS, on this GPU
                    return
                raise
            return
        if kind == "Compute":
            raise CallError(f"nvmlDeviceGet{kind}RunningProcesses", _FUNCTION_NOT_FOUND, "Function Not Found")


def _processes_of(entries: Any) -> list[tuple[_Process, int | None]]:  # noqa: ANN401 (NVML's structures)
    processes = []
    for entry in entries:
        process = (
            unsigned(entry.pid),
            unsigned(entry.gpuInstanceId),
            unsigned(entry.computeInstanceId),
        )
        used = entry.usedGpuMemory
        processes.append((process, None if used is None else whole(used, 0, MOST_MEMORY)))
    return processes


def _by_pid(by_instance: Mapping[_Process, int | None]) -> dict[int, int | None]:
    by_pid: dict[int, int | None] = {}
    for (pid, _, _), used in by_instance.items():
        # Its memory in each MIG instance is another part of it.
        known = by_pid.get(pid, 0)
        by_pid[pid] = _sum(known, used)
    return by_pid


def _samples(entries: Any) -> list[tuple[int, int, int]]:  # noqa: ANN401 (NVML's structures)
    """When, PID, percent."""
    samples = []
    for entry in entries:
        sample = (
            unsigned(entry.timeStamp),
            unsigned(entry.pid),
            unsigned(entry.smUtil),
        )
        samples.append(sample)
    return samples


def _used(info: Any) -> int:  # noqa: ANN401 (NVML's structure)
    return whole(info.used, 0, MOST_MEMORY)


def read_sample(nvml: UsageNvml, index: int, uuid: str, clock: Callable[[], float]) -> tuple[GpuSample, float]:
    """Sample the GPU, which must be the one at that index; also returns the time of the start (`boot_s`) for `placed`.

    Raises:
        CallError: the GPU does not answer, or is another one.
    """
    asked_s = boot_s()
    handle = nvml.handle(index)
    if nvml.uuid(handle) != uuid:  # the GPUs are numbered differently now; the next inventory shows it
        raise CallError("nvmlDeviceGetHandleByIndex", _NOT_FOUND, f"{uuid} has another index now")
    sample = GpuSample(
        uuid=uuid,
        memory_used_bytes=nvml.memory_used_bytes(handle),
        busy=_unless_refused(lambda: nvml.busy(handle)),
        temperature_celsius=_unless_refused(lambda: nvml.temperature_celsius(handle)),
        power_watts=_unless_refused(lambda: nvml.power_watts(handle)),
        processes=_unless_refused(lambda: _processes(nvml, handle)),
        at=clock(),
    )
    return sample, asked_s


def placed(sample: GpuSample, asked_s: float, cgroups: ProcessCgroups) -> GpuSample:
    """The sample with the container of each process."""
    if sample.processes is None:
        return sample
    processes = []
    for process in sample.processes:
        place = cgroups.of(process.pid, asked_s)
        processes.append(replace(process, place=place))
    return replace(sample, processes=tuple(processes))


def _processes(nvml: UsageNvml, handle: Handle) -> tuple[GpuProcess, ...]:
    listed = nvml.processes(handle)
    if not listed:
        return ()
    busy_by_pid = _unless_refused(lambda: nvml.process_busy(handle))
    processes = []
    for pid, (memory, is_client) in listed.items():
        busy = None
        if busy_by_pid is not None:
            # The driver may report the work of MPS clients for their server only: a client without a sample may be
            # busy.
            busy = busy_by_pid.get(pid, None if is_client else 0.0)
        processes.append(GpuProcess(pid, memory, busy, None))
    return tuple(processes)


def _unless_refused(ask: Callable[[], T]) -> T | None:
    """The answer; None where the driver has none. Raises CallError if the GPU or the driver is gone."""
    try:
        return ask()
    except CallError as err:
        if err.code in GONE:
            raise
        return None


def _most(amount: int | None, other: int | None) -> int | None:
    if amount is None or other is None:
        return None
    return max(amount, other)


def _sum(amount: int | None, other: int | None) -> int | None:
    if amount is None or other is None:
        return None
    return amount + other
