"""The state of a simulated driver and what can go wrong with it, without NVML's calling convention."""

import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from gpuagent.simulation.boxes import Box, BoxGpu
from gpuagent.simulation.devices.device_memory import CgroupSource, DeviceMemory
from gpuagent.simulation.memory_accounting import AddressPool, BackendName

GpuRef = int | str
"""Which GPU: its index, or its UUID."""

_HANDLES = 0x51_0000_0000
_STEP = 0x100
_SETS = 0x52_0000_0000
_RESET = 1
_REBOOT = 2
_ACTIONS = {
    **dict.fromkeys((48, 61, 62, 64, 74, 95, 119, 120, 140), _RESET),
    79: _REBOOT,
}
"""The recovery action by XID; any other XID has none."""
RECOVERY_SINCE = 570
"""First version of the driver that asks for a recovery action."""
KINDS = ("compute", "graphics", "mps")
"""Kinds of processes, each with a list of its own in NVML."""

ODD = ("uuid", "model", "minor", "pci_bus_id", "memory_mib", "reserved_mib")
"""Values that a driver may report wrongly, by their names in box files."""


class FaultError(ValueError):
    """A fault cannot be injected: unknown GPU, function, error name or kind of fault."""


@dataclass(frozen=True, slots=True)
class SimulatedProcess:
    """A process that uses a GPU.

    Attributes:
        pid: as the agent's PID namespace has it.
        kind: ``compute``, ``graphics`` or ``mps``, a client of an MPS server.
        memory_bytes: None where the driver does not report it, as in MIG mode without permission.
        sm: percent of its time that the GPU works for it; None: no sample of it, as when it was idle.
    """

    pid: int
    kind: str
    memory_bytes: int | None
    sm: int | None


@dataclass(slots=True)
class SimulatedGpu:
    """A GPU of the box and its present state."""

    index: int
    spec: BoxGpu
    mig: bool | None
    lost: bool = False
    silent: bool = False
    links_down: set[int] = field(default_factory=set)
    fabric_ready: bool = True
    action: int = 0
    remap_failed: bool = False
    remap_pending: bool = False
    memory_errors: int = 0
    slowdown: int = 0
    busy: int = 0
    persistent: bool = True
    processes: dict[tuple[int, str], SimulatedProcess] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        """Memory in use, without the part that driver and firmware reserve."""
        by_pid: dict[int, int] = {}
        for process in self.processes.values():
            # A process may be in several lists, with the same memory.
            used = process.memory_bytes or 0
            by_pid[process.pid] = max(by_pid.get(process.pid, 0), used)
        return sum(by_pid.values())

    @property
    def address(self) -> int:
        """Its NVML handle: a pointer that no code follows."""
        return _HANDLES + self.index * _STEP

    @property
    def event_kinds(self) -> int:
        if not self.spec.xid_events:
            return 0
        return int(pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError)


@dataclass(slots=True)
class EventSet:
    """The event kinds that a client registered for, by GPU index, and the pending events: (handle, kind, data)."""

    registered: dict[int, int] = field(default_factory=dict)
    queue: deque[tuple[int, int, int]] = field(default_factory=deque)


def error_code(error: str | int) -> int:
    """``GPU_IS_LOST``, ``NVML_ERROR_GPU_IS_LOST`` or 15 as a number. Raises FaultError."""
    if isinstance(error, int):
        return error
    short_name = error.removeprefix("NVML_ERROR_")
    code = getattr(pynvml, f"NVML_ERROR_{short_name}", None)
    if code is None:
        raise FaultError(f"NVML has no error {error!r}; say for example GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN")
    return int(code)


def base_name(function: str) -> str:
    """The function without its version: nvmlDeviceGetMemoryInfo_v2 and nvmlDeviceGetMemoryInfo are one."""
    if function.startswith("nvmlInit"):
        return "nvmlInit"
    return re.sub(r"_v\d+$", "", function)


