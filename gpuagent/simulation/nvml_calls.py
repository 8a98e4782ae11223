"""NVML's C functions over a simulated driver: they take ctypes arguments as the binding passes them, return codes."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pynvml

from gpuagent.nvml.binding import health_calls
from gpuagent.nvml.binding.wiring_calls import LINK_COUNT
from gpuagent.simulation.driver import SimulatedDriver, SimulatedGpu

OK = int(pynvml.NVML_SUCCESS)
TIMEOUT = int(pynvml.NVML_ERROR_TIMEOUT)
INVALID = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
NOT_SUPPORTED = int(pynvml.NVML_ERROR_NOT_SUPPORTED)

NO_INSTANCE = 0xFFFFFFFF
"""In place of a MIG instance."""

SYSTEM: dict[str, Callable[..., int]] = {}
"""Functions of the whole driver: ``(driver, *arguments) -> code``."""
DEVICE: dict[str, Callable[..., int]] = {}
"""Functions of a GPU, whose first C argument is its handle: ``(driver, gpu, *arguments) -> code``."""
LOOKUP: dict[str, Callable[[SimulatedDriver, Any], SimulatedGpu | None]] = {}
"""Functions that give the handle of the GPU that their first C argument names."""

Function = Callable[..., Any]


def of(table: dict[str, Any], name: str) -> Callable[[Function], Function]:
    """Enter a function in `table`."""

    def add(function: Function) -> Function:
        table[name] = function
        return function

    return add


def address(pointer: Any) -> int | None:
    """Where a handle points, as a number."""
    return ctypes.cast(pointer, ctypes.c_void_p).value


def point(reference: Any, value: int) -> int:
    """Let the pointer behind a `byref` point at `value`."""
    ctypes.c_void_p.from_buffer(reference._obj).value = value  # noqa: SLF001 (how ctypes shows a byref's object)
    return OK


def put(reference: Any, value: float) -> int:
    """Set the number behind a `byref`."""
    reference._obj.value = value  # noqa: SLF001
    return OK


def text(buffer: Any, size: Any, value: str) -> int:
    """Write a C string into a buffer of `size` bytes; a byte that is not UTF-8 is a surrogate, as in file names."""
    if len(value) >= size.value:
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = value.encode(errors="surrogateescape")
    return OK


# -- the driver --------------------------------------------------------------------------------------------------


@of(SYSTEM, "nvmlInit_v2")
@of(SYSTEM, "nvmlInitWithFlags")
def _init(driver: SimulatedDriver, _flags: int = 0) -> int:
    if driver.absent is not None:
        return driver.absent
    driver.open_session()
    return OK


@of(SYSTEM, "nvmlShutdown")
def _shutdown(driver: SimulatedDriver) -> int:
    driver.close_session()
    return OK


@of(SYSTEM, "nvmlSystemGetDriverVersion")
@of(SYSTEM, "nvmlSystemGetNVMLVersion")
def _driver_version(driver: SimulatedDriver, buffer: Any, size: Any) -> int:
    return text(buffer, size, driver.box.driver_version)


@of(SYSTEM, "nvmlSystemGetCudaDriverVersion")
@of(SYSTEM, "nvmlSystemGetCudaDriverVersion_v2")
def _cuda_version(_driver: SimulatedDriver, out: Any) -> int:
    return put(out, 13000)


@of(SYSTEM, "nvmlDeviceGetCount_v2")
def _count(driver: SimulatedDriver, out: Any) -> int:
    return put(out, len(driver.gpus))


@of(LOOKUP, "nvmlDeviceGetHandleByIndex_v2")
def _by_index(driver: SimulatedDriver, index: Any) -> SimulatedGpu | None:
    number = int(index.value)
    return driver.gpus[number] if number < len(driver.gpus) else None


@of(LOOKUP, "nvmlDeviceGetHandleByUUID")
def _by_uuid(driver: SimulatedDriver, uuid: Any) -> SimulatedGpu | None:
    for gpu in driver.gpus:
        if gpu.spec.uuid.encode() == uuid.value:
            return gpu
    return None


@of(LOOKUP, "nvmlDeviceGetHandleByPciBusId_v2")
def _by_bus(driver: SimulatedDriver, bus_id: Any) -> SimulatedGpu | None:
    text = bus_id.value.decode().upper()
    # The domain may be written with four digits.
    wanted = text.rjust(16, "0")
    for gpu in driver.gpus:
        if gpu.spec.pci_bus_id == wanted:
            return gpu
    return None


# -- events --------------------------------------------------------------------------------------------------------


@of(SYSTEM, "nvmlEventSetCreate")
def _event_set_create(driver: SimulatedDriver, out: Any) -> int:
    return point(out, driver.new_set())


@of(SYSTEM, "nvmlEventSetFree")
def _event_set_free(driver: SimulatedDriver, events: Any) -> int:
    # A wait for this set fails now.
    driver.changed.notify_all()
    return OK if driver.sets.pop(address(events) or 0, None) else INVALID


@of(DEVICE, "nvmlDeviceGetSupportedEventTypes")
def _supported_events(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.event_kinds) if gpu.event_kinds else NOT_SUPPORTED


@of(DEVICE, "nvmlDeviceRegisterEvents")
def _register(driver: SimulatedDriver, gpu: SimulatedGpu, kinds: Any, events: Any) -> int:
    event_set = driver.sets.get(address(events) or 0)
    if event_set is None:
        return INVALID
    if kinds.value & ~gpu.event_kinds:
        return NOT_SUPPORTED
    before = event_set.registered.get(gpu.index, 0)
    event_set.registered[gpu.index] = before | kinds.value
    return OK


@of(SYSTEM, "nvmlEventSetWait")
@of(SYSTEM, "nvmlEventSetWait_v2")
def _wait(driver: SimulatedDriver, events: Any, out: Any, timeout_ms: Any) -> int:
    until = time.monotonic() + timeout_ms.value / 1000
    with driver.idle():
        while True:
            code = _wait_result(driver, events, out)
            remaining_s = until - time.monotonic()
            if code != TIMEOUT or remaining_s <= 0:
                return code
            # The lock is free meanwhile, so that a fault can come.
            driver.changed.wait(remaining_s)


def _wait_result(driver: SimulatedDriver, events: Any, out: Any) -> int:
    """NVML's code for what a wait finds now: OK with `out` filled, or TIMEOUT for nothing."""
    event_set = driver.sets.get(address(events) or 0)
    if event_set is None:
        return int(pynvml.NVML_ERROR_UNINITIALIZED) if driver.absent is not None else INVALID
    if event_set.queue:
        handle, kind, data = event_set.queue.popleft()
        event = out._obj  # noqa: SLF001
        event.device = ctypes.cast(ctypes.c_void_p(handle), pynvml.c_nvmlDevice_t)
        event.eventType = kind
        event.eventData = data
        event.gpuInstanceId = NO_INSTANCE
        event.computeInstanceId = NO_INSTANCE
        return OK
    for index in event_set.registered:
        gpu = driver.gpus[index]
        if gpu.lost and not gpu.silent:
            return int(pynvml.NVML_ERROR_GPU_IS_LOST)
    return TIMEOUT


