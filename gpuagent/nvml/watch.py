"""Watches the driver for the agent: reads the GPUs, waits for faults, detects calls that hang."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain.events import Event
from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.discovery import Discovery, RescanPeriods
from gpuagent.nvml.driver_reader import DriverReader, HostPaths
from gpuagent.nvml.gpu_reader import DEV, PROC, SYSFS
from gpuagent.nvml.health.health_poll import PollSchedule
from gpuagent.nvml.health.health_watch import HealthWatch
from gpuagent.nvml.health.xid_watch import WatchContext
from gpuagent.nvml.inventory import Readings
from gpuagent.nvml.inventory_events import InventoryEvents
from gpuagent.nvml.rescan import RescanRequests
from gpuagent.nvml.stall import StallGuard
from gpuagent.nvml.suspected_losses import SuspectedLosses
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

STOP_S = 1.0
"""How long `stop` waits for threads; one that hangs in the driver is left behind (all are daemons)."""


class NvmlWatch:
    """Posts InventoryRead, DriverUnavailable, XidRaised, HealthRead and GpuLost from threads of its own.

    Args:
        post: takes an event at once, from any thread.
        clock: monotonic seconds; the `at` of events.
        stall_s: a call (other than the wait for events) that takes longer is reported.
        patience_s: a GPU whose reading takes longer is posted as unreadable for the time being.
        links_patience_s: links whose reading takes longer are posted as not known for the time being. Shorter, because
            every GPU waits for them, and a later answer is posted as soon as it comes.
        reread_s: period of looking again while something on the node may still change for the better.
        links_reread_s: the same while only NVLinks are down: long, since cards without a bridge stay so.
        links_apart_s: pause between looks after NVLink errors, which come in storms.
        first_retry_s: first delay while the driver is missing; doubles up to `most_retry_s`.
        most_retry_s: the longest such delay.
        wait_s: longest single wait for events; its thread may live this long after `stop`.
        healthy_s: period of health readings of a healthy GPU.
        unhealthy_s: the same for an unhealthy GPU.
        alive_s: period of one cheap call in between, which shows a GPU that is lost without an XID.
        sysfs: where sysfs is mounted.
        dev: where device nodes are.
        proc: where procfs is mounted.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        post: Callable[[Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = 10.0,
        patience_s: float = 3.0,
        links_patience_s: float = 1.0,
        reread_s: float = 60.0,
        links_reread_s: float = 600.0,
        links_apart_s: float = 1.0,
        first_retry_s: float = 1.0,
        most_retry_s: float = 30.0,
        wait_s: float = 5.0,
        healthy_s: float = 30.0,
        unhealthy_s: float = 5.0,
        alive_s: float = 4.0,
        sysfs: Path = SYSFS,
        dev: Path = DEV,
        proc: Path = PROC,
    ) -> None:
        self._stopping = threading.Event()
        self._requests = RescanRequests(links_apart_s)
        suspects = SuspectedLosses(self._requests.now)
        events = InventoryEvents(post, clock)
        self._health = HealthWatch(
            WatchContext(
                post=post,
                driver_gone=self._requests.now,
                links_changed=self._requests.soon,
                clock=clock,
                stopping=self._stopping,
                wait_s=wait_s,
                retry_s=reread_s,
                delays=lambda: Backoff(first_retry_s, most_retry_s),
            ),
            PollSchedule(
                post=post,
                rescan=self._requests.now,
                clock=clock,
                stopping=self._stopping,
                healthy_s=healthy_s,
                unhealthy_s=unhealthy_s,
                alive_s=alive_s,
                confirm_loss=suspects.add,
            ),
        )
        guard = StallGuard(
            self._pending,
            events,
            stall_s=stall_s,
            clock=clock,
            stopping=self._stopping,
            changed=self._requests.now,
        )
        events.hangs = guard.driver_hangs
        readings = Readings(
            patience_s=patience_s,
            links_patience_s=links_patience_s,
            clock=clock,
            sysfs=sysfs,
            proc=proc,
            late=self._requests.now,
        )
        self._reader = DriverReader(
            readings,
            events,
            guard,
            paths=HostPaths(sysfs=sysfs, dev=dev, proc=proc),
            patience_s=patience_s,
            clock=clock,
        )
        discovery = Discovery(
            reader=self._reader,
            requests=self._requests,
            health=self._health,
            suspects=suspects,
            events=events,
            post=post,
            periods=RescanPeriods(
                unsettled_s=reread_s,
                links_down_s=links_reread_s,
                retries=Backoff(first_retry_s, most_retry_s),
            ),
            stopping=self._stopping,
            dev=dev,
        )
        self._threads = [
            threading.Thread(target=discovery.run, name="nvml-discovery", daemon=True),
            threading.Thread(target=guard.run, name="nvml-guard", daemon=True),
        ]

    @property
    def health_watch_up(self) -> bool:
        """Whether the agent would receive an XID now from every present GPU; False while the driver is missing."""
        return self._health.up

    @property
    def restart_helps(self) -> str | None:
        """Why a restart of the agent's container would bring the GPUs back; None if it would not, or need not."""
        return self._reader.restart_helps

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def reread(self) -> None:
        """Read the GPUs again, now."""
        self._requests.now()

    def stop(self) -> None:
        """End the threads; returns within about a second even if a call hangs. Nothing is posted afterwards.

        A thread that waits for events ends when its wait does.
        """
        self._stopping.set()
        self._requests.now()
        self._health.wake()
        until = time.monotonic() + STOP_S
        # A thread that was never started cannot be joined.
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            thread.join(max(0.0, until - time.monotonic()))
        hanging = [thread.name for thread in started if thread.is_alive()]
        hanging += self._health.join(until)
        if hanging:
            log.warning("Left threads that still wait for the driver", extra={"threads": ",".join(hanging)})

    def _pending(self) -> list[Pending]:
        """The calls in progress, except the waits for events."""
        calls = self._health.pending
        own = self._reader.pending
        if own:
            calls.append(own)
        return calls
