"""Waits for the driver's XID events, GPU by GPU in its own error scope, and starts again whatever breaks."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpuagent.backoff import Backoff
from gpuagent.domain.events import Event, GpuLost, XidRaised
from gpuagent.nvml.binding import DOUBLE_BIT_ECC, XID, Handle, Nvml, NvmlEvent
from gpuagent.nvml.errors import DRIVER_WIDE, CallError, DriverError, gpu_reason

log = logging.getLogger(__name__)

DOUBLE_BIT_ECC_XID = 48
"""The XID that stands for a double-bit ECC error, whose own event carries no number."""
WAIT_OVERRUN_S = 10.0
"""A wait that outlasts its own timeout by this much hangs in the driver."""


class HealthWatch:
    """Posts XidRaised and GpuLost until `stopping`; it never ends silently.

    Args:
        nvml: the facade of the thread that calls `run`.
        hung: NVML index and reason of GPUs not to ask.
        post: takes an event at once.
        driver_gone: called when the driver as a whole stops answering.
        clock: monotonic seconds.
        stopping: ends `run` within `wait_s`.
        wait_s: longest wait for an event; an event ends it at once.
        retry_s: after how long GPUs that could not be watched are tried again.
        delays: between attempts.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        nvml: Nvml,
        *,
        hung: Callable[[], Mapping[int, str]],
        post: Callable[[Event], None],
        driver_gone: Callable[[], None],
        clock: Callable[[], float],
        stopping: threading.Event,
        wait_s: float,
        retry_s: float,
        delays: Backoff,
    ) -> None:
        self._nvml = nvml
        self._hung = hung
        self._post = post
        self._driver_gone = driver_gone
        self._clock = clock
        self._stopping = stopping
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._delays = delays
        self._failures = 0
        self._wake = threading.Event()
        self._watched: dict[int, tuple[Handle, str]] = {}
        self._unable: dict[int, str] = {}
        self._deaf: set[str] = set()
        self._lost: set[str] = set()
        self._said: tuple[int, int, int] | None = None
        self._up = False

    @property
    def up(self) -> bool:
        """Whether an XID of a watched GPU would be heard now (also True where there is no GPU at all)."""
        since = self._nvml.waiting_since
        overdue = since is not None and self._clock() - since > self._wait_s + WAIT_OVERRUN_S
        return self._up and not overdue

    def wake(self) -> None:
        """Look at once for GPUs that are not watched yet, or try again if the watch is down."""
        self._wake.set()

    def run(self) -> None:
        """Watch until stopping; after a failure begin anew, the first time at once, then with growing delays."""
        while not self._stopping.is_set():
            try:
                with self._nvml.session():
                    while not self._stopping.is_set() and self._watch():
                        pass
            except DriverError as err:
                self._failed(err)
            except CallError as err:
                self._failed(err)
                self._driver_gone()
            except Exception:
                log.exception("the health watch failed")
                self._failures += 1
            finally:
                self._up = False
            if self._failures > 1:
                self._sleep(self._delays.next_s())
            self._wake.clear()

    def _sleep(self, seconds: float) -> None:
        if not self._stopping.is_set():  # its wake may have been cleared on the way here
            self._wake.wait(seconds)

    def _failed(self, err: Exception) -> None:
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "the health watch is down; trying again", extra={"error": str(err)})

    def _watch(self) -> bool:
        """Watch through one event set. True: a GPU was lost, and a new set without it is due at once."""
        self._watched.clear()
        with self._nvml.event_set() as events:
            retry_at = self._extend(events)
            while not self._stopping.is_set():
                if self._wake.is_set() or self._clock() >= retry_at:
                    self._wake.clear()
                    retry_at = self._extend(events)
                if not self._watched:
                    self._sleep(self._retry_s)
                    continue
                try:
                    event = self._nvml.wait(events, self._wait_s)
                except CallError as err:
                    self._up = False
                    if err.code not in DRIVER_WIDE and self._find_lost() and not self._failures:
                        self._failures = 1
                        return True
                    raise
                if self._failures:
                    self._failures = 0
                    self._delays.reset()
                if event:
                    self._heard(event)
        return False

    def _extend(self, events: Any) -> float:  # noqa: ANN401 (opaque)
        """Watch every GPU that is not watched yet. Returns when to try again those that could not be."""
        count = self._nvml.count()
        unable = dict(self._hung())
        deaf = 0
        for index in (index for index in range(count) if index not in unable):
            try:
                deaf += not self._add(events, index)
            except CallError as err:
                if err.code in DRIVER_WIDE:
                    raise
                unable[index] = gpu_reason(err)
                if self._unable.get(index) != unable[index]:
                    log.warning("a GPU cannot be watched", extra={"gpu": index, "error": unable[index]})
        self._unable = unable
        self._up = bool(self._watched) or count == 0
        said = (len(self._watched), deaf, len(unable))
        if said != self._said:
            self._said = said
            log.info("watching for faults", extra=dict(zip(("watched", "without_xid", "failed"), said, strict=True)))
        return self._clock() + self._retry_s if unable else float("inf")

    def _add(self, events: Any, index: int) -> bool:  # noqa: ANN401 (opaque)
        """Register one GPU. False if it reports no XIDs."""
        handle = self._nvml.handle(index)
        if handle.address is None or handle.address in self._watched:
            return True
        uuid = self._nvml.uuid(handle)
        if uuid in self._deaf:
            return False
        self._nvml.probe(handle)
        kinds = self._nvml.supported_events(handle) & (XID | DOUBLE_BIT_ECC)
        if not kinds & XID:
            self._deaf.add(uuid)
            log.warning("a GPU reports no XIDs; its faults show only when calls to it fail", extra={"uuid": uuid})
            return False
        self._nvml.register(handle, kinds, events)
        self._watched[handle.address] = (handle, uuid)
        self._lost.discard(uuid)
        return True

    def _find_lost(self) -> bool:
        """Post every watched GPU that does not answer a probe. Returns whether one was found that is news."""
        found = False
        for handle, uuid in self._watched.values():
            try:
                self._nvml.probe(handle)
            except CallError as err:
                if err.code in DRIVER_WIDE:
                    raise
                if uuid not in self._lost:
                    found = True
                    self._lost.add(uuid)
                    self._say(GpuLost(uuid, gpu_reason(err), self._clock()))
        return found

    def _heard(self, event: NvmlEvent) -> None:
        at = self._clock()
        _, uuid = self._watched.get(event.address or 0, (None, None))
        if event.kind & XID:
            self._say(XidRaised(uuid, event.data, at))
        elif event.kind & DOUBLE_BIT_ECC:
            self._say(XidRaised(uuid, DOUBLE_BIT_ECC_XID, at))

    def _say(self, event: XidRaised | GpuLost) -> None:
        if not self._stopping.is_set():
            log.warning("the driver reports a fault", extra={"fault": str(event)})
            self._post(event)
