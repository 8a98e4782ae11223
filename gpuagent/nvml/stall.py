"""Notices NVML calls that hang: they block inside the driver and cannot be interrupted, only reported."""

import logging
import threading
from collections.abc import Callable, Sequence

from gpuagent.nvml.binding import Nvml, Pending
from gpuagent.nvml.news import DriverNews

log = logging.getLogger(__name__)

STALLED_POLL_S = 1.0


class StallGuard:
    """Reports a call that has not returned for `stall_s` once, and calls `recovered` when none hangs any more."""

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        calls: Sequence[Nvml],
        news: DriverNews,
        *,
        stall_s: float,
        clock: Callable[[], float],
        stopping: threading.Event,
        recovered: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._news = news
        self._stall_s = stall_s
        self._clock = clock
        self._stopping = stopping
        self._recovered = recovered
        self._stalled = False

    def run(self) -> None:
        """Look until stopping. A call is noticed on time although there is one look in `stall_s` while all is well."""
        while not self._stopping.wait(self.look()):
            pass

    def hangs(self) -> bool:
        """Whether a call hangs at this moment."""
        return any(self._overdue(call) for call in self._pending())

    def look(self) -> float:
        """Report what hangs now. Returns the seconds until the next look is due."""
        pending = self._pending()
        overdue = next((call for call in pending if self._overdue(call)), None)
        if overdue is not None:
            self._stalled = True
            if self._news.unavailable(f"{overdue} has not returned for {self._stall_s:g} s"):
                log.error("an NVML call hangs", extra={"call": str(overdue), "for_s": self._stall_s})
            return min(STALLED_POLL_S, self._stall_s)
        if self._stalled:
            self._stalled = False
            log.info("the NVML call that hung has returned")
            self._recovered()
        first = min((call.since for call in pending), default=self._clock())
        return max(0.001, first + self._stall_s - self._clock())

    def _pending(self) -> list[Pending]:
        return [call for nvml in self._calls if (call := nvml.pending)]

    def _overdue(self, call: Pending) -> bool:
        return self._clock() - call.since >= self._stall_s
