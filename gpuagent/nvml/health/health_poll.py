"""Polls the health of a GPU: rarely while it is healthy, often while it is not, and at once after an XID.

In between, one cheap call shows whether the GPU is still there: a GPU may be lost without an XID.

Each GPU has a thread of its own, so that a call that hangs in the driver delays nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuagent.domain.events import Event, GpuLost, HealthRead
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.nvml.binding.calls import GPU_IS_LOST, INVALID_ARGUMENT, Handle
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, DriverError, gpu_reason, may_be_shared
from gpuagent.nvml.health.health_query import HealthQuery
from gpuagent.nvml.health.poll_requests import PollRequests
from gpuagent.nvml.health.polled_gpu import PolledGpu

log = logging.getLogger(__name__)

WARY_S = 60.0
"""For this long after an XID a GPU is polled as often as an unhealthy one: the driver may react late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSchedule:
    """Settings and callbacks that the threads of one watch share.

    Attributes:
        post: takes an event at once.
        rescan: called when the GPUs must be read again: one that was away answers, MIG mode was switched, or the driver
            stops answering.
        clock: monotonic seconds.
        stopping: ends every thread that is woken.
        healthy_s: polling period of a healthy GPU.
        unhealthy_s: polling period of an unhealthy GPU.
        alive_s: period of one cheap call in between, which shows a GPU that is lost without an XID.
        confirm_loss: takes the loss of a GPU whose error may be the one of all GPUs, and posts it if it is not. If
            None, such a loss is posted like any other.
    """

    post: Callable[[Event], None]
    rescan: Callable[[], None]
    clock: Callable[[], float]
    stopping: threading.Event
    healthy_s: float
    unhealthy_s: float
    alive_s: float
    confirm_loss: Callable[[GpuLost], None] | None = None

    def period_s(self, gpu: PolledGpu, *, is_wary: bool) -> float:
        """How long to wait after a poll of this GPU; `is_wary`: an XID came a moment ago."""
        if gpu.driver_away:
            # Discovery looks for the driver, and wakes every thread when it is back.
            return self.healthy_s
        return self.healthy_s if gpu.is_fine and not is_wary else self.unhealthy_s


