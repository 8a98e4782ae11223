"""Sets a limit in a process of root's that has given up its capabilities, all or all but one."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import CallError, DriverError

SYS_ADMIN = 21
_PR_SET_NO_NEW_PRIVS = 38
_VERSION = 0x20080522
_LONGEST_S = 60.0


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """32 of the 64 capabilities."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def try_to_set(uuid: str, directory: Path, size: int, *, sys_admin: bool, simulate: tuple[str, ...] = ()) -> str:
    """Set a limit with SYS_ADMIN alone, or without any capability; why that failed, empty if it did not.

    Args:
        uuid: of the GPU.
        directory: of the cgroup.
        size: the limit, in bytes.
        sys_admin: keep that capability.
        simulate: box, backend and cgroup root of a simulated driver; empty: the real one.
    """
    kept = str(SYS_ADMIN) if sys_admin else ""
    command = [sys.executable, "-m", "bench.limits.few_rights", uuid, str(directory), str(size), kept, *simulate]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)  # noqa: S603
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return f"the process ended with {done.returncode}: {done.stderr.strip()[-200:]}"
    if "error" in answer:
        return str(answer["error"])
    return "" if answer["hard"] == size else f"the limit reads as {answer['hard']}"


def main(arguments: list[str]) -> None:
    """Give the capabilities up, set the limit, and print what the driver then reports."""
    uuid, directory, size, kept, *simulate = arguments
    give_up_all_but(int(kept) if kept else None)
    if simulate:
        _simulate(*simulate)
    nvml = LimitCalls()
    try:
        with nvml.session():
            gpu = nvml.handle_of(uuid)
            nvml.set_memory_limits(gpu, Path(directory), 0, int(size))
            limits = nvml.memory_limits(gpu, Path(directory))
    except (CallError, DriverError) as err:
        print(json.dumps({"error": str(err)}))
        return
    print(json.dumps({"hard": limits.hard if limits else None}))


def give_up_all_but(capability: int | None) -> None:
    """Keep one capability, or none, for good. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    mask = 0 if capability is None else 1 << capability
    header = _Header(_VERSION, 0)
    sets = (_Sets * 2)(_Sets(mask, mask, 0), _Sets(0, 0, 0))
    _check(libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def _check(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities cannot be given up: {os.strerror(number)}")


def _simulate(box: str, backend: str, root: str) -> None:
    from gpuagent.simulation import boxes, simulator  # noqa: PLC0415 (only the check's own test needs it)
    from gpuagent.simulation.devices.device_memory import CgroupSource  # noqa: PLC0415

    simulator.install(boxes.load(box), CgroupSource(Path(root))).limits(backend)


if __name__ == "__main__":
    main(sys.argv[1:])
