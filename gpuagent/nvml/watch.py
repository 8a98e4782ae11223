"""Watches the driver for the agent: reads the GPUs, waits for faults, detects calls that hang."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuagent.domain.events import Event, GpuLost
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.host.nvidia_driver import control_device, gpus_on_bus, module_version
from gpuagent.nvml.binding import Nvml, Pending
from gpuagent.nvml.driver_errors import VERSION_MISMATCH, CallError, DriverError, shared_error
from gpuagent.nvml.gpu_reader import DEV, PROC, SYSFS, count_gpus, device_nodes
from gpuagent.nvml.health.health_poll import PollSchedule
from gpuagent.nvml.health.xid_watch import HealthWatch, WatchContext
from gpuagent.nvml.inventory import GpuReading, Readings, inventory_of, shared_failure
from gpuagent.nvml.inventory_events import InventoryEvents
from gpuagent.nvml.rescan import RescanRequests
from gpuagent.nvml.stall import StallGuard
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_LOOKS_S = 0.1
"""How long new GPUs wait for their first health reading; after that they are posted as not read yet."""
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
        vitals_s: period of health readings of a healthy GPU.
        unhealthy_vitals_s: the same for an unhealthy GPU.
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
        vitals_s: float = 30.0,
        unhealthy_vitals_s: float = 5.0,
        alive_s: float = 4.0,
        sysfs: Path = SYSFS,
        dev: Path = DEV,
        proc: Path = PROC,
    ) -> None:
        self._patience_s = patience_s
        self._reread_s = reread_s
        self._links_reread_s = links_reread_s
        self._dev = dev
        self._proc = proc
        self._sysfs = sysfs
        self._post = post
        self._doubts: queue.SimpleQueue[GpuLost] = queue.SimpleQueue()
        self.restart_helps: str | None = None
        """Why a restart of the agent's container would bring the GPUs back; None if it would not, or need not."""
        self._stopping = threading.Event()
        self._wishes = RescanRequests(links_apart_s)
        self._delays = Backoff(first_retry_s, most_retry_s)
        self._nvml = Nvml(clock)
        self._events = InventoryEvents(post, clock)
        self._readings = Readings(
            patience_s=patience_s,
            links_patience_s=links_patience_s,
            clock=clock,
            sysfs=sysfs,
            proc=proc,
            late=self._wishes.now,
        )
        self._health = HealthWatch(
            WatchContext(
                post=post,
                driver_gone=self._wishes.now,
                links_changed=self._wishes.soon,
                clock=clock,
                stopping=self._stopping,
                wait_s=wait_s,
                retry_s=reread_s,
                delays=lambda: Backoff(first_retry_s, most_retry_s),
            ),
            PollSchedule(
                post=post,
                back=self._wishes.now,
                clock=clock,
                stopping=self._stopping,
                healthy_s=vitals_s,
                unhealthy_s=unhealthy_vitals_s,
                alive_s=alive_s,
                doubt=self._doubt,
            ),
        )
        self._guard = StallGuard(
            self._pending,
            self._events,
            stall_s=stall_s,
            clock=clock,
            stopping=self._stopping,
            changed=self._wishes.now,
        )
        self._events.hangs = self._guard.driver_hangs
        self._threads = [
            threading.Thread(target=self._discovery, name="nvml-discovery", daemon=True),
            threading.Thread(target=self._guard.run, name="nvml-guard", daemon=True),
        ]

    @property
    def health_watch_up(self) -> bool:
        """Whether the agent would receive an XID now from every present GPU; False while the driver is missing."""
        return self._health.up

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def reread(self) -> None:
        """Read the GPUs again, now."""
        self._wishes.now()

    def stop(self) -> None:
        """End the threads; returns within about a second even if a call hangs. Nothing is posted afterwards.

        A thread that waits for events ends when its wait does.
        """
        self._stopping.set()
        self._wishes.now()
        self._health.wake()
        until = time.monotonic() + STOP_S
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            thread.join(max(0.0, until - time.monotonic()))
        left = [*(thread.name for thread in started if thread.is_alive()), *self._health.join(until)]
        if left:
            log.warning("Left threads that still wait for the driver", extra={"threads": ",".join(left)})

    def _pending(self) -> list[Pending]:
        own = self._nvml.pending
        return [*self._health.pending, *([own] if own else [])]

    def _discovery(self) -> None:
        while not self._stopping.is_set():
            self._wishes.begin()
            inventory: Inventory | None = None
            try:
                inventory, count = self._look()
            except DriverError as err:
                self.restart_helps = self.restart_helps or self._new_driver(err)
                self._take_doubts()  # the driver's failure explains them
                self._unavailable(str(err))
            except Exception as err:
                log.exception("Failed to read the GPUs")
                self._unavailable(f"reading the GPUs failed: {err!r}")
            else:
                self._delays.reset()
                self.restart_helps = None
                self._post_losses(inventory)
                self._health.tend(count, {gpu.index: gpu.uuid for gpu in inventory.gpus})
                # Faults of a GPU are posted before the GPU: so no list advertises a GPU that the driver asks to reset.
                unasked = self._health.first_looks(FIRST_LOOKS_S)
                silent = frozenset(gpu.uuid for gpu in inventory.gpus if gpu.index in unasked)
                self._read(replace(inventory, unasked=silent))
            self._rest(inventory)

    def _rest(self, inventory: Inventory | None) -> None:
        """Wait until the next look is due; None: this one failed."""
        if inventory is None:
            delay_s = self._delays.next_s()
        elif unsettled(inventory):
            delay_s = self._reread_s
        else:
            # Links may come up without an event, as when the fabric manager starts after the agent.
            down = any(wiring.inactive for wiring in inventory.wiring.values())
            delay_s = self._links_reread_s if down else float("inf")
        until = time.monotonic() + delay_s
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            if inventory is None or not lacks_nodes(inventory):
                self._wishes.wait(left_s)
                return
            # Nodes are looked for without the driver: /dev/nvidia-uvm may come only with the first CUDA program.
            if self._wishes.wait(min(left_s, self._reread_s)) or device_nodes(self._dev) != inventory.device_nodes:
                return

    def _look(self) -> tuple[Inventory, int]:
        """Return the inventory, and the number of GPUs that the driver counts. Raises DriverError."""
        with self._nvml.session():
            version = self._nvml.driver_version()
            count = count_gpus(self._nvml)
            readings = self._readings.look(count)
        self._check_shared(readings)
        inventory = inventory_of(
            readings,
            hung=self._guard.hung(),
            former=self._events.inventory,
            patience_s=self._patience_s,
            version=version,
            nodes=device_nodes(self._dev),
            on_bus=gpus_on_bus(self._sysfs),
        )
        return inventory, count

    def _check_shared(self, readings: list[GpuReading]) -> None:
        """Raise DriverError if every GPU fails in the same way, because of the driver or of the agent's container."""
        hanging = [reading.hangs_in for reading in readings if reading.hangs_in]
        if self._events.inventory and len(hanging) == len(readings) > 1:
            # Otherwise all GPUs would stay as they were read before.
            what = f"{hanging[0]} has not returned for {self._patience_s:g} s"
            raise DriverError(
                f"none of the {len(readings)} GPUs answers: {what}; see NVRM lines in `dmesg` on the node"
            )
        failure = shared_failure(readings)
        if failure is None:
            return
        control = control_device(self._dev)
        if len(readings) == 1 and not control.forbidden:
            return  # one GPU alone: it may as well be the GPU's own fault
        if control.forbidden and self._events.inventory:
            # The container could use the devices before, so a new one can as well.
            self.restart_helps = f"{control.path} cannot be opened any more ({control.error})"
        raise shared_error(failure, len(readings), control)

    def _new_driver(self, err: DriverError) -> str | None:
        """Why a restart helps: the driver was replaced, and a new container gets the library that fits the new one."""
        cause = err.__cause__
        former = self._events.inventory
        if former is None or not isinstance(cause, CallError) or cause.code != VERSION_MISMATCH:
            return None
        loaded = module_version(self._proc)
        if loaded in {"", former.driver_version}:
            return None
        return f"the NVIDIA driver was replaced: {former.driver_version} before, {loaded} now"

    def _doubt(self, loss: GpuLost) -> None:
        """A GPU failed with an error that all may share: read all, and then say which it is."""
        self._doubts.put(loss)
        self._wishes.now()

    def _post_losses(self, inventory: Inventory) -> None:
        """Post the losses that the driver as a whole does not explain."""
        readable = {gpu.uuid for gpu in inventory.gpus}
        driver_was_away = self._events.problem is not None
        for loss in self._take_doubts():
            if not (driver_was_away and loss.uuid in readable):
                self._post(loss)

    def _take_doubts(self) -> list[GpuLost]:
        losses = []
        while not self._doubts.empty():
            losses.append(self._doubts.get())
        return [] if self._stopping.is_set() else losses

    def _read(self, inventory: Inventory) -> None:
        if self._stopping.is_set() or not self._events.read(inventory):
            return
        log.info(
            "Read GPUs",
            extra={
                "gpus": len(inventory.gpus),
                "unreadable": len(inventory.unreadable),
                "driver": inventory.driver_version,
            },
        )

    def _unavailable(self, reason: str) -> None:
        if not self._stopping.is_set() and self._events.unavailable(reason):
            log.debug("Failed to use the NVIDIA driver", extra={"reason": reason})


def unsettled(inventory: Inventory) -> bool:
    """Whether the driver may soon report more.

    No GPU, one that could not be read or is on the PCI bus only, one in MIG mode, a fabric that is still being set up,
    a query about links that failed.
    """
    return (
        not inventory.gpus
        or bool(inventory.unreadable)
        or bool(inventory.absent)
        or any(gpu.mig for gpu in inventory.gpus)
        or any(wiring.problems or (wiring.fabric and not wiring.fabric.ready) for wiring in inventory.wiring.values())
    )


def lacks_nodes(inventory: Inventory) -> bool:
    """Whether a device node is missing that containers need."""
    needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in inventory.gpus)}
    return not needed <= inventory.device_nodes
