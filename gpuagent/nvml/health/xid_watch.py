"""Waits for the driver's XID events: a thread and an event set for each GPU, so that no GPU can block another's events.

A driver may give an event to any waiter, so the handle in the event decides which GPU it is about, not the thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuagent.domain.events import Event, XidRaised
from gpuagent.nvml.binding import DOUBLE_BIT_ECC, XID, Handle, Nvml, NvmlEvent, Pending
from gpuagent.nvml.bounded_query import Questions
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, DriverError, gpu_reason
from gpuagent.nvml.health.health_poll import HealthPoll, PollSchedule
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

DOUBLE_BIT_ECC_XID = 48
"""The XID that stands for a double-bit ECC error, whose own event carries no number."""
NVLINK_XID = 74
"""An NVLink failed: it may be down now, at either end."""
WAIT_OVERRUN_S = 10.0
"""A wait that outlasts its own timeout by this much hangs in the driver."""
UNTIED_S = 1.0
"""An event without a GPU reaches every set; it is reported once in this time."""
EVENT_PATIENCE_S = 0.05
"""How long an event with an unknown handle waits for the UUID of its GPU."""
VITALS_PATIENCE_S = 0.05
"""How long an XID waits for the GPU's health reading, before it is posted without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchContext:
    """Settings and callbacks that the threads of one watch share.

    Attributes:
        post: takes an event at once.
        driver_gone: called when the driver as a whole stops answering.
        links_changed: called when an NVLink has failed.
        clock: monotonic seconds.
        stopping: ends every thread within `wait_s`.
        wait_s: longest wait for an event; an event ends it at once.
        retry_s: after how long a GPU that could not be watched is tried again.
        delays: makes the delays between attempts while the driver is away.
    """

    post: Callable[[Event], None]
    driver_gone: Callable[[], None]
    links_changed: Callable[[], None]
    clock: Callable[[], float]
    stopping: threading.Event
    wait_s: float
    retry_s: float
    delays: Callable[[], Backoff]


