"""Watches the health of all GPUs: for each one a thread that waits for its XIDs, and one that polls its health.

A driver may give an event to any waiter, so the handle in the event decides which GPU it is about, not the thread.
"""

import logging
import threading
import time
from collections.abc import Mapping

from gpuagent.domain.events import XidRaised
from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.binding.fault_events import XID, NvmlEvent
from gpuagent.nvml.bounded_query import BoundedQueries
from gpuagent.nvml.health.health_poll import HealthPoll, PollSchedule
from gpuagent.nvml.health.unattributed_faults import UnattributedFaults
from gpuagent.nvml.health.xid_watch import WatchContext, XidWatch

log = logging.getLogger(__name__)

DOUBLE_BIT_ECC_XID = 48
"""The XID that stands for a double-bit ECC error, whose own event does not have the number."""
NVLINK_XID = 74
"""An NVLink failed: it may be down now, at either end."""
EVENT_PATIENCE_S = 0.05
"""How long an event with an unknown handle waits for the UUID of its GPU."""


class HealthWatch:
    """Posts XidRaised, HealthRead and GpuLost for the GPUs that it watches, until stopping."""

    def __init__(self, context: WatchContext, schedule: PollSchedule) -> None:
        self._context = context
        self._schedule = schedule
        self._polls: dict[int, HealthPoll] = {}
        self._watches: dict[int, XidWatch] = {}
        self._began = False
        self._waited_for: set[int] = set()
        self._growing = threading.Lock()
        self._unattributed = UnattributedFaults()
        self._asking = threading.Lock()
        self._uuids = BoundedQueries[int | None, str](
            patience_s=EVENT_PATIENCE_S, clock=context.clock, late=lambda: None
        )

    @property
    def up(self) -> bool:
        """Whether the agent would receive an XID now from every present GPU that supports XIDs."""
        return self._began and all(watch.up for watch in tuple(self._watches.values()))

    @property
    def pending(self) -> list[Pending]:
        """Calls in progress, except the waits for events."""
        calls = [part.nvml.pending for part in self._parts]
        return [call for call in calls if call]

    @property
    def _parts(self) -> tuple[XidWatch | HealthPoll, ...]:
        # Copies, because discovery may add a GPU meanwhile.
        return (*tuple(self._watches.values()), *tuple(self._polls.values()))

    def watch(self, count: int, uuids: Mapping[int, str]) -> None:
        """Watch the first `count` GPUs, of which these could be read; try those again that could not be watched."""
        with self._growing:
            for index in range(count):
                if index not in self._watches and not self._context.stopping.is_set():
                    self._add(index, uuids.get(index, ""))
            self._began = True
            for index, uuid in uuids.items():
                watch = self._watches.get(index)
                if watch:  # none while stopping
                    watch.is_of(uuid)
        self.wake()

    def _add(self, index: int, uuid: str) -> None:
        # Each is entered before it starts, because an event may come at once, for any GPU.
        poll = HealthPoll(index, uuid, self._schedule)
        watch = XidWatch(index, self._context, poll, self._on_event)
        self._polls[index] = poll
        poll.start()
        self._watches[index] = watch
        watch.start()

    def first_readings(self, patience_s: float) -> frozenset[int]:
        """Wait for the first health reading of each GPU; a GPU that has not answered in time is not waited for again.

        Returns the indexes of those that have not answered yet: their first answers are posted, whatever they are.
        """
        until = time.monotonic() + patience_s
        silent: set[int] = set()
        for index, poll in tuple(self._polls.items()):
            left_s = max(0.0, until - time.monotonic())
            # One wait for each GPU: one that hangs must not delay every look at the driver.
            if index in self._waited_for:
                left_s = 0.0
            self._waited_for.add(index)
            if not poll.first_reading(left_s):
                silent.add(index)
        return frozenset(silent)

    def wake(self) -> None:
        """Try the unwatched GPUs again at once, and check `stopping`."""
        for part in self._parts:
            part.wake()

    def join(self, until: float) -> list[str]:
        """Wait for the threads until then (monotonic seconds), not for those that wait for events.

        Returns the names of those that hang.
        """
        for watch in tuple(self._watches.values()):
            while _is_busy(watch) and time.monotonic() < until:
                watch.join(0.01)
        for poll in tuple(self._polls.values()):
            poll.join(max(0.0, until - time.monotonic()))
        return [part.name for part in self._parts if _is_busy(part)]

    # -- whose fault an event is -------------------------------------------------------------------------------

    def _on_event(self, event: NvmlEvent) -> None:
        """Attribute an event to the GPU that it names, and to no other."""
        xid = event.data if event.kind & XID else DOUBLE_BIT_ECC_XID
        watch, error = self._watch_of(event)
        if watch:
            watch.raised(xid)
        else:
            self._raised_by_none(event, xid, error)
        # Whichever GPU it was: the links of all GPUs are read again.
        if xid == NVLINK_XID:
            self._context.links_changed()

    def _watch_of(self, event: NvmlEvent) -> tuple[XidWatch | None, str]:
        """The watch of the GPU that the event is about, or why it is none."""
        if not event.address:
            return None, "the event names no GPU"
        watches = tuple(self._watches.values())
        # The handle goes first: the driver gives no UUID of a GPU that is lost.
        for watch in watches:
            if watch.address == event.address:
                return watch, ""
        uuid, error = self._uuid_of(event)
        for watch in watches:
            if uuid and watch.uuid == uuid:
                return watch, ""
        return None, error or f"{uuid} is no GPU that the agent watches"

    def _uuid_of(self, event: NvmlEvent) -> tuple[str, str]:
        """UUID of the GPU with that handle, or why it is not known. A driver that hangs costs `EVENT_PATIENCE_S`."""
        # One at a time: the threads that wait for events share the queries.
        with self._asking:
            query = self._uuids.ask(event.address, "nvml-event", lambda nvml: [nvml.uuid_of(event)])
            self._uuids.wait()
        if not query.ended:
            return "", f"its UUID was not returned within {EVENT_PATIENCE_S:g} s"
        if query.error:
            return "", str(query.error)
        return query.known or "", ""

    def _raised_by_none(self, event: NvmlEvent, xid: int, error: str) -> None:
        """Report an XID that belongs to no known GPU, and poll the health of every GPU."""
        now = self._context.clock()
        if self._context.stopping.is_set() or not self._unattributed.is_new(event.address, xid, now):
            return
        log.warning("Received a fault of an unknown GPU", extra={"xid": xid, "error": error})
        self._context.post(XidRaised(None, xid, now))
        for poll in tuple(self._polls.values()):
            poll.wake()


def _is_busy(part: XidWatch | HealthPoll) -> bool:
    """Whether its thread runs and does not just wait for an event."""
    return part.alive and part.nvml.waiting_since is None
