"""Polls the health of a GPU: rarely while it is healthy, often while it is not, and at once after an XID.

In between, one cheap call shows whether the GPU is still there: a GPU may be lost without an XID.

Each GPU has a thread of its own, so that a call that hangs in the driver delays nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.events import Event, GpuLost, HealthRead
from gpuagent.domain.gpus.health import HealthReading
from gpuagent.nvml.binding import GPU_IS_LOST, INVALID_ARGUMENT, Handle, Nvml
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, DriverError, gpu_reason, may_be_shared
from gpuagent.nvml.health.health_query import HealthQuery

log = logging.getLogger(__name__)

WARY_S = 60.0
"""For this long after an XID a GPU is polled as often as an unhealthy one: the driver may react late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSchedule:
    """Settings and callbacks that the threads of one watch share.

    Attributes:
        post: takes an event at once.
        back: called when the GPUs must be read again: one that was away answers, MIG mode was switched, or the driver
            stops answering.
        clock: monotonic seconds.
        stopping: ends every thread that is woken.
        healthy_s: polling period of a healthy GPU.
        unhealthy_s: polling period of an unhealthy GPU.
        alive_s: period of one cheap call in between, which shows a GPU that is lost without an XID.
        doubt: takes the loss of a GPU whose error may be the one of all GPUs, and posts it if it is not. If None, such
            a loss is posted like any other.
    """

    post: Callable[[Event], None]
    back: Callable[[], None]
    clock: Callable[[], float]
    stopping: threading.Event
    healthy_s: float
    unhealthy_s: float
    alive_s: float
    doubt: Callable[[GpuLost], None] | None = None


