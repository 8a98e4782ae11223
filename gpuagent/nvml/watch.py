"""Keeps an eye on the driver for the agent: reads the GPUs, waits for faults, notices calls that hang."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.backoff import Backoff
from gpuagent.domain.events import Event
from gpuagent.domain.gpu import Inventory
from gpuagent.nvml.binding import Nvml
from gpuagent.nvml.errors import DriverError
from gpuagent.nvml.health import HealthWatch
from gpuagent.nvml.news import DriverNews
from gpuagent.nvml.source import DEV, SYSFS, discover
from gpuagent.nvml.stall import StallGuard, Worker

log = logging.getLogger(__name__)

STOP_S = 1.0
"""How long `stop` waits for threads; one that hangs in the driver is left behind (all are daemons)."""


class NvmlWatch:
    """Posts InventoryRead, DriverUnavailable, XidRaised and GpuLost from threads of its own.

    Args:
        post: takes an event at once, from any thread.
        clock: monotonic seconds; the `at` of events.
        stall_s: a call (other than the wait for events) that takes longer is reported, and its GPU left out.
        reread_s: period of looking again while something on the node may still change for the better.
        first_retry_s: first delay while the driver is missing; doubles up to `most_retry_s`.
        most_retry_s: the longest such delay.
        wait_s: longest single wait for events; as long may its thread live on after `stop`.
        sysfs: where sysfs is mounted.
        dev: where device nodes are.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        post: Callable[[Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = 10.0,
        reread_s: float = 60.0,
        first_retry_s: float = 1.0,
        most_retry_s: float = 30.0,
        wait_s: float = 2.0,
        sysfs: Path = SYSFS,
        dev: Path = DEV,
    ) -> None:
        self._post, self._clock = post, clock
        self._reread_s, self._wait_s = reread_s, wait_s
        self._first_retry_s, self._most_retry_s = first_retry_s, most_retry_s
        self._sysfs, self._dev = sysfs, dev
        self._stopping = threading.Event()
        self._look_again = threading.Event()
        self._delays = Backoff(first_retry_s, most_retry_s)
        self._news = DriverNews(post, clock)
        self._discovery = Worker("nvml-discovery", self._discover, clock)
        self._health = Worker("nvml-health", self._watch_health, clock)
        self._guard = StallGuard(
            (self._discovery, self._health),
            self._news,
            stall_s=stall_s,
            clock=clock,
            stopping=self._stopping,
            changed=self._nudge,
        )
        self._news.hangs = self._guard.driver_hangs
        self._guard_thread = threading.Thread(target=self._guard.run, name="nvml-guard", daemon=True)
        self._health_watch: HealthWatch | None = None

    @property
    def health_watch_up(self) -> bool:
        """Whether an XID would be heard now. False while the driver is missing or the watch is being rebuilt."""
        return self._health_watch is not None and self._health_watch.up

    def start(self) -> None:
        """Begin; returns at once."""
        self._discovery.start()
        self._health.start()
        self._guard_thread.start()

    def stop(self) -> None:
        """End the threads; returns within about a second even if a call hangs. Nothing is posted afterwards.

        A thread that waits for events ends when its wait does.
        """
        self._stopping.set()
        self._nudge()
        until = time.monotonic() + STOP_S
        waits = self._health.nvml.waiting_since is not None
        threads = (self._guard_thread, self._discovery.thread, None if waits else self._health.thread)
        started = [thread for thread in threads if thread and thread.ident is not None]
        for thread in started:
            thread.join(max(0.0, until - time.monotonic()))
        left = [thread.name for thread in started if thread.is_alive()]
        if left:
            log.warning("threads still wait for the driver", extra={"threads": ",".join(left)})

    def _nudge(self) -> None:
        """Look again at everything."""
        self._look_again.set()
        if self._health_watch:
            self._health_watch.wake()

    def _watch_health(self, nvml: Nvml) -> None:
        self._health_watch = HealthWatch(
            nvml,
            hung=self._guard.hung,
            post=self._post,
            driver_gone=self._look_again.set,
            clock=self._clock,
            stopping=self._stopping,
            wait_s=self._wait_s,
            retry_s=self._reread_s,
            delays=Backoff(self._first_retry_s, self._most_retry_s),
        )
        self._health_watch.run()

    def _discover(self, nvml: Nvml) -> None:
        while not (self._stopping.is_set() or nvml.left_behind):
            self._look_again.clear()
            delay_s: float | None
            try:
                inventory = discover(
                    nvml=nvml,
                    hung=self._guard.hung(),
                    former=self._news.inventory,
                    sysfs=self._sysfs,
                    dev=self._dev,
                )
            except DriverError as err:
                self._unavailable(str(err))
                delay_s = self._delays.next_s()
            except Exception as err:
                log.exception("reading the GPUs failed")
                self._unavailable(f"reading the GPUs failed: {err!r}")
                delay_s = self._delays.next_s()
            else:
                self._delays.reset()
                self._read(inventory)
                delay_s = self._reread_s if unsettled(inventory) else None
            if not self._stopping.is_set():  # its nudge may have been cleared above
                self._look_again.wait(delay_s)

    def _read(self, inventory: Inventory) -> None:
        if self._stopping.is_set() or not self._news.read(inventory):
            return
        log.info(
            "GPUs read",
            extra={
                "gpus": len(inventory.gpus),
                "unreadable": len(inventory.unreadable),
                "driver": inventory.driver_version,
            },
        )
        if self._health_watch:
            self._health_watch.wake()

    def _unavailable(self, reason: str) -> None:
        if not self._stopping.is_set() and self._news.unavailable(reason):
            log.warning("the NVIDIA driver cannot be used", extra={"reason": reason})


def unsettled(inventory: Inventory) -> bool:
    """Whether a later look may find more: no GPU, one that could not be read, one in MIG mode, a missing node."""
    needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in inventory.gpus)}
    return (
        not inventory.gpus
        or bool(inventory.unreadable)
        or any(gpu.mig for gpu in inventory.gpus)
        or not needed <= inventory.device_nodes
    )
