"""The number of Allocate calls in progress. A list query during such a call may make kubelet lose its devices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InFlight:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float], ended: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._ended = ended
        self._count = 0
        self._last_end = float("-inf")
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one call as in progress."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._last_end = self._clock()
                self._changed.notify_all()
            self._ended()

    def now(self) -> tuple[int, float]:
        """The number of calls in progress, and when the last one ended in monotonic seconds (-inf for none)."""
        with self._changed:
            return self._count, self._last_end

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is in progress; False if one still is after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout_s)
