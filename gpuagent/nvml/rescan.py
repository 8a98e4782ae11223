"""Wishes for another look at the driver, from any thread, and the wait of the one that looks."""

import threading
import time


class RescanRequests:
    """A wish to look counts from when it is uttered until a look begins: `begin`, look, `wait`, and again.

    Args:
        apart_s: between the beginnings of two looks that were wished for with `soon`.
    """

    def __init__(self, apart_s: float) -> None:
        self._apart_s = apart_s
        self._changed = threading.Condition()
        self._now = False
        self._soon = False
        self._not_before = float("-inf")

    def now(self) -> None:
        """Wish for a look at once."""
        with self._changed:
            self._now = True
            self._changed.notify_all()

    def soon(self) -> None:
        """Wish for a look as soon as `apart_s` have gone by since the last one for such a wish."""
        with self._changed:
            self._soon = True
            self._changed.notify_all()

    def begin(self) -> None:
        """A look begins; what is wished for from now on it may miss."""
        with self._changed:
            if self._soon:
                self._not_before = time.monotonic() + self._apart_s
            self._now = self._soon = False

    def wait(self, timeout_s: float | None) -> bool:
        """Return when a look is due: wished for, or after `timeout_s` (None: never). Whether it was wished for."""
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._now:
                due = min(until, self._not_before) if self._soon else until
                left_s = due - time.monotonic()
                if left_s <= 0:
                    return due < until
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            return True
