"""Calls about the memory limits of cgroups, which drivers from 615 on enforce."""

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pynvml

from gpuagent.nvml import answers
from gpuagent.nvml.answers import unsigned
from gpuagent.nvml.binding.calls import Handle, address_of
from gpuagent.nvml.binding.gpu_calls import MOST_GPUS, GpuCalls
from gpuagent.nvml.driver_errors import CallError

NO_LIMIT = int(pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
"""As a hard limit: all of the GPU's memory."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The limits in force for a cgroup on one GPU, in bytes.

    Attributes:
        soft: above it, an MPS server may end programs of the cgroup.
        hard: the driver allocates no more than that; `NO_LIMIT`: any amount.
        used: what counts against `hard` now.
    """

    soft: int
    hard: int
    used: int


class LimitRefusal(Enum):
    """Why the driver refused to set limits; the values are NVML's return codes."""

    NOT_SUPPORTED = int(pynvml.NVML_ERROR_NOT_SUPPORTED)
    """The feature is off (``RmMemacctMode=0``, cgroup v1), the GPU is in MIG mode, or this is the root cgroup."""
    NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
    """There is no such directory, or the kernel's controller ``dmem`` is not enabled there."""
    FUNCTION_NOT_FOUND = int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    """The driver is older than 615."""
    NO_PERMISSION = int(pynvml.NVML_ERROR_NO_PERMISSION)
    """Setting needs root and CAP_SYS_ADMIN in the first user namespace."""
    INVALID_LIMIT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    """The limit is below what the cgroup uses, or the arguments are wrong.

    The kernel module has a code of its own for the first, INVALID_LIMIT, and NVML's code for it is not documented. So
    compare the use from `memory_limits` with the limit to tell the two apart, after any other error as well.
    """
    OTHER = int(pynvml.NVML_ERROR_UNKNOWN)
    """Any other error, such as a lost GPU."""


def refusal(err: CallError) -> LimitRefusal:
    """Why `set_memory_limits` failed."""
    try:
        return LimitRefusal(err.code)
    except ValueError:
        return LimitRefusal.OTHER


class LimitCalls(GpuCalls):
    """Memory limits of cgroups. Every method raises CallError if NVML refuses, unless its docstring differs.

    `directory` is the cgroup's full path below ``/sys/fs/cgroup``, as this process sees it.
    """

    def handle_of(self, uuid: str) -> Handle:
        """The handle of the GPU with that UUID."""
        function = "nvmlDeviceGetHandleByUUID"
        pointer = self._call(function, uuid)
        address = answers.read(function, pointer, lambda pointer: unsigned(address_of(pointer)))
        function = "nvmlDeviceGetIndex"
        index = self._call(function, pointer)
        return Handle(answers.read(function, index, _gpu_index), pointer, address)

    def set_memory_limits(self, gpu: Handle, directory: Path, soft: int, hard: int) -> None:
        """Limit the cgroup's memory of `gpu`, in bytes. Read it back: a limit may silently stay as it was.

        Raises CallError; `refusal` says why.
        """
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace = os.fsencode(directory)
        limits.softLimit = soft
        limits.hardLimit = hard
        self._ask("nvmlDeviceSetMemoryLimits_v1", gpu, limits)

    def memory_limits(self, gpu: Handle, directory: Path) -> MemoryLimits | None:
        """The limits in force for the cgroup's memory of `gpu`; None if the driver has no limits to report.

        Where the driver itself keeps the limits (its backend ``misc``), those of the nearest cgroup with limits are
        reported, the cgroup itself or an ancestor. None then means that none of them has any. It may also mean what
        NOT_SUPPORTED means for setting them: NVML has one code for both, so only setting a limit tells them apart.
        """
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = os.fsencode(directory)
        function = "nvmlDeviceGetMemoryLimits_v1"
        try:
            self._ask(function, gpu, limits)
        except CallError as err:
            if err.code == LimitRefusal.NOT_SUPPORTED.value:
                return None
            raise
        return answers.read(function, limits, _limits)


def _gpu_index(value: object) -> int:
    return answers.whole(value, 0, MOST_GPUS)


def _limits(limits: Any) -> MemoryLimits:  # noqa: ANN401 (NVML's structure)
    return MemoryLimits(
        soft=unsigned(limits.softLimit),
        hard=unsigned(limits.hardLimit),
        used=unsigned(limits.currentUsed),
    )
