"""Detects NVML calls that hang: they block inside the driver and cannot be interrupted, only reported."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.inventory_events import InventoryEvents

log = logging.getLogger(__name__)

STALLED_POLL_S = 1.0


class StallGuard:
    """Looks for calls that have not returned for `stall_s`, and calls `changed` when such a call appears or returns.

    The guard itself reports a call about the driver as a whole, once; `hung` returns those about a GPU.

    Args:
        pending: the calls in progress now.
        events: takes the report.
        stall_s: a call that takes longer counts as hanging.
        clock: monotonic seconds.
        stopping: ends `run`.
        changed: called from the thread of `run`.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        pending: Callable[[], Iterable[Pending]],
        events: InventoryEvents,
        *,
        stall_s: float,
        clock: Callable[[], float],
        stopping: threading.Event,
        changed: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._events = events
        self._stall_s = stall_s
        self._clock = clock
        self._stopping = stopping
        self._changed = changed
        self._known: frozenset[Pending] = frozenset()

    def run(self) -> None:
        """Check until stopping. One check every `stall_s` suffices to detect a hanging call on time."""
        while not self._stopping.wait(self.look()):
            pass

    def hung(self) -> Mapping[int, str]:
        """NVML index of each GPU about which a call hangs at this moment, and that call."""
        return {call.gpu: self._words(call) for call in self.overdue() if call.gpu is not None}

    def driver_hangs(self) -> bool:
        """Whether a call hangs at this moment that is about the driver as a whole."""
        return any(call.gpu is None for call in self.overdue())

    def look(self) -> float:
        """Report the calls that hang now. Returns the seconds until the next check."""
        overdue = self.overdue()
        for call in overdue - self._known:
            log.error("Got no answer to an NVML call", extra={"call": str(call), "for_s": self._stall_s})
        for call in self._known - overdue:
            log.info("Got the answer to an NVML call that hung", extra={"call": str(call)})
        has_changed = overdue != self._known
        self._known = overdue
        of_driver = [call for call in overdue if call.gpu is None]
        if of_driver:
            # Discovery may be what hangs, so that only this thread can report it.
            self._events.unavailable(self._words(of_driver[0]))
        elif has_changed:
            self._changed()
        return min(STALLED_POLL_S, self._stall_s) if overdue else self._next_look_s()

    def _next_look_s(self) -> float:
        """Until the oldest call in progress would be overdue."""
        now = self._clock()
        oldest = min((call.since for call in self._pending()), default=now)
        return max(0.001, oldest + self._stall_s - now)

    def overdue(self) -> frozenset[Pending]:
        """Return the calls that have not returned for `stall_s`."""
        before = self._clock() - self._stall_s
        return frozenset(call for call in self._pending() if call.since <= before)

    def _words(self, call: Pending) -> str:
        return f"{call} has not returned for {self._stall_s:g} s"