class HealthWatch:
    """Posts XidRaised, HealthRead and GpuLost for the GPUs that it watches, until stopping."""

    def __init__(self, ears: WatchContext, pulse: PollSchedule) -> None:
        self._ears = ears
        self._pulse = pulse
        self._vitals: dict[int, HealthPoll] = {}
        self._watches: dict[int, GpuWatch] = {}
        self._began = False
        self._met: set[int] = set()
        self._lock = threading.Lock()
        self._untied: dict[tuple[int | None, int], float] = {}
        self._events_lock = threading.Lock()
        self._owners = Questions[int | None, str](patience_s=EVENT_PATIENCE_S, clock=ears.clock, late=lambda: None)

    @property
    def up(self) -> bool:
        """Whether the agent would receive an XID now from every present GPU that supports XIDs."""
        return self._began and all(watch.up for watch in tuple(self._watches.values()))

    @property
    def pending(self) -> list[Pending]:
        """Calls in progress, except the waits for events."""
        return [call for part in self._parts if (call := part.nvml.pending)]

    @property
    def _parts(self) -> "tuple[GpuWatch | HealthPoll, ...]":
        return (*tuple(self._watches.values()), *tuple(self._vitals.values()))

    def tend(self, count: int, uuids: Mapping[int, str]) -> None:
        """Watch the first `count` GPUs, of which these could be read; try those again that could not be watched."""
        with self._lock:
            followed = frozenset(self._watches)
            for index in range(count):
                if index not in followed and not self._ears.stopping.is_set():
                    self._vitals[index] = HealthPoll(index, uuids.get(index, ""), self._pulse)
                    self._vitals[index].start()
                    self._watches[index] = GpuWatch(index, self._ears, self._vitals[index], self._on_event)
                    self._watches[index].start()
            self._began = True
            for index, uuid in uuids.items():
                if watch := self._watches.get(index):  # none while stopping
                    watch.is_of(uuid)
        self.wake()

    def first_looks(self, patience_s: float) -> frozenset[int]:
        """Wait for the first health reading of each GPU; a GPU that has not answered in time is not waited for again.

        Returns the indexes of those that have not answered yet: their first answers are posted, whatever they are.
        """
        until = time.monotonic() + patience_s
        unasked: set[int] = set()
        for index, vitals in tuple(self._vitals.items()):
            left_s = 0.0 if index in self._met else max(0.0, until - time.monotonic())
            self._met.add(index)
            if not vitals.first_look(left_s):
                unasked.add(index)
        return frozenset(unasked)

    def wake(self) -> None:
        """Try the unwatched GPUs again at once, and check `stopping`."""
        for part in self._parts:
            part.wake()

    def join(self, until: float) -> list[str]:
        """Wait for the threads until then (monotonic seconds), not for those that wait for events.

        Returns the names of those that hang.
        """
        for watch in tuple(self._watches.values()):
            while watch.alive and watch.nvml.waiting_since is None and time.monotonic() < until:
                watch.join(0.01)
        for vitals in tuple(self._vitals.values()):
            vitals.join(max(0.0, until - time.monotonic()))
        return [part.name for part in self._parts if part.alive and part.nvml.waiting_since is None]

    def _on_event(self, event: NvmlEvent) -> None:
        """Attribute an event to the GPU that it names, and to no other."""
        xid = event.data if event.kind & XID else DOUBLE_BIT_ECC_XID
        watches = tuple(self._watches.values())
        # The handle goes first: the driver gives no UUID of a GPU that is lost.
        owner = next((watch for watch in watches if event.address and watch.address == event.address), None)
        uuid = ""
        error = "the event names no GPU"
        if event.address and not owner:
            uuid, error = self._ask_owner(event)
            owner = next((watch for watch in watches if uuid and watch.uuid == uuid), None)
        if owner:
            owner.raised(xid)
        else:
            self._raised_by_none(event, xid, error or f"{uuid} is no GPU that the agent watches")
        if xid == NVLINK_XID:
            self._ears.links_changed()

    def _ask_owner(self, event: NvmlEvent) -> tuple[str, str]:
        """UUID of the GPU with that handle, or why it is not known. A driver that hangs costs `EVENT_PATIENCE_S`."""
        with self._events_lock:
            asked = self._owners.ask(event.address, "nvml-event", lambda nvml: [nvml.uuid_of(event)])
            self._owners.wait()
        if not asked.ended:
            return "", f"its UUID was not returned within {EVENT_PATIENCE_S:g} s"
        return asked.known or "", str(asked.error or "")

    def _raised_by_none(self, event: NvmlEvent, xid: int, error: str) -> None:
        """Report an XID that belongs to no known GPU, and poll the health of every GPU."""
        with self._lock:
            now = self._ears.clock()
            self._untied = {key: at for key, at in self._untied.items() if now - at <= UNTIED_S}
            if (event.address, xid) in self._untied or self._ears.stopping.is_set():
                return
            self._untied[event.address, xid] = now
        log.warning("Received a fault of an unknown GPU", extra={"xid": xid, "error": error})
        self._ears.post(XidRaised(None, xid, now))
        for vitals in tuple(self._vitals.values()):
            vitals.wake()


