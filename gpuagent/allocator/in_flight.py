"""How many Allocate calls are under way: kubelet may lose one's devices if it is asked for a list then."""

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
        """One call is under way."""
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
        """How many are under way, and when the last one ended."""
        with self._changed:
            return self._count, self._last_end

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until none is under way."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout_s)
