"""NVML's C functions about memory limits of cgroups, over a simulated driver; as those in `nvml_calls`."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from gpuagent.simulation.devices.cgroup_folders import OutsideError, UnknownCgroupError
from gpuagent.simulation.devices.device_memory import DeviceMemory
from gpuagent.simulation.driver import SimulatedDriver, SimulatedGpu
from gpuagent.simulation.memory_accounting import Memory, Refusal, RefusedError
from gpuagent.simulation.memory_groups import CgroupId
from gpuagent.simulation.nvml_calls import INVALID, NOT_SUPPORTED, OK, of

LIMITS: dict[str, Callable[..., int]] = {}
"""Functions of a GPU, as `nvml_calls.DEVICE`. A driver before 615 has none of them."""
NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
FUNCTION_NOT_FOUND = int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_CODES = {
    Refusal.NOT_SUPPORTED: NOT_SUPPORTED,
    Refusal.NOT_FOUND: NOT_FOUND,
    Refusal.INVALID_LIMIT: INVALID,
}


@of(LIMITS, "nvmlDeviceSetMemoryLimits_v1")
def _set_memory_limits(driver: SimulatedDriver, gpu: SimulatedGpu, argument: Any) -> int:
    limits = argument._obj  # noqa: SLF001

    def apply(memory: DeviceMemory, cgroup: CgroupId) -> None:
        memory.accounting.set_limits(driver.own_uuid(gpu), cgroup, limits.softLimit, limits.hardLimit)

    return _about_cgroup(driver, limits, apply)


@of(LIMITS, "nvmlDeviceGetMemoryLimits_v1")
def _get_memory_limits(driver: SimulatedDriver, gpu: SimulatedGpu, argument: Any) -> int:
    limits = argument._obj  # noqa: SLF001

    def fill(memory: DeviceMemory, cgroup: CgroupId) -> None:
        in_force = memory.accounting.limits(driver.own_uuid(gpu), cgroup)
        limits.softLimit = in_force.soft
        limits.hardLimit = in_force.hard
        limits.currentUsed = in_force.used

    return _about_cgroup(driver, limits, fill)


def _about_cgroup(driver: SimulatedDriver, argument: Any, use: Callable[[DeviceMemory, CgroupId], None]) -> int:
    """Do something about the cgroup that a C structure names; NVML's code for the result."""
    memory = driver.device_memory
    if memory is None:
        return FUNCTION_NOT_FOUND
    # Not the binding's own attribute, which decodes the text.
    path = ctypes.Structure.__getattribute__(argument, "nameSpace")
    if path is None:
        return INVALID
    try:
        cgroup = memory.folders.at(Path(os.fsdecode(path)))
        if cgroup is None:
            return NOT_FOUND
        use(memory, cgroup)
    except OutsideError:
        return INVALID
    except RefusedError as err:
        return _CODES[err.refusal]
    return OK


def seen_here(driver: SimulatedDriver, gpu: SimulatedGpu) -> Memory | None:
    """The GPU's memory if this process runs in a limited cgroup, else None."""
    memory = driver.device_memory
    if memory is None:
        return None
    uuid = driver.own_uuid(gpu)
    if uuid not in memory.gpus:
        return None
    try:
        seen = memory.seen_by(os.getpid(), uuid)
    except (RefusedError, UnknownCgroupError):
        return None
    return seen if seen.is_limited else None
