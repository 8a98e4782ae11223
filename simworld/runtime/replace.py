"""Puts the simulated machine in the place of Python's threads, clocks, gRPC and files' readiness.

To be called before the product is imported: some of its modules keep a clock or a class from the beginning on.
"""

import concurrent.futures.thread  # noqa: F401 (it needs a real lock while it is imported)
import fcntl
import logging  # noqa: F401 (its locks stay real: nothing waits while it holds one)
import os
import queue
import random
import select
import threading
import time
import uuid
from typing import Any

import grpc

from simworld.runtime import rpc, threads
from simworld.runtime.kernel import kernel


def replace_machine() -> None:
    """Replace what the product takes from the machine."""
    names = ("Lock", "RLock", "Condition", "Event", "Semaphore", "Thread", "Timer")
    for name in names:
        setattr(threading, name, getattr(threads, name))
    threading.BoundedSemaphore = threads.Semaphore  # type: ignore[misc,assignment]
    queue.SimpleQueue = threads.SimpleQueue  # type: ignore[misc,assignment]
    for name in ("monotonic", "perf_counter"):
        setattr(time, name, threads.monotonic)
    time.time = threads.wall_clock
    time.monotonic_ns = lambda: int(threads.monotonic() * 1e9)
    time.time_ns = lambda: int(threads.wall_clock() * 1e9)
    time.sleep = threads.sleep  # type: ignore[assignment]
    _replace_calendar()
    grpc.server = rpc.Server  # type: ignore[assignment]
    grpc.insecure_channel = rpc.Channel  # type: ignore[assignment]
    select.select = _select  # type: ignore[assignment]
    select.poll = _Poll  # type: ignore[misc,assignment]
    uuid.uuid4 = _uuid
    fcntl.flock = _flock  # type: ignore[assignment]


def _replace_calendar() -> None:
    real = time.gmtime
    time.gmtime = lambda seconds=None: real(threads.wall_clock() if seconds is None else seconds)


def _uuid() -> uuid.UUID:
    return uuid.UUID(int=kernel().chance.getrandbits(128), version=4)


_real_flock = fcntl.flock
FILE_LOCK_LOOK_S = 0.001


def _flock(descriptor: int, operation: int) -> None:
    """As `fcntl.flock` of a whole file, which a process that is killed gives up."""
    while True:
        try:
            _real_flock(descriptor, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
        kernel().sleep(FILE_LOCK_LOOK_S)
    file = os.fstat(descriptor)
    kernel().process.at_end.append(lambda: _give_up(descriptor, file.st_ino))


def _give_up(descriptor: int, inode: int) -> None:
    """Unlock a file of a process that ends, if it has it open under this number still."""
    try:
        if os.fstat(descriptor).st_ino == inode:
            _real_flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        return  # it was closed


_real_select = select.select


def _select(readers: list[int], writers: list[int], others: list[int], timeout: float | None = None) -> Any:
    ready = _real_select(readers, writers, others, 0)
    if any(ready) or timeout == 0:
        return ready
    kernel().wait_for_files(readers, timeout)
    return _real_select(readers, writers, others, 0)


class _Poll:
    """As `select.poll`, for descriptors that are waited for to be readable."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def register(self, descriptor: int, _mask: int = select.POLLIN) -> None:
        self._descriptors.append(descriptor)

    def unregister(self, descriptor: int) -> None:
        self._descriptors.remove(descriptor)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        ready, _, _ = _select(self._descriptors, [], [], timeout_s)
        return [(descriptor, select.POLLIN) for descriptor in ready]


def seed_library(seed: int) -> None:
    """Seed the library's own generator, which the product's back-off uses."""
    random.seed(seed)
