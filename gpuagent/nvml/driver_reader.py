"""Reads the driver once: its version, its GPUs, and whether it fails as a whole."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.host.nvidia_driver import control_device, gpus_on_bus, module_version
from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import VERSION_MISMATCH, CallError, DriverError, shared_error
from gpuagent.nvml.gpu_reader import DEV, PROC, SYSFS, count_gpus, device_nodes
from gpuagent.nvml.inventory import GpuReading, Readings, inventory_of, shared_failure
from gpuagent.nvml.inventory_events import InventoryEvents
from gpuagent.nvml.stall import StallGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Where the node's files are.

    Attributes:
        sysfs: where sysfs is mounted.
        dev: where device nodes are.
        proc: where procfs is mounted.
    """

    sysfs: Path = SYSFS
    dev: Path = DEV
    proc: Path = PROC


class DriverReader:
    """Reads the inventory. For one thread; others may read `pending` and `restart_helps`.

    Args:
        readings: of each GPU.
        events: what was posted so far.
        guard: knows which calls hang.
        paths: of the node's files.
        patience_s: a GPU whose reading takes longer counts as unreadable for the time being.
        clock: monotonic seconds.

    Attributes:
        restart_helps: why a restart of the agent's container would bring the GPUs back; None if it would not, or need
            not.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        readings: Readings,
        events: InventoryEvents,
        guard: StallGuard,
        *,
        paths: HostPaths,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restart_helps: str | None = None
        self._nvml = Nvml(clock)
        self._readings = readings
        self._events = events
        self._guard = guard
        self._paths = paths
        self._patience_s = patience_s

    @property
    def pending(self) -> Pending | None:
        """The call in progress; None between two calls."""
        return self._nvml.pending

    def read(self) -> tuple[Inventory, int]:
        """Return the inventory, and the number of GPUs that the driver counts. Raises DriverError."""
        try:
            inventory, count = self._read()
        except DriverError as err:
            self.restart_helps = self.restart_helps or self._driver_replaced(err)
            raise
        self.restart_helps = None
        return inventory, count

    def _read(self) -> tuple[Inventory, int]:
        with self._nvml.session():
            version = self._nvml.driver_version()
            count = count_gpus(self._nvml)
            readings = self._readings.look(count)
        self._check_hanging(readings)
        self._check_shared(readings)
        inventory = inventory_of(
            readings,
            hung=self._guard.hung(),
            former=self._events.inventory,
            patience_s=self._patience_s,
            version=version,
            nodes=device_nodes(self._paths.dev),
            on_bus=gpus_on_bus(self._paths.sysfs),
        )
        return inventory, count

    def _check_hanging(self, readings: Sequence[GpuReading]) -> None:
        """Raise DriverError if no GPU answers that did before: otherwise all would stay as they were read then."""
        count = len(readings)
        hanging = [reading.hangs_in for reading in readings if reading.hangs_in]
        # A single GPU may as well hang by its own fault.
        if not self._events.inventory or count < 2 or len(hanging) < count:
            return
        what = f"{hanging[0]} has not returned for {self._patience_s:g} s"
        raise DriverError(f"none of the {count} GPUs answers: {what}; see NVRM lines in `dmesg` on the node")

    def _check_shared(self, readings: Sequence[GpuReading]) -> None:
        """Raise DriverError if every GPU fails in the same way, because of the driver or of the agent's container."""
        failure = shared_failure(readings)
        if failure is None:
            return
        control = control_device(self._paths.dev)
        if len(readings) == 1 and not control.forbidden:
            return  # one GPU alone: it may as well be the GPU's own fault
        if control.forbidden and self._events.inventory:
            # The container could use the devices before, so a new one can as well.
            self.restart_helps = f"{control.path} cannot be opened any more ({control.error})"
        raise shared_error(failure, len(readings), control)

    def _driver_replaced(self, err: DriverError) -> str | None:
        """Why a restart helps: the driver was replaced, and a new container gets the library that fits the new one."""
        cause = err.__cause__
        former = self._events.inventory
        if former is None or not isinstance(cause, CallError) or cause.code != VERSION_MISMATCH:
            return None
        loaded = module_version(self._paths.proc)
        if loaded in {"", former.driver_version}:
            return None
        return f"the NVIDIA driver was replaced: {former.driver_version} before, {loaded} now"
