"""Values of the scheduler's loop for threads: made now and then however many ask, and never changed after."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")

GAP_S = 0.1
"""Least pause after a reading."""
PART = 9.0
"""The same as a multiple of what the reading took: readers get a tenth of the loop at most."""
WAIT_S = 5.0
"""How long a thread waits for a reading."""
RECENT_S = 2.0
"""How old a value may be that people watch."""


class PacedReading(Generic[T]):
    """One value, read on the loop when threads ask for it. Create it on the running event loop.

    One reading serves all threads that asked before it began, so each gets a value from after its question.

    Args:
        read: makes the value, which does not change after. If it takes long, it lets other tasks run in between.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._asking: list[Future[T]] = []
        self._asked = asyncio.Event()

    def get(self) -> T:
        """The value, in any thread but the loop's. Raises TimeoutError, and what the reading raised."""
        future: Future[T] = Future()
        # Only the loop's own thread may touch its lists and events.
        self._loop.call_soon_threadsafe(self._ask, future)
        return future.result(WAIT_S)

    async def run(self) -> None:
        """Serve threads until it is canceled."""
        asking: list[Future[T]] = []
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                asking = self._asking
                self._asking = []
                began = time.monotonic()
                await self._serve(asking)
                took_s = time.monotonic() - began
                await asyncio.sleep(max(GAP_S, PART * took_s))
        finally:
            for future in (*asking, *self._asking):
                future.cancel()

    async def _serve(self, asking: list[Future[T]]) -> None:
        try:
            value = await self._read()
        except Exception as err:  # noqa: BLE001 (the thread logs it as the failure of its page)
            for future in asking:
                future.set_exception(err)
            return
        for future in asking:
            future.set_result(value)

    def _ask(self, future: Future[T]) -> None:
        self._asking.append(future)
        self._asked.set()


class RecentReading(Generic[T]):
    """A value that is a few seconds old at most, for a page that many people may watch. Threads may share it.

    `PacedReading` pauses after a reading that took long. Until it would read again, the last value is served, because a
    reader would wait for no more than the pause, and would keep a thread of the pages that long. The same holds if the
    next reading takes too long, for example because the loop is busy.

    Args:
        get: reads the value. Raises TimeoutError if it takes too long.
    """

    def __init__(self, get: Callable[[], T]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """Until when the last value is recent, and the value."""

    def get(self) -> T:
        """The value. Raises what `get` raises if there is no last one."""
        with self._lock:
            began = time.monotonic()
            if self._last is not None and began < self._last[0]:
                return self._last[1]
            try:
                value = self._get()
            except TimeoutError:
                if self._last is None:
                    raise
                return self._last[1]
            now = time.monotonic()
            pause_s = PART * (now - began)
            self._last = (now + max(RECENT_S, pause_s), value)
            return value