class GpuWatch:
    """One GPU's faults, in a thread of its own; it never ends silently.

    Args:
        index: NVML's.
        ears: shared by all watches.
        vitals: polls the GPU's health.
        on_event: takes the event that the wait returned, which may be about another GPU.
    """

    def __init__(
        self, index: int, ears: WatchContext, vitals: HealthPoll, on_event: Callable[[NvmlEvent], None]
    ) -> None:
        self.nvml = Nvml(ears.clock)
        self.name = f"nvml-health-{index}"
        self._index = index
        self._ears = ears
        self._vitals = vitals
        self._on_event = on_event
        self._delays = ears.delays()
        self._wake = threading.Event()
        self._listening = False
        self._has_none = False
        self._lost = False
        self.uuid = ""
        self.address: int | None = None
        """Of the handle, as long as the driver stays loaded; None while it is not known."""
        self._moved = False
        self._failures = 0
        self._reported: str | None = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def up(self) -> bool:
        """Whether an XID would be received now, or none can come: the GPU has no events, or is lost."""
        since = self.nvml.waiting_since
        overdue = since is not None and self._ears.clock() - since > self._ears.wait_s + WAIT_OVERRUN_S
        return (self._listening and not overdue) or self._has_none or self._lost

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def is_of(self, uuid: str) -> None:
        """Set the GPU at this index: if the watched GPU is another one, the watch starts again after this wait."""
        self._moved = self.uuid not in ("", uuid)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def raised(self, xid: int) -> None:
        """The driver reported an XID of this GPU, in whichever thread."""
        uuid = self.uuid
        vitals = self._vitals.after_xid(uuid, VITALS_PATIENCE_S)
        if not self._ears.stopping.is_set():
            log.warning("Received a fault of a GPU", extra={"gpu": self._index, "uuid": uuid, "xid": xid})
            self._ears.post(XidRaised(uuid, xid, self._ears.clock(), vitals))

    def _run(self) -> None:
        while not self._ears.stopping.is_set():
            pause_s = self._ears.retry_s
            try:
                with self.nvml.session():
                    pause_s = self._watch()
            except DriverError as err:
                self._report(str(err))
                self.address = None
                pause_s = self._delays.next_s()
            except CallError as err:
                self._report(gpu_reason(err))
                self._lost = err.code not in DRIVER_WIDE
                if err.code in DRIVER_WIDE:
                    self.address = None
                    self._ears.driver_gone()
                    pause_s = self._delays.next_s()
            except Exception:
                log.exception("Failed in the health watch of a GPU", extra={"gpu": self._index})
            finally:
                self._listening = False
            if not self._ears.stopping.is_set():  # the wake-up may have been cleared meanwhile
                self._wake.wait(pause_s)
            self._wake.clear()

    def _watch(self) -> float:
        """Watch through one event set. Returns the seconds to rest before the next attempt."""
        handle = self.nvml.handle(self._index)
        uuid = self.nvml.uuid(handle)
        self.address = None  # so that no other thread reads the new UUID with the old address
        self.uuid = uuid
        self.address = handle.address
        self.nvml.probe(handle)
        self._lost = self._moved = False
        kinds = self.nvml.supported_events(handle) & (XID | DOUBLE_BIT_ECC)
        if not kinds & XID:
            self._report("it reports no XIDs; its faults show only when calls to it fail")
            self._has_none = True
            return self._ears.retry_s
        with self.nvml.event_set() as events:
            self.nvml.register(handle, kinds, events)
            self._listening = True
            self._reported = None
            self._vitals.wake()  # read the faults that came while no wait was running
            log.info("Watched a GPU for faults", extra={"gpu": self._index, "uuid": uuid})
            while not (self._ears.stopping.is_set() or self._moved):
                try:
                    event = self.nvml.wait(events, self._ears.wait_s)
                except CallError as err:
                    self._listening = False
                    if err.code in DRIVER_WIDE or self._is_lost(handle, uuid):
                        raise
                    self._report(gpu_reason(err))
                    self._failures += 1
                    return self._delays.next_s() if self._failures > 1 else 0.0
                self._failures = 0
                self._delays.reset()
                if event:
                    self._on_event(event)
        return 0.0

    def _is_lost(self, handle: Handle, uuid: str) -> bool:
        """Have the GPU posted as lost if it does not answer a probe."""
        try:
            self.nvml.probe(handle)
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            self._lost = True
            self._vitals.goes(uuid, err)
            return True
        return False

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            self._reported = reason
            log.warning("Failed to watch a GPU", extra={"gpu": self._index, "error": reason})
