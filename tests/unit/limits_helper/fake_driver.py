"""The driver's limits as a dictionary, in place of the calls."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from gpuagent.host.limits_client import NO_LIMIT
from gpuagent.nvml.binding.calls import Handle, Pending
from gpuagent.nvml.binding.limit_calls import LimitCalls, MemoryLimits
from gpuagent.nvml.driver_errors import CallError, driver_error

UUIDS = tuple(f"GPU-0000000{number}-1111-2222-3333-444444444444" for number in range(2))
GIB = 1 << 30


def error(name: str, function: str = "nvmlDeviceSetMemoryLimits_v1") -> CallError:
    code = getattr(pynvml, f"NVML_ERROR_{name}")
    return CallError(function, code, str(pynvml.NVMLError(code)))


class FakeDriver(LimitCalls):
    """Two GPUs.

    Attributes:
        limits: by GPU and directory.
        used: the same.
        refusals: what setting a limit fails with, by GPU; None as a key: on every GPU.
        ignores: limits are not set, and success is reported.
        absent: what opening NVML, and each call after that, fails with.
        before_set: called before a limit is set.
        hang: while it is cleared, calls do not return.
        stale: UUID to what calls with a handle of before `return_gpu` fail with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uuids = list(UUIDS)
        self.limits: dict[tuple[str, Path], int] = {}
        self.used: dict[tuple[str, Path], int] = {}
        self.refusals: dict[str | None, CallError] = {}
        self.ignores = False
        self.mig: set[str] = set()
        self.absent: CallError | None = None
        self.before_set: Callable[[Path], object] = lambda _: None
        self.hang = threading.Event()
        self.hang.set()
        self.stale: dict[str, CallError] = {}
        self._times_away = dict.fromkeys(UUIDS, 0)
        self.sessions = 0
        self.opened = 0
        self.sets: list[tuple[str, Path, int]] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        if self.absent:
            raise driver_error(self.absent) from self.absent
        self.sessions += 1
        self.opened += 1
        try:
            yield
        finally:
            self.sessions -= 1

    def driver_version(self) -> str:
        return "615.71.09"

    def count(self) -> int:
        self._check()
        return len(self.uuids)

    def handle(self, index: int) -> Handle:
        self._check()
        return Handle(index, self._times_away.get(self.uuids[index], 0), index)

    def return_gpu(self, uuid: str, stale: CallError) -> None:
        """The GPU was away, and so it has another handle and no limits."""
        self._times_away[uuid] += 1
        self.stale[uuid] = stale
        self.limits = {key: limit for key, limit in self.limits.items() if key[0] != uuid}

    def uuid(self, gpu: Handle) -> str:
        return self.uuids[gpu.index]

    def mig_enabled(self, gpu: Handle) -> bool:
        return self.uuids[gpu.index] in self.mig

    def set_memory_limits(self, gpu: Handle, directory: Path, soft: int, hard: int) -> None:
        self._check()
        assert soft == 0
        self.before_set(directory)
        self._block("nvmlDeviceSetMemoryLimits_v1", gpu)
        uuid = self._uuid_of_present(gpu)
        refusal = self.refusals.get(uuid) or self.refusals.get(None)
        if refusal:
            raise refusal
        self.sets.append((uuid, directory, hard))
        if not self.ignores and hard >= self.used.get((uuid, directory), 0):
            self.limits[uuid, directory] = hard

    def memory_limits(self, gpu: Handle, directory: Path) -> MemoryLimits | None:
        self._check()
        key = self._uuid_of_present(gpu), directory
        hard = self.limits.get(key)
        if hard is None and key not in self.used:
            return None
        return MemoryLimits(0, NO_LIMIT if hard is None else hard, self.used.get(key, 0))

    def _uuid_of_present(self, gpu: Handle) -> str:
        uuid = self.uuids[gpu.index]
        if gpu.pointer != self._times_away.get(uuid, 0):
            raise self.stale[uuid]
        return uuid

    def _check(self) -> None:
        assert self.sessions == 1
        if self.absent:
            raise self.absent

    def _block(self, function: str, gpu: Handle) -> None:
        self.pending = Pending(function, gpu.index, self._clock())
        try:
            self.hang.wait()
        finally:
            self.pending = None