class DriverState:
    """What the simulated functions of NVML answer from; all methods but `enter` are for calls that hold `changed`."""

    def __init__(self, box: Box, functions: frozenset[str], cgroups: CgroupSource) -> None:
        self.box = box
        self.cgroups = cgroups
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.joined = threading.Condition(lock)
        self.gpus: list[SimulatedGpu] = []
        for index, spec in enumerate(box.gpus):
            self.gpus.append(SimulatedGpu(index, spec, spec.mig))
        self.sets: dict[int, EventSet] = {}
        self.sessions = 0
        self.absent: int | None = None
        self.waiters = 0
        major, _, _ = box.driver_version.partition(".")
        self.asks_for_recovery = int(major) >= RECOVERY_SINCE
        self.functions = functions
        self.device_memory: DeviceMemory | None = None
        """What the processes of cgroups have allocated; None: the driver is too old to limit that."""
        if box.has_memory_limits:
            self.load_accounting(box.memory_limits, AddressPool())
        self._new_sets = iter(range(_SETS, _SETS + (1 << 24)))
        self.hanging: set[tuple[str, int | None]] = set()
        """Functions that hang, each on one GPU or (None) on any."""
        self.failures: dict[tuple[str, int | None], int] = {}

    def at(self, address: int | None) -> SimulatedGpu | None:
        """The GPU with that handle; more than one address is a handle of each GPU."""
        if not address:
            return None
        first = address - address % _STEP
        for gpu in self.gpus:
            if gpu.address == first:
                return gpu
        return None

    def find(self, gpu: GpuRef) -> SimulatedGpu:
        """The GPU with that index or UUID. Raises FaultError."""
        if not isinstance(gpu, bool):  # for Python, true and false are numbers
            for simulated in self.gpus:
                if gpu in (simulated.index, simulated.spec.uuid):
                    return simulated
        last = len(self.gpus) - 1
        raise FaultError(f"there is no GPU {gpu!r} in box {self.box.name} (0 to {last}, or a UUID)")

    def load_accounting(self, backend: BackendName, addresses: AddressPool) -> None:
        """Start to account for memory: all of it is free, and no limit is set."""
        memory = DeviceMemory(self.box, backend, self.cgroups, addresses)
        self.device_memory = memory
        if self.sessions:
            memory.open_nvml()
        for gpu in self.gpus:
            uuid = self.own_uuid(gpu)
            if uuid in memory.gpus:
                memory.accounting.set_mig(uuid, bool(gpu.mig))
                memory.accounting.set_persistence(uuid, gpu.persistent)

    def own_uuid(self, gpu: SimulatedGpu) -> str:
        """The UUID in the box; the driver may answer with another."""
        return self.box.gpus[gpu.index].uuid

    def used_bytes(self, gpu: SimulatedGpu) -> int:
        """Memory that processes use, whether or not it is accounted for by cgroup."""
        accounted = 0
        if self.device_memory:
            accounted = self.device_memory.used(self.own_uuid(gpu))
        return gpu.used_bytes + accounted

    def open_session(self) -> None:
        """NVML is initialized (it counts): all GPUs run until the last session is closed."""
        self.sessions += 1
        if self.device_memory:
            self.device_memory.open_nvml()

    def close_session(self) -> None:
        self.sessions -= 1
        if self.device_memory and not self.sessions:
            self.device_memory.close_nvml()

    def enter(self, function: str, gpu: SimulatedGpu | None) -> int:
        """Apply faults to a call before it starts: block while it hangs; return NVML's code if it fails, else 0."""
        base = base_name(function)
        # A fault is about one version of a function or about all, on one GPU or on any.
        keys: set[tuple[str, int | None]] = {(function, None), (base, None)}
        if gpu:
            keys |= {(function, gpu.index), (base, gpu.index)}
        with self.changed:
            # As a call in the driver: nothing but the end of the fault ends it.
            self.changed.wait_for(lambda: not keys & self.hanging)
            for key in keys & self.failures.keys():
                return self.failures[key]
            works_without_session = base == "nvmlInit" or function == "nvmlErrorString"
            if not self.sessions and not works_without_session:
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            if gpu and gpu.lost:
                return int(pynvml.NVML_ERROR_GPU_IS_LOST)
            return 0

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wrap a client's idle wait for events: `waiters` counts the waits, `joined` signals a new one."""
        self.waiters += 1
        self.joined.notify_all()
        try:
            yield
        finally:
            self.waiters -= 1

    def new_set(self) -> int:
        address = next(self._new_sets)
        self.sets[address] = EventSet()
        return address


