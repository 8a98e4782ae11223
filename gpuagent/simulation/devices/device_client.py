"""What a process may ask of a simulated device: memory, and how much of it there is."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from gpuagent.simulation.devices.cgroup_folders import UnknownCgroupError
from gpuagent.simulation.devices.device_memory import DeviceMemory
from gpuagent.simulation.driver import FaultError, SimulatedDriver
from gpuagent.simulation.memory_accounting import Allocation, Refusal, RefusedError

MOST_BYTES = 1 << 62
MOST_ALLOCATIONS = 4096
"""For a client. Others get OUT_OF_MEMORY, as if each took more than it says."""
_BAD_REQUEST = "BAD_REQUEST"
_UNKNOWN_CGROUP = "UNKNOWN_CGROUP"
_WANTED = "say one of alloc, managed, free (bytes), info (true), import (number)"

Answer = dict[str, Any]


class RequestError(ValueError):
    """A request that makes no sense; the text says why."""


class Exports:
    """Allocations by a number that other clients can import. Freed ones are forgotten."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = count(1)
        self._allocations: WeakValueDictionary[int, Allocation] = WeakValueDictionary()

    def add(self, allocation: Allocation) -> int:
        number = next(self._numbers)
        self._allocations[number] = allocation
        return number

    def get(self, number: int) -> Allocation:
        """Raises RefusedError if there is none."""
        allocation = self._allocations.get(number)
        if allocation is None:
            raise RefusedError(Refusal.NOT_FOUND)
        return allocation


class DeviceClient:
    """What the driver knows of an open device file. `answer` takes lines from the processes that have it."""

    def __init__(self, driver: SimulatedDriver, exports: Exports) -> None:
        self._driver = driver
        self._exports = exports
        self._memory: DeviceMemory | None = None
        self._allocations: list[Allocation] = []

    def answer(self, line: bytes, sender: int, creator: int | None) -> Answer:
        """Do what a line asks for.

        Args:
            line: a JSON object.
            sender: the process that sent it.
            creator: the process that opened the device; None: that has ended.
        """
        try:
            request = _parse(line)
            with self._driver.changed:
                return {"ok": True, **self._do(request, sender, creator)}
        except (RequestError, FaultError) as err:
            return {"ok": False, "error": _BAD_REQUEST, "message": str(err)}
        except UnknownCgroupError as err:
            return {"ok": False, "error": _UNKNOWN_CGROUP, "message": str(err)}
        except RefusedError as err:
            return {"ok": False, "error": str(err.refusal)}

    def close(self) -> None:
        """All processes have closed the device: its memory is free."""
        with self._driver.changed:
            if self._memory:
                self._memory.accounting.close(self)

    def _do(self, request: dict[str, Any], sender: int, creator: int | None) -> Answer:
        memory = self._current_memory()
        gpu = self._gpu(memory, request.pop("gpu", 0))
        if len(request) != 1:
            raise RequestError(_WANTED)
        ((action, value),) = request.items()
        answer: Answer = {}
        match action:
            case "alloc":
                self._check_count()
                allocation = memory.allocate(self, gpu, _whole(value), sender, creator)
                answer["allocation"] = self._keep(allocation)
            case "managed":
                self._check_count()
                allocation = memory.accounting.allocate_managed(self, gpu, _whole(value))
                answer["allocation"] = self._keep(allocation)
            case "import":
                self._check_count()
                allocation = self._exports.get(_whole(value))
                memory.accounting.import_memory(self, allocation)
                self._allocations.append(allocation)
                gpu = allocation.gpu
            case "free":
                self._free(memory, gpu, _whole(value))
            case "info" if value is True:
                # Even a process that only asks has the GPU open, and so keeps it running.
                memory.accounting.open(self, gpu)
            case _:
                raise RequestError(_WANTED)
        seen = memory.seen_by(sender, gpu)
        return {**answer, "total": seen.total, "used": seen.used, "free": seen.free}

    def _current_memory(self) -> DeviceMemory:
        memory = self._driver.device_memory
        if memory is None or self._driver.absent is not None:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        if memory is not self._memory:
            # The driver was loaded anew, which ends what its clients had.
            self._memory = memory
            self._allocations.clear()
        return memory

    def _gpu(self, memory: DeviceMemory, name: object) -> str:
        if not isinstance(name, str | int):
            raise RequestError(f"gpu: {name!r} is not a UUID or an index")
        gpu = self._driver.own_uuid(self._driver.find(name))
        if gpu not in memory.gpus:
            raise RequestError(f"GPU {gpu} has no memory of its own")
        return gpu

    def _check_count(self) -> None:
        if len(self._allocations) >= MOST_ALLOCATIONS:
            raise RefusedError(Refusal.OUT_OF_MEMORY)

    def _keep(self, allocation: Allocation) -> int:
        self._allocations.append(allocation)
        return self._exports.add(allocation)

    def _free(self, memory: DeviceMemory, gpu: str, size: int) -> None:
        """Free the newest allocations on a GPU until they have that many bytes."""
        remaining = size
        for allocation in reversed([*self._allocations]):
            if remaining <= 0:
                break
            if allocation.gpu == gpu:
                memory.accounting.free(self, allocation)
                self._allocations.remove(allocation)
                remaining -= allocation.size


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("a request is a JSON object on one line") from None
    if not isinstance(request, dict):
        raise RequestError(f"a request is a JSON object, not {type(request).__name__}")
    return request


def _whole(value: object) -> int:
    # Not isinstance: for Python, true and false are numbers.
    if type(value) is not int or not 1 <= value <= MOST_BYTES:
        raise RequestError(f"a number from 1 to {MOST_BYTES} is needed")
    return value