class HealthPoll:
    """Polls one GPU's health. Posts HealthRead on a change, and GpuLost.

    Args:
        index: NVML's.
        uuid: the GPU's as it was read, empty if it was not: GpuLost names it if the GPU never answers here.
        pulse: shared by all threads.
    """

    def __init__(self, index: int, uuid: str, pulse: PollSchedule) -> None:
        self.nvml = Nvml(pulse.clock)
        self.name = f"nvml-vitals-{index}"
        self.index = index
        self._pulse = pulse
        self._changed = threading.Condition(threading.RLock())
        # Every request to poll has a number; a poll serves the requests that came before it began.
        self._wish = self._looking = self._looked = 0
        self._gpu: Handle | None = None
        self._awaited: int | None = None
        self._gone_at = 0
        self._uuid = uuid
        self._vitals: HealthReading | None = None
        self._mig: bool | None = None
        self._failed = False
        self._unposted = False
        self._away = False
        self._lost = False
        self._uncounted = False
        self._driver_away = False
        self._wary_until = float("-inf")
        self._reported = ""
        self._condition = HealthQuery(index, pulse.clock, self.wake)
        self.looked_once = False
        """Whether the GPU has answered completely, or failed to."""
        self._missed = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether every request to poll has been served."""
        with self._changed:
            return not self._is_due()

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """Poll now, and check `stopping`."""
        with self._changed:
            self._wish += 1
            self._changed.notify_all()

    def first_look(self, patience_s: float) -> bool:
        """Wait for the first complete answer or failure; whether it came in time. A late answer is posted."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self.looked_once, patience_s)
            self._missed |= not in_time
            return in_time

    def after_xid(self, uuid: str, patience_s: float) -> HealthReading | None:
        """Read that GPU's health right after an XID; None without an answer in time, which is then posted later.

        Also None where another GPU has its index by now.
        """
        with self._changed:
            self._wary_until = self._pulse.clock() + WARY_S
            self.wake()
            call = self.nvml.pending
            if call and self._pulse.clock() - call.since > patience_s:
                patience_s = 0.0  # the call hangs: each of several XIDs would wait for it
            mine = self._awaited = self._wish
            in_time = self._changed.wait_for(lambda: self._looked >= mine, patience_s)
            self._awaited = None
            vitals = self._vitals if in_time and not self._failed and self._uuid == uuid else None
            self._unposted |= vitals is None
            return vitals

    def goes(self, uuid: str, err: CallError) -> None:
        """Post that the GPU is lost, and poll whether it is back."""
        if err.code == INVALID_ARGUMENT:  # no GPU has its handle now; it may answer under another index
            self._pulse.back()
            return
        with self._changed:
            self.wake()
            self._gone_at = self._wish
            self._post_lost(uuid, err)

    def _run(self) -> None:
        while not self._pulse.stopping.is_set():
            with self._changed:
                self._looking = self._wish  # a missing driver serves the requests too, so that the loop does not spin
            try:
                with self.nvml.session():
                    self._driver_away = False
                    while not self._pulse.stopping.is_set():
                        self._look()
                        self._rest()
            except (DriverError, CallError) as err:
                self._fails(str(err))
                if not self._driver_away:
                    self._pulse.back()
                self._driver_away = self._away = True
            except Exception:
                log.exception("Failed to ask a GPU for its health", extra={"gpu": self.index})
                self._fails("")
            self._rest()

    def _rest(self) -> None:
        """Wait until the next poll is due or requested, or the GPU no longer answers."""
        with self._changed:
            wary = self._pulse.clock() < self._wary_until
            # While the driver is away, discovery looks for it and wakes every thread.
            last = self._vitals
            fine = last is not None and last.well and not last.silent_on and not last.partial
            often = (self._failed or wary or not fine) and not self._driver_away
            period_s = self._pulse.unhealthy_s if often else self._pulse.healthy_s
        until = time.monotonic() + period_s
        while (left_s := until - time.monotonic()) > 0:
            with self._changed:
                if self._changed.wait_for(self._is_due, min(left_s, self._pulse.alive_s)):
                    return
            if not self._is_alive():
                return

    def _is_due(self) -> bool:
        return self._wish > self._looked or self._pulse.stopping.is_set()

    def _is_alive(self) -> bool:
        """Whether the GPU answers; true if it did not answer at the last poll either."""
        try:
            if self._gpu:
                self.nvml.probe(self._gpu)
        except CallError:  # the next poll finds the cause
            return False
        return True

    def _look(self) -> None:
        """Poll once. Raises CallError if the driver as a whole does not answer."""
        with self._changed:
            self._looking = self._wish
        try:
            handle = self.nvml.handle(self.index)
            uuid = self.nvml.uuid(handle)
            self.nvml.probe(handle)
            self._gpu = handle
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            if err.code == INVALID_ARGUMENT:
                # The driver counts fewer GPUs now, and the one that was here may have another index.
                if not self._uncounted:
                    self._pulse.back()
                self._uncounted = True
            elif self._uuid:
                with self._changed:
                    self._post_lost(self._uuid, err)
            self._fails(gpu_reason(err))
            return
        try:
            in_a_hurry = self._awaited is not None
            vitals = self._condition.ask(self.nvml, handle, uuid, in_a_hurry=in_a_hurry)
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            self._fails(gpu_reason(err))
            return
        self._take(uuid, vitals)
        if in_a_hurry:
            self.wake()  # for the other values

    def _take(self, uuid: str, vitals: HealthReading) -> None:
        with self._changed:
            self._looked = self._looking
            self._failed = self._looking < self._gone_at
            self.looked_once |= not vitals.partial
            self._changed.notify_all()
            if self._failed:
                return  # it was lost meanwhile
            moved = bool(self._uuid) and uuid != self._uuid
            is_new = not vitals.unremarkable if self._vitals is None else vitals != self._vitals or moved
            taken = self._awaited is not None and self._looking >= self._awaited
            was_out = self._away or self._lost  # posted as lost, whatever the error was
            late = self._missed and not vitals.partial
            if self._unposted or was_out or moved or late or (is_new and not taken):
                self._post(HealthRead(uuid, vitals, self._pulse.clock(), returned=self._away))
            self._missed = (self._missed or moved) and vitals.partial
            mig_switched = self._mig_switched(vitals.mig, moved=moved)
            if was_out or moved or mig_switched:
                self._pulse.back()
            self._uuid = uuid
            self._vitals = vitals
            self._reported = ""
            self._unposted = self._away = self._lost = self._uncounted = False

    def _mig_switched(self, mig: bool | None, *, moved: bool) -> bool:
        """Whether MIG mode differs from the last reading; an answer without it keeps the last one."""
        if mig is None:
            return False
        switched = not moved and self._mig not in {None, mig}
        self._mig = mig
        return switched

    def _fails(self, reason: str) -> None:
        self._gpu = None
        if reason and reason != self._reported:
            log.warning("Failed to read the health of a GPU", extra={"gpu": self.index, "error": reason})
        with self._changed:
            self._reported = reason
            self._failed = True
            self._looked = self._looking
            self.looked_once = True
            self._changed.notify_all()

    def _post_lost(self, uuid: str, err: CallError) -> None:
        if not self._lost:
            self._reported = gpu_reason(err)
            log.warning("Lost a GPU", extra={"gpu": self.index, "error": self._reported})
            self._report_loss(GpuLost(uuid, self._reported, self._pulse.clock()), shared=may_be_shared(err))
        self._lost = True
        self._away |= err.code == GPU_IS_LOST  # any other failure is no sign of a reset

    def _report_loss(self, loss: GpuLost, *, shared: bool) -> None:
        if shared and self._pulse.doubt and not self._pulse.stopping.is_set():
            self._pulse.doubt(loss)
        else:
            self._post(loss)

    def _post(self, event: Event) -> None:
        if not self._pulse.stopping.is_set():
            self._pulse.post(event)