# -- one GPU -------------------------------------------------------------------------------------------------------


@of(DEVICE, "nvmlDeviceGetName")
def _name(_driver: SimulatedDriver, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
    return text(buffer, size, gpu.spec.model)


@of(DEVICE, "nvmlDeviceGetUUID")
def _uuid(_driver: SimulatedDriver, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
    return text(buffer, size, gpu.spec.uuid)


@of(DEVICE, "nvmlDeviceGetPciInfo_v3")
def _pci_info(driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    info = out._obj  # noqa: SLF001
    info.busId = gpu.spec.pci_bus_id
    info.busIdLegacy = gpu.spec.pci_bus_id[4:]
    # Not that of `odd`, which may be no address at all.
    own = driver.box.gpus[gpu.index].pci_bus_id
    address_only, _, _ = own.partition(".")
    domain, bus, device = address_only.split(":")
    info.domain = int(domain, 16)
    info.bus = int(bus, 16)
    info.device = int(device, 16)
    return OK


@of(DEVICE, "nvmlDeviceGetBrand")
def _brand(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    is_tesla = gpu.spec.compute_capability < (8, 0)
    return put(out, pynvml.NVML_BRAND_TESLA if is_tesla else pynvml.NVML_BRAND_NVIDIA)


@of(DEVICE, "nvmlDeviceGetCudaComputeCapability")
def _compute_capability(_driver: SimulatedDriver, gpu: SimulatedGpu, major: Any, minor: Any) -> int:
    major_number, minor_number = gpu.spec.compute_capability
    put(major, major_number)
    return put(minor, minor_number)


@of(DEVICE, "nvmlDeviceGetMigMode")
def _mig_mode(_driver: SimulatedDriver, gpu: SimulatedGpu, current: Any, pending: Any) -> int:
    if gpu.mig is None:
        return NOT_SUPPORTED
    put(current, gpu.mig)
    return put(pending, gpu.mig)


@of(DEVICE, "nvmlDeviceGetNumaNodeId")
def _numa_node(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    if gpu.spec.numa_node is None:
        return NOT_SUPPORTED
    return put(out, gpu.spec.numa_node)


@of(DEVICE, "nvmlDeviceGetCurrentClocksEventReasons")
@of(DEVICE, "nvmlDeviceGetCurrentClocksThrottleReasons")
def _clocks_event_reasons(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.slowdown)


@of(DEVICE, "nvmlDeviceGetFieldValues")
def _field_values(driver: SimulatedDriver, gpu: SimulatedGpu, count: Any, out: Any) -> int:
    for field in out._obj[: count.value]:  # noqa: SLF001
        code, value = _field(driver, gpu, field.fieldId)
        field.nvmlReturn = code
        field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        field.value.ullVal = value
    return OK


def _field(driver: SimulatedDriver, gpu: SimulatedGpu, field: int) -> tuple[int, int]:
    """Code and value. Rows are remapped from compute capability 8.0 on, pages retired before."""
    remaps_rows = gpu.spec.compute_capability >= (8, 0)
    links = len(gpu.spec.links)
    has_links = links + driver.box.disabled_links > 0
    known = {
        health_calls.RECOVERY_ACTION: (driver.asks_for_recovery, gpu.action),
        health_calls.REMAP_FAILED: (remaps_rows, gpu.remap_failed),
        health_calls.REMAP_PENDING: (remaps_rows, gpu.remap_pending),
        health_calls.RETIREMENT_PENDING: (not remaps_rows, gpu.remap_pending),
        health_calls.MEMORY_ERRORS: (True, gpu.memory_errors),
        LINK_COUNT: (has_links, links),
    }
    supported, value = known.get(field, (False, 0))
    if supported:
        return OK, value
    # A driver that is too old does not know the field of the recovery action.
    is_known = field in known and field != health_calls.RECOVERY_ACTION
    code = NOT_SUPPORTED if is_known else INVALID
    return code, 0


def _number(name: str, value: Callable[[SimulatedGpu], int]) -> None:
    """A function that gives one number."""
    DEVICE[name] = lambda _driver, gpu, out: put(out, value(gpu))


_number("nvmlDeviceGetIndex", lambda gpu: gpu.index)
_number("nvmlDeviceGetMinorNumber", lambda gpu: gpu.spec.minor)
_number("nvmlDeviceGetComputeMode", lambda _gpu: pynvml.NVML_COMPUTEMODE_DEFAULT)
_number("nvmlDeviceGetPersistenceMode", lambda gpu: gpu.persistent)
