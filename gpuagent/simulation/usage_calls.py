"""NVML's C functions about the use of a GPU, over a simulated driver; as those in `nvml_calls`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from gpuagent.simulation.driver import SimulatedDriver, SimulatedGpu
from gpuagent.simulation.limit_calls import seen_here
from gpuagent.simulation.nvml_calls import NO_INSTANCE, NOT_SUPPORTED, OK, of, put

USE: dict[str, Callable[..., int]] = {}
"""Functions of a GPU, as `nvml_calls.DEVICE`."""

MIB = 1 << 20
SHORT = int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
NOT_AVAILABLE = int(pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value)


@of(USE, "nvmlDeviceGetMemoryInfo")
def _memory(driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    if not gpu.spec.memory_reported:
        return NOT_SUPPORTED
    memory = out._obj  # noqa: SLF001
    memory.total = gpu.spec.memory_mib * MIB
    memory.used = gpu.spec.reserved_mib * MIB + driver.used_bytes(gpu)
    memory.free = memory.total - memory.used
    return OK


@of(USE, "nvmlDeviceGetMemoryInfo_v2")
def _memory_v2(driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    memory = out._obj  # noqa: SLF001
    if memory.version != pynvml.nvmlMemory_v2:
        return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    if not gpu.spec.memory_reported:
        return NOT_SUPPORTED
    memory.total = gpu.spec.memory_mib * MIB
    memory.reserved = gpu.spec.reserved_mib * MIB
    memory.used = driver.used_bytes(gpu)
    memory.free = memory.total - memory.reserved - memory.used
    limited = seen_here(driver, gpu)
    if limited:
        memory.total = limited.total
        memory.used = limited.used
        memory.free = limited.free
    return OK


@of(USE, "nvmlDeviceGetUtilizationRates")
def _utilisation(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    if gpu.mig:
        return NOT_SUPPORTED
    rates = out._obj  # noqa: SLF001
    rates.gpu = gpu.busy
    rates.memory = 0
    return OK


@of(USE, "nvmlDeviceGetTemperature")
def _temperature(_driver: SimulatedDriver, gpu: SimulatedGpu, _sensor: Any, out: Any) -> int:
    return put(out, 30 + gpu.index % 8)


@of(USE, "nvmlDeviceGetTemperatureV")
def _temperature_v(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    out._obj.temperature = 30 + gpu.index % 8  # noqa: SLF001
    return OK


@of(USE, "nvmlDeviceGetPowerUsage")
def _power(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, 40_000 + 1_000 * gpu.index)  # milliwatts


def _list_of(kind: str) -> Callable[[SimulatedDriver, SimulatedGpu, Any, Any], int]:
    """The list of one kind of processes."""

    def call(_driver: SimulatedDriver, gpu: SimulatedGpu, count: Any, out: Any) -> int:
        processes = [process for process in gpu.processes.values() if process.kind == kind]
        code = _fits(count, out, processes)
        if code != OK:
            return code
        for entry, process in zip(out or (), processes, strict=False):
            entry.pid = process.pid
            entry.gpuInstanceId = NO_INSTANCE
            entry.computeInstanceId = NO_INSTANCE
            entry.usedGpuMemory = NOT_AVAILABLE if process.memory_bytes is None else process.memory_bytes
        return code

    return call


for _name, _kind in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", "mps")):
    for _version in ("_v2", "_v3"):  # the same entries in both
        USE[f"nvmlDeviceGet{_name}RunningProcesses{_version}"] = _list_of(_kind)


@of(USE, "nvmlDeviceGetProcessUtilization")
def _process_utilisation(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any, count: Any, since: Any) -> int:
    if gpu.mig:
        return NOT_SUPPORTED
    # Without a sample that is new enough, the driver answers that it has found none.
    now_us = time.time_ns() // 1000
    if now_us <= since.value:
        return NOT_FOUND
    sampled = [process for process in gpu.processes.values() if process.sm is not None]
    if not sampled:
        return NOT_FOUND
    code = _fits(count, out, sampled)
    if code != OK:
        return code
    for entry, process in zip(out or (), sampled, strict=False):
        entry.pid = process.pid
        entry.timeStamp = now_us
        entry.smUtil = process.sm
        entry.memUtil = 0
        entry.encUtil = 0
        entry.decUtil = 0
    return code


def _fits(count: Any, out: Any, entries: Sequence[object]) -> int:
    """Write the number of entries to `count`; return SHORT if there is no array, or one smaller than that."""
    room = count._obj.value if out is not None else 0  # noqa: SLF001
    put(count, len(entries))
    return SHORT if len(entries) > room else OK
