"""Reads the GPUs again and again, and posts what has changed."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.domain.events import Event
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.driver_reader import DriverReader
from gpuagent.nvml.gpu_reader import device_nodes
from gpuagent.nvml.health.health_watch import HealthWatch
from gpuagent.nvml.inventory_events import InventoryEvents
from gpuagent.nvml.rescan import RescanRequests
from gpuagent.nvml.suspected_losses import SuspectedLosses
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_READINGS_S = 0.1
"""How long new GPUs wait for their first health reading; after that they are posted as not read yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescanPeriods:
    """When the GPUs are read again without a request.

    Attributes:
        unsettled_s: while something on the node may still change for the better.
        links_down_s: while only NVLinks are down: long, since cards without a bridge stay so.
        retries: while the driver is missing.
    """

    unsettled_s: float
    links_down_s: float
    retries: Backoff


class Discovery:
    """Reads the driver on request and when something may have changed, until stopping. For one thread.

    Args:
        reader: of the driver.
        requests: to read again.
        health: watches the GPUs that were read.
        suspects: losses that the next read confirms or explains.
        events: what was posted so far.
        post: takes an event at once.
        periods: between two reads.
        stopping: ends `run`.
        dev: where device nodes are.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        *,
        reader: DriverReader,
        requests: RescanRequests,
        health: HealthWatch,
        suspects: SuspectedLosses,
        events: InventoryEvents,
        post: Callable[[Event], None],
        periods: RescanPeriods,
        stopping: threading.Event,
        dev: Path,
    ) -> None:
        self._reader = reader
        self._requests = requests
        self._health = health
        self._suspects = suspects
        self._events = events
        self._post = post
        self._periods = periods
        self._stopping = stopping
        self._dev = dev

    def run(self) -> None:
        """Read, post, rest; until stopping."""
        while not self._stopping.is_set():
            self._requests.begin()
            inventory = self._read()
            self._rest(inventory)

    def _read(self) -> Inventory | None:
        """Read the driver and post what it says. Returns None if it does not answer."""
        try:
            inventory, count = self._reader.read()
        except DriverError as err:
            self._suspects.take()  # the driver's failure explains them
            self._unavailable(str(err))
            return None
        except Exception as err:
            log.exception("Failed to read the GPUs")
            self._unavailable(f"reading the GPUs failed: {err!r}")
            return None
        self._periods.retries.reset()
        # Before the inventory: a GPU that is lost must not be listed as healthy for a moment.
        self._post_losses(inventory)
        self._health.watch(count, {gpu.index: gpu.uuid for gpu in inventory.gpus})
        # Faults of a GPU are posted before the GPU: so no list advertises a GPU that the driver asks to reset.
        unasked = self._health.first_readings(FIRST_READINGS_S)
        silent = frozenset(gpu.uuid for gpu in inventory.gpus if gpu.index in unasked)
        self._post_inventory(replace(inventory, unasked=silent))
        return inventory

    def _rest(self, inventory: Inventory | None) -> None:
        """Wait until the next read is due; None: this one failed."""
        until = time.monotonic() + self._pause_s(inventory)
        while not self._stopping.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            if inventory is None or not lacks_nodes(inventory):
                self._requests.wait(left_s)
                return
            # Nodes are looked for without the driver: /dev/nvidia-uvm may come only with the first CUDA program.
            is_requested = self._requests.wait(min(left_s, self._periods.unsettled_s))
            if is_requested or device_nodes(self._dev) != inventory.device_nodes:
                return

    def _pause_s(self, inventory: Inventory | None) -> float:
        if inventory is None:
            return self._periods.retries.next_s()
        if unsettled(inventory):
            return self._periods.unsettled_s
        # Links may come up without an event, as when the fabric manager starts after the agent.
        if any(wiring.inactive for wiring in inventory.wiring.values()):
            return self._periods.links_down_s
        return float("inf")

    def _post_losses(self, inventory: Inventory) -> None:
        """Post the losses that the driver as a whole does not explain."""
        readable = {gpu.uuid for gpu in inventory.gpus}
        driver_was_away = self._events.problem is not None
        for loss in self._suspects.take():
            is_explained = driver_was_away and loss.uuid in readable
            if not is_explained and not self._stopping.is_set():
                self._post(loss)

    def _post_inventory(self, inventory: Inventory) -> None:
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
    """Whether the driver may soon report more."""
    if not inventory.gpus or inventory.unreadable:
        return True
    # GPUs on the PCI bus may become visible to the driver, and MIG mode may be switched off.
    if inventory.absent or any(gpu.mig for gpu in inventory.gpus):
        return True
    for wiring in inventory.wiring.values():
        is_fabric_coming = wiring.fabric is not None and not wiring.fabric.ready
        if wiring.problems or is_fabric_coming:
            return True
    return False


def lacks_nodes(inventory: Inventory) -> bool:
    """Whether a device node is missing that containers need."""
    needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in inventory.gpus)}
    return not needed <= inventory.device_nodes