class SimulatedDriver(DriverState):
    """The driver of a box. Faults may come from any thread; each takes effect at once, on waiting calls too."""

    def xid(self, gpu: GpuRef | None, code: int, any_waiter: bool = False) -> int:
        """Report XID `code` on `gpu` (None: on no GPU in particular). Returns how many event sets received it.

        As with the real driver, an event without a registered client is lost, and the driver then asks for the recovery
        action of that XID. `any_waiter`: one event set gets it, of another GPU if there is one, and with another
        handle of the GPU than a lookup returns.
        """
        with self.changed:
            if gpu is not None and code in _ACTIONS:
                self.find(gpu).action = _ACTIONS[code]
            return self._emit(gpu, int(pynvml.nvmlEventTypeXidCriticalError), code, any_waiter=any_waiter)

    def double_bit_ecc(self, gpu: GpuRef) -> int:
        """Report a double-bit ECC error on `gpu`. Returns how many event sets received it."""
        with self.changed:
            simulated = self.find(gpu)
            simulated.action = _ACTIONS[48]
            simulated.memory_errors += 1
            return self._emit(gpu, int(pynvml.nvmlEventTypeDoubleBitEccError), 0)

    def lose(self, gpu: GpuRef, silent: bool = False) -> None:
        """Every call on `gpu` returns GPU_IS_LOST; unless `silent`, so does every wait of a set that it is in."""
        with self._changing():
            simulated = self.find(gpu)
            simulated.lost = True
            simulated.silent = silent

    def restore(self, gpu: GpuRef) -> None:
        """Undo `lose`."""
        with self._changing():
            self.find(gpu).lost = False

    def action(self, gpu: GpuRef, value: int) -> None:
        """Ask for a recovery action; 0 for none."""
        with self._changing():
            self.find(gpu).action = value

    def remap(self, gpu: GpuRef, pending: bool = False, failed: bool = False) -> None:
        """Set whether rows of memory wait for a remap at the next reset, and whether a remap has failed."""
        with self._changing():
            simulated = self.find(gpu)
            simulated.remap_pending = pending
            simulated.remap_failed = failed

    def throttle(self, gpu: GpuRef, thermal: bool = False, power: bool = False) -> None:
        """Let the hardware slow the GPU down."""
        reasons = 0
        if thermal:
            reasons |= int(pynvml.nvmlClocksEventReasonHwThermalSlowdown)
        if power:
            reasons |= int(pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown)
        with self._changing():
            self.find(gpu).slowdown = reasons

    def process(
        self,
        gpu: GpuRef,
        pid: int,
        mib: int | None = None,
        kind: str = "compute",
        sm: int | None = None,
    ) -> None:
        """Let a process use `gpu`, or change its use. `mib` None: the driver does not report its memory."""
        if kind not in KINDS:
            raise FaultError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
        with self._changing():
            memory_bytes = None if mib is None else mib << 20
            self.find(gpu).processes[pid, kind] = SimulatedProcess(pid, kind, memory_bytes, sm)

    def end(self, gpu: GpuRef, pid: int) -> None:
        """End the use of `gpu` by a process."""
        with self._changing():
            for kind in KINDS:
                self.find(gpu).processes.pop((pid, kind), None)

    def busy(self, gpu: GpuRef, percent: int) -> None:
        """Let `gpu` be busy for `percent` of its time."""
        with self._changing():
            self.find(gpu).busy = percent

    def hang(self, function: str, gpu: GpuRef | None = None) -> None:
        """Calls of `function` (on `gpu`; None: on any) do not return until `unhang`."""
        with self._changing():
            self.hanging.add(self._key(function, gpu))

    def unhang(self, function: str | None = None, gpu: GpuRef | None = None) -> None:
        """Let calls of `function` return; of every function if None."""
        with self._changing():
            if function is None:
                self.hanging.clear()
            else:
                self.hanging.discard(self._key(function, gpu))

    def fail(self, function: str, error: str | int | None, gpu: GpuRef | None = None) -> None:
        """Calls of `function` (on `gpu`; None: on any) return `error`; they work again if that is None."""
        with self._changing():
            key = self._key(function, gpu)
            if error is None:
                self.failures.pop(key, None)
            else:
                self.failures[key] = error_code(error)

    def driver(self, present: bool, error: str | int = "DRIVER_NOT_LOADED") -> None:
        """Take the driver away (initialization then returns `error`) or bring it back; sessions do not survive it."""
        with self._changing():
            self.absent = None if present else error_code(error)
            if not present:
                self.sessions = 0
                self.sets.clear()

    def mig(self, gpu: GpuRef, enabled: bool) -> None:
        """Switch MIG mode, where the GPU can do MIG."""
        with self._changing():
            simulated = self.find(gpu)
            if simulated.mig is None:
                raise FaultError(f"GPU {simulated.index} ({simulated.spec.model}) cannot do MIG")
            simulated.mig = enabled

    def odd(self, gpu: GpuRef, what: str, value: str | int | None) -> None:
        """Let the driver answer with `value` for one of `ODD`; None: with the box's value again."""
        with self._changing():
            simulated = self.find(gpu)
            if what not in ODD:
                raise FaultError(f"what: {what!r} is not one of {', '.join(ODD)}")
            spec = self.box.gpus[simulated.index]
            own = getattr(spec, what)
            if value is None:
                value = own
            kind = type(own)
            if type(value) is not kind:
                raise FaultError(f"value: {value!r} is no {what}: that is a {kind.__name__}")
            changes: dict[str, Any] = {what: value}
            simulated.spec = replace(simulated.spec, **changes)

    def nvlink(self, gpu: GpuRef, link: int, up: bool) -> None:
        """Take `gpu`'s end of an NVLink down, or up again. The other end reports the same as before."""
        with self._changing():
            simulated = self.find(gpu)
            if not 0 <= link < len(simulated.spec.links):
                raise FaultError(f"GPU {simulated.index} ({simulated.spec.model}) has no NVLink {link}")
            if up:
                simulated.links_down.discard(link)
            else:
                simulated.links_down.add(link)

    def fabric(self, gpu: GpuRef, ready: bool) -> None:
        """Let `gpu` wait for its NVLink fabric, or be part of it."""
        with self._changing():
            simulated = self.find(gpu)
            if simulated.spec.fabric is None:
                raise FaultError(f"GPU {simulated.index} ({simulated.spec.model}) has no NVLink fabric")
            simulated.fabric_ready = ready

    def _emit(self, gpu: GpuRef | None, kind: int, data: int, *, any_waiter: bool = False) -> int:
        with self._changing():
            simulated = None if gpu is None else self.find(gpu)
            waiting = [events for events in self.sets.values() if any(events.registered.values())]
            handle = 0
            receivers = waiting
            if simulated and any_waiter:
                handle = simulated.address + 1
                # The sets of other GPUs come first.
                waiting.sort(key=lambda events: simulated.index in events.registered)
                receivers = waiting[:1]
            elif simulated:
                handle = simulated.address
                receivers = [events for events in waiting if events.registered.get(simulated.index, 0) & kind]
            for event_set in receivers:
                event_set.queue.append((handle, kind, data))
            return len(receivers)

    def _key(self, function: str, gpu: GpuRef | None) -> tuple[str, int | None]:
        base_names = {base_name(name) for name in self.functions}
        if function not in self.functions and function not in base_names:
            raise FaultError(f"the simulated NVML has no function {function!r}")
        index = None if gpu is None else self.find(gpu).index
        return function, index

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.changed:
            yield
            self.changed.notify_all()
