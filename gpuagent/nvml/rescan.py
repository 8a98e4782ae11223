"""Requests to read the driver again, from any thread, and the wait of the reading thread."""

import threading
import time


class RescanRequests:
    """A request counts until the next read begins. The reading thread repeats `begin`, read, `wait`.

    Args:
        apart_s: least time between the beginnings of two reads that `soon` requested.
    """

    def __init__(self, apart_s: float) -> None:
        self._apart_s = apart_s
        self._changed = threading.Condition()
        self._now = False
        self._soon = False
        self._not_before = float("-inf")

    def now(self) -> None:
        """Request a read at once."""
        with self._changed:
            self._now = True
            self._changed.notify_all()

    def soon(self) -> None:
        """Request a read once `apart_s` have passed since the last one that `soon` requested."""
        with self._changed:
            self._soon = True
            self._changed.notify_all()

    def begin(self) -> None:
        """Begin a read; later requests lead to another read."""
        with self._changed:
            if self._soon:
                self._not_before = time.monotonic() + self._apart_s
            self._now = self._soon = False

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until a read is due: requested, or after `timeout_s` (None: never). Whether it was requested."""
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._now:
                due = min(until, self._not_before) if self._soon else until
                left_s = due - time.monotonic()
                if left_s <= 0:
                    return due < until
                # Python's wait takes no infinity.
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            return True
