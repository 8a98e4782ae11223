"""Waits for the driver's XID events.

Each GPU has a thread and an event set of its own, so that no GPU can block another's events.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.events import Event, XidRaised
from gpuagent.nvml.binding.calls import Handle
from gpuagent.nvml.binding.fault_events import DOUBLE_BIT_ECC, XID, NvmlEvent
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, DriverError, gpu_reason
from gpuagent.nvml.health.health_poll import HealthPoll
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

WAIT_OVERRUN_S = 10.0
"""A wait that outlasts its own timeout by this much hangs in the driver."""
READING_PATIENCE_S = 0.05
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


class XidWatch:
    """One GPU's faults, in a thread of its own; it never ends silently.

    Args:
        index: NVML's.
        context: shared by all watches.
        poll: polls the GPU's health.
        on_event: takes the event that the wait returned, which may be about another GPU.

    Attributes:
        uuid: of the watched GPU; empty until it is known.
        address: of its handle, as long as the driver stays loaded; None while it is not known.
    """

    def __init__(
        self, index: int, context: WatchContext, poll: HealthPoll, on_event: Callable[[NvmlEvent], None]
    ) -> None:
        self.nvml = Nvml(context.clock)
        self.name = f"nvml-health-{index}"
        self.uuid = ""
        self.address: int | None = None
        self._index = index
        self._context = context
        self._poll = poll
        self._on_event = on_event
        self._delays = context.delays()
        self._wake = threading.Event()
        self._listening = False
        self._has_no_events = False
        self._lost = False
        self._moved = False
        self._failures = 0
        self._reported: str | None = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def up(self) -> bool:
        """Whether an XID would be received now, or none can come: the GPU has no events, or is lost."""
        if self._has_no_events or self._lost:
            return True
        return self._listening and not self._is_overdue()

    def _is_overdue(self) -> bool:
        """Whether the wait for an event has outlasted its timeout, so that it hangs in the driver."""
        since = self.nvml.waiting_since
        return since is not None and self._context.clock() - since > self._context.wait_s + WAIT_OVERRUN_S

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
        # With the reading, the core need not guess from the XID's number how serious the fault is.
        uuid = self.uuid
        reading = self._poll.after_xid(uuid, READING_PATIENCE_S)
        if not self._context.stopping.is_set():
            log.warning("Received a fault of a GPU", extra={"gpu": self._index, "uuid": uuid, "xid": xid})
            self._context.post(XidRaised(uuid, xid, self._context.clock(), reading))

    def _run(self) -> None:
        while not self._context.stopping.is_set():
            pause_s = self._watch_once()
            if not self._context.stopping.is_set():  # the wake-up may have been cleared meanwhile
                self._wake.wait(pause_s)
            self._wake.clear()

    def _watch_once(self) -> float:
        """Watch until that fails. Returns the seconds to rest before the next attempt."""
        try:
            with self.nvml.session():
                return self._watch()
        except DriverError as err:
            self._report(str(err))
            return self._rest_without_driver()
        except CallError as err:
            self._report(gpu_reason(err))
            is_driver_gone = err.code in DRIVER_WIDE
            self._lost = not is_driver_gone
            if is_driver_gone:
                self._context.driver_gone()
                return self._rest_without_driver()
        except Exception:
            log.exception("Failed in the health watch of a GPU", extra={"gpu": self._index})
        finally:
            self._listening = False
        return self._context.retry_s

    def _rest_without_driver(self) -> float:
        self.address = None
        return self._delays.next_s()

    def _watch(self) -> float:
        """Watch through one event set. Returns the seconds to rest before the next attempt."""
        handle = self.nvml.handle(self._index)
        self._set_gpu(handle)
        self.nvml.probe(handle)
        self._lost = False
        self._moved = False
        # The driver refuses a registration for a kind that the GPU does not have.
        kinds = self.nvml.supported_events(handle) & (XID | DOUBLE_BIT_ECC)
        if not kinds & XID:
            self._report("it reports no XIDs; its faults show only when calls to it fail")
            self._has_no_events = True
            return self._context.retry_s
        with self.nvml.event_set() as events:
            self.nvml.register(handle, kinds, events)
            self._listening = True
            self._reported = None
            self._poll.wake()  # read the faults that came while no wait was running
            log.info("Watched a GPU for faults", extra={"gpu": self._index, "uuid": self.uuid})
            return self._take_events(handle, events)

    def _set_gpu(self, handle: Handle) -> None:
        uuid = self.nvml.uuid(handle)
        # In this order: no other thread may read the new UUID with the old address.
        self.address = None
        self.uuid = uuid
        self.address = handle.address

    def _take_events(self, handle: Handle, events: Any) -> float:  # noqa: ANN401 (opaque)
        """Wait for events until the watch must begin again. Returns the seconds to rest before that."""
        while not (self._context.stopping.is_set() or self._moved):
            try:
                event = self.nvml.wait(events, self._context.wait_s)
            except CallError as err:
                self._listening = False
                if err.code in DRIVER_WIDE or self._is_lost(handle):
                    raise
                self._report(gpu_reason(err))
                self._failures += 1
                # A wait may fail once for no reason; a GPU whose waits always fail must not be tried without a pause.
                return self._delays.next_s() if self._failures > 1 else 0.0
            self._failures = 0
            self._delays.reset()
            if event:
                self._on_event(event)
        return 0.0

    def _is_lost(self, handle: Handle) -> bool:
        """Have the GPU posted as lost if it does not answer a probe."""
        try:
            self.nvml.probe(handle)
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            self._lost = True
            self._poll.report_lost(self.uuid, err)
            return True
        return False

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            self._reported = reason
            log.warning("Failed to watch a GPU", extra={"gpu": self._index, "error": reason})
