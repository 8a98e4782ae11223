"""Calls that hang inside the driver: they cannot be interrupted, only reported and left behind."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpuagent.nvml.binding import LeftBehind, Nvml, Pending
from gpuagent.nvml.news import DriverNews

log = logging.getLogger(__name__)

STALLED_POLL_S = 1.0


class Worker:
    """Work with the driver in a thread of its own, which can be left behind for a fresh one.

    Args:
        name: of the threads.
        work: runs until the agent stops; a call through its facade ends it where the thread was left behind.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, work: Callable[[Nvml], None], clock: Callable[[], float]) -> None:
        self._name = name
        self._work = work
        self._clock = clock
        self.nvml = Nvml(clock)
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin in a thread; one that runs already ends as soon as its call returns."""
        if self.thread:
            self.nvml.left_behind = True
            self.nvml = Nvml(self._clock)
        self.thread = threading.Thread(target=self._run, args=(self.nvml,), name=self._name, daemon=True)
        self.thread.start()

    def _run(self, nvml: Nvml) -> None:
        with suppress(LeftBehind):
            self._work(nvml)


class StallGuard:
    """Looks for calls that have not returned for `stall_s`.

    One about a GPU is left behind, and its worker goes on without that GPU. One about the driver as a whole is
    reported, once. `changed` is called when a call is left behind and when one that hung has returned.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        workers: Sequence[Worker],
        news: DriverNews,
        *,
        stall_s: float,
        clock: Callable[[], float],
        stopping: threading.Event,
        changed: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._news = news
        self._stall_s = stall_s
        self._clock = clock
        self._stopping = stopping
        self._changed = changed
        self._left: list[tuple[Nvml, Pending]] = []
        self._stalled = False

    def run(self) -> None:
        """Look until stopping. A call is noticed on time although there is one look in `stall_s` while all is well."""
        while not self._stopping.wait(self.look()):
            pass

    def hung(self) -> Mapping[int, str]:
        """NVML index of each GPU that must not be asked, and why: a call about it hangs."""
        hang = (call for nvml, call in tuple(self._left) if nvml.pending is call)
        return {call.gpu: self._words(call) for call in hang if call.gpu is not None}

    def driver_hangs(self) -> bool:
        """Whether a call hangs at this moment that is about the driver as a whole."""
        return self._hanging() is not None

    def look(self) -> float:
        """Report and leave behind what hangs now. Returns the seconds until the next look is due."""
        self._leave()
        self._forget()
        hanging = self._hanging()
        if hanging is not None:
            self._stalled = True
            if self._news.unavailable(self._words(hanging)):
                log.error("an NVML call hangs", extra={"call": str(hanging), "for_s": self._stall_s})
        elif self._stalled:
            self._stalled = False
            log.info("the NVML call that hung has returned")
            self._changed()
        if hanging is not None or self._left:
            return min(STALLED_POLL_S, self._stall_s)
        first = min((call.since for call in self._pending()), default=self._clock())
        return max(0.001, first + self._stall_s - self._clock())

    def _leave(self) -> None:
        for worker in self._workers:
            nvml = worker.nvml
            call = nvml.pending
            if call and call.gpu is not None and self._overdue(call) and not self._stopping.is_set():
                log.error("an NVML call hangs; going on without that GPU", extra={"call": str(call)})
                self._left.append((nvml, call))
                worker.start()
                self._changed()

    def _forget(self) -> None:
        still = [(nvml, call) for nvml, call in self._left if nvml.pending is call]
        if len(still) < len(self._left):
            self._left = still
            log.info("an NVML call that hung has returned")
            self._changed()

    def _hanging(self) -> Pending | None:
        return next((call for call in self._pending() if call.gpu is None and self._overdue(call)), None)

    def _pending(self) -> list[Pending]:
        return [call for worker in self._workers if (call := worker.nvml.pending)]

    def _overdue(self, call: Pending) -> bool:
        return self._clock() - call.since >= self._stall_s

    def _words(self, call: Pending) -> str:
        return f"{call} has not returned for {self._stall_s:g} s"