class HealthPoll:
    """Polls one GPU's health. Posts HealthRead on a change, and GpuLost.

    It has the thread and the clock. What is known of the GPU, and what follows from an answer, is in `PolledGpu`.

    Args:
        index: NVML's.
        uuid: the GPU's as it was read, empty if it was not: GpuLost names it if the GPU never answers here.
        schedule: shared by all threads.
    """

    def __init__(self, index: int, uuid: str, schedule: PollSchedule) -> None:
        self.nvml = Nvml(schedule.clock)
        self.name = f"nvml-poll-{index}"
        self.index = index
        self._schedule = schedule
        self._changed = threading.Condition(threading.RLock())
        """Guards the two values, and is notified when one is replaced."""
        self._requests = PollRequests()
        self._gpu = PolledGpu(uuid=uuid)
        self._handle: Handle | None = None
        self._wary_until = float("-inf")
        self._query = HealthQuery(index, schedule.clock, self.wake)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether every request to poll has been served."""
        with self._changed:
            return not self._is_due()

    @property
    def has_answered(self) -> bool:
        """Whether the GPU has answered completely, or failed to."""
        return self._gpu.has_answered

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """Poll now, and check `stopping`."""
        with self._changed:
            self._requests = self._requests.another()
            self._changed.notify_all()

    def first_reading(self, patience_s: float) -> bool:
        """Wait for the first complete answer or failure; whether it came in time. A late answer is posted."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self.has_answered, patience_s)
            if not in_time:
                self._gpu = replace(self._gpu, owes_first=True)
            return in_time

    def after_xid(self, uuid: str, patience_s: float) -> HealthReading | None:
        """Read that GPU's health right after an XID; None without an answer in time, which is then posted later.

        Also None where another GPU has its index by now.
        """
        with self._changed:
            self._wary_until = self._schedule.clock() + WARY_S
            reading = self._reading_of(uuid) if self._polled_within(patience_s) else None
            if reading is None:
                self._gpu = replace(self._gpu, owes_reading=True)
            return reading

    def _polled_within(self, patience_s: float) -> bool:
        """Whether a poll that begins from now on ends in time."""
        self._requests = self._requests.another_awaited()
        number = self._requests.made
        self._changed.notify_all()
        call = self.nvml.pending
        if call and self._schedule.clock() - call.since > patience_s:
            patience_s = 0.0  # the call hangs: each of several XIDs would wait for it
        in_time = self._changed.wait_for(lambda: self._requests.served >= number, patience_s)
        self._requests = self._requests.no_more_awaited()
        return in_time

    def _reading_of(self, uuid: str) -> HealthReading | None:
        gpu = self._gpu
        return gpu.reading if gpu.uuid == uuid and not gpu.failed else None

    def report_lost(self, uuid: str, err: CallError) -> None:
        """Post that the GPU is lost, and poll whether it is back."""
        if err.code == INVALID_ARGUMENT:  # no GPU has its handle now; it may answer under another index
            self._schedule.rescan()
            return
        with self._changed:
            self._requests = self._requests.another_after_loss()
            self._changed.notify_all()
            self._post_lost(uuid, err)

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._schedule.stopping.is_set():
            # A poll without a driver serves the requests too. Otherwise the thread would try again without a pause.
            self._begin()
            try:
                with self.nvml.session():
                    self._poll_until_stopped()
            except (DriverError, CallError) as err:
                self._fails(str(err))
                self._lose_driver()
            except Exception:
                log.exception("Failed to ask a GPU for its health", extra={"gpu": self.index})
                self._fails("")
            self._rest()

    def _poll_until_stopped(self) -> None:
        """Poll again and again. Raises CallError if the driver as a whole stops answering."""
        with self._changed:
            self._gpu = replace(self._gpu, driver_away=False)
        while not self._schedule.stopping.is_set():
            self._begin()
            self._poll()
            self._rest()

    def _begin(self) -> None:
        with self._changed:
            self._requests = self._requests.begin()

    def _rest(self) -> None:
        """Wait until the next poll is due or requested, or the GPU no longer answers."""
        until = time.monotonic() + self._period_s()
        # In short parts: after each, a cheap call shows whether the GPU is still there.
        while (left_s := until - time.monotonic()) > 0:
            with self._changed:
                if self._changed.wait_for(self._is_due, min(left_s, self._schedule.alive_s)):
                    return
            if not self._is_alive():
                return

    def _period_s(self) -> float:
        with self._changed:
            is_wary = self._schedule.clock() < self._wary_until
            return self._schedule.period_s(self._gpu, is_wary=is_wary)

    def _is_due(self) -> bool:
        return self._requests.is_open or self._schedule.stopping.is_set()

    def _is_alive(self) -> bool:
        """Whether the GPU answers; true if it did not answer at the last poll either."""
        try:
            if self._handle:
                self.nvml.probe(self._handle)
        except CallError:  # the next poll finds the cause
            return False
        return True

    def _poll(self) -> None:
        """Poll once. Raises CallError if the driver as a whole does not answer."""
        try:
            handle = self.nvml.handle(self.index)
            uuid = self.nvml.uuid(handle)
            self.nvml.probe(handle)
            self._handle = handle
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            self._is_not_there(err)
            self._fails(gpu_reason(err))
            return
        # An XID waits for the recovery action only: the other values may take longer.
        is_urgent = self._requests.awaited is not None
        try:
            reading = self._query.ask(self.nvml, handle, uuid, in_a_hurry=is_urgent)
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            self._fails(gpu_reason(err))
            return
        self._take(uuid, reading)
        if is_urgent:
            self.wake()  # for the other values

    def _take(self, uuid: str, reading: HealthReading) -> None:
        with self._changed:
            requests = self._requests
            self._requests = requests.end()
            self._changed.notify_all()
            if requests.is_outdated:
                self._gpu = self._gpu.answers_too_late(reading)
                return
            answer = self._gpu.answers(uuid, reading, awaited=requests.is_awaited)
            self._gpu = answer.gpu
            if answer.is_posted:
                self._post(HealthRead(uuid, reading, self._schedule.clock(), returned=answer.is_return))
            if answer.needs_rescan:
                self._schedule.rescan()

    # -- failures ----------------------------------------------------------------------------------------------

    def _is_not_there(self, err: CallError) -> None:
        """The GPU does not answer: it is lost, or the driver has given its index to no other one."""
        with self._changed:
            gpu = self._gpu
            if err.code != INVALID_ARGUMENT:
                if gpu.uuid:
                    self._post_lost(gpu.uuid, err)
                return
            self._gpu = replace(gpu, uncounted=True)
        if not gpu.uncounted:
            # The driver counts fewer GPUs now, and the one that was here may have another index.
            self._schedule.rescan()

    def _lose_driver(self) -> None:
        with self._changed:
            was_away = self._gpu.driver_away
            self._gpu = self._gpu.without_driver()
        if not was_away:
            self._schedule.rescan()

    def _fails(self, reason: str) -> None:
        # Between two polls, it is not probed until it answers again.
        self._handle = None
        with self._changed:
            known = self._gpu.error
            self._gpu = self._gpu.fails(reason)
            self._requests = self._requests.end()
            self._changed.notify_all()
        if reason and reason != known:
            log.warning("Failed to read the health of a GPU", extra={"gpu": self.index, "error": reason})

    def _post_lost(self, uuid: str, err: CallError) -> None:
        reason = gpu_reason(err)
        was_lost = self._gpu.lost
        # Any other failure does not show a reset.
        self._gpu = self._gpu.is_lost(reason, away=err.code == GPU_IS_LOST)
        if was_lost:
            return
        log.warning("Lost a GPU", extra={"gpu": self.index, "error": reason})
        loss = GpuLost(uuid, reason, self._schedule.clock())
        if may_be_shared(err) and self._schedule.confirm_loss and not self._schedule.stopping.is_set():
            self._schedule.confirm_loss(loss)
        else:
            self._post(loss)

    def _post(self, event: Event) -> None:
        if not self._schedule.stopping.is_set():
            self._schedule.post(event)
