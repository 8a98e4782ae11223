"""NVML's C functions over a simulated driver: they take ctypes arguments as the binding passes them, return codes."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pynvml

from gpuagent.nvml import binding
from gpuagent.simulation.driver import SimulatedDriver, SimulatedGpu

OK, TIMEOUT = int(pynvml.NVML_SUCCESS), int(pynvml.NVML_ERROR_TIMEOUT)
INVALID, NOT_SUPPORTED = int(pynvml.NVML_ERROR_INVALID_ARGUMENT), int(pynvml.NVML_ERROR_NOT_SUPPORTED)

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
    driver.sessions += 1
    return OK


@of(SYSTEM, "nvmlShutdown")
def _shutdown(driver: SimulatedDriver) -> int:
    driver.sessions -= 1
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
    return driver.gpus[index.value] if index.value < len(driver.gpus) else None


@of(LOOKUP, "nvmlDeviceGetHandleByUUID")
def _by_uuid(driver: SimulatedDriver, uuid: Any) -> SimulatedGpu | None:
    return next((gpu for gpu in driver.gpus if gpu.spec.uuid.encode() == uuid.value), None)


@of(LOOKUP, "nvmlDeviceGetHandleByPciBusId_v2")
def _by_bus(driver: SimulatedDriver, bus_id: Any) -> SimulatedGpu | None:
    asked = bus_id.value.decode().upper().rjust(16, "0")  # the domain may be written with four digits
    return next((gpu for gpu in driver.gpus if gpu.spec.pci_bus_id == asked), None)


# -- events --------------------------------------------------------------------------------------------------------


@of(SYSTEM, "nvmlEventSetCreate")
def _event_set_create(driver: SimulatedDriver, out: Any) -> int:
    return point(out, driver.new_set())


@of(SYSTEM, "nvmlEventSetFree")
def _event_set_free(driver: SimulatedDriver, events: Any) -> int:
    driver.changed.notify_all()
    return OK if driver.sets.pop(address(events) or 0, None) else INVALID


@of(DEVICE, "nvmlDeviceGetSupportedEventTypes")
def _supported_events(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.event_kinds) if gpu.event_kinds else NOT_SUPPORTED


@of(DEVICE, "nvmlDeviceRegisterEvents")
def _register(driver: SimulatedDriver, gpu: SimulatedGpu, kinds: Any, events: Any) -> int:
    found = driver.sets.get(address(events) or 0)
    if found is None:
        return INVALID
    if kinds.value & ~gpu.event_kinds:
        return NOT_SUPPORTED
    found.registered[gpu.index] = found.registered.get(gpu.index, 0) | kinds.value
    return OK


@of(SYSTEM, "nvmlEventSetWait")
@of(SYSTEM, "nvmlEventSetWait_v2")
def _wait(driver: SimulatedDriver, events: Any, out: Any, timeout_ms: Any) -> int:
    until = time.monotonic() + timeout_ms.value / 1000
    with driver.idle():
        while True:
            code = _wait_result(driver, events, out)
            left = until - time.monotonic()
            if code != TIMEOUT or left <= 0:
                return code
            driver.changed.wait(left)


def _wait_result(driver: SimulatedDriver, events: Any, out: Any) -> int:
    """NVML's code for what a wait finds now: OK with `out` filled, or TIMEOUT for nothing."""
    found = driver.sets.get(address(events) or 0)
    if found is None:
        return int(pynvml.NVML_ERROR_UNINITIALIZED) if driver.absent is not None else INVALID
    if found.queue:
        handle, kind, data = found.queue.popleft()
        got = out._obj  # noqa: SLF001
        got.device = ctypes.cast(ctypes.c_void_p(handle), pynvml.c_nvmlDevice_t)
        got.eventType, got.eventData = kind, data
        got.gpuInstanceId = got.computeInstanceId = 0xFFFFFFFF
        return OK
    if any(driver.gpus[index].lost and not driver.gpus[index].silent for index in found.registered):
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
    info, bus_id = out._obj, gpu.spec.pci_bus_id  # noqa: SLF001
    info.busId, info.busIdLegacy = bus_id, bus_id[4:]
    domain, bus, device = driver.box.gpus[gpu.index].pci_bus_id.split(".")[0].split(":")  # also where `odd` is in force
    info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(device, 16)
    return OK


@of(DEVICE, "nvmlDeviceGetBrand")
def _brand(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    is_tesla = gpu.spec.compute_capability < (8, 0)
    return put(out, pynvml.NVML_BRAND_TESLA if is_tesla else pynvml.NVML_BRAND_NVIDIA)


@of(DEVICE, "nvmlDeviceGetCudaComputeCapability")
def _compute_capability(_driver: SimulatedDriver, gpu: SimulatedGpu, major: Any, minor: Any) -> int:
    return put(major, gpu.spec.compute_capability[0]) or put(minor, gpu.spec.compute_capability[1])


@of(DEVICE, "nvmlDeviceGetMigMode")
def _mig_mode(_driver: SimulatedDriver, gpu: SimulatedGpu, current: Any, pending: Any) -> int:
    return NOT_SUPPORTED if gpu.mig is None else put(current, gpu.mig) or put(pending, gpu.mig)


@of(DEVICE, "nvmlDeviceGetNumaNodeId")
def _numa_node(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return NOT_SUPPORTED if gpu.spec.numa_node is None else put(out, gpu.spec.numa_node)


@of(DEVICE, "nvmlDeviceGetCurrentClocksEventReasons")
@of(DEVICE, "nvmlDeviceGetCurrentClocksThrottleReasons")
def _clocks_event_reasons(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.slowdown)


@of(DEVICE, "nvmlDeviceGetFieldValues")
def _field_values(driver: SimulatedDriver, gpu: SimulatedGpu, count: Any, out: Any) -> int:
    for field in out._obj[: count.value]:  # noqa: SLF001
        field.nvmlReturn, value = _field(driver, gpu, field.fieldId)
        field.valueType, field.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value
    return OK


def _field(driver: SimulatedDriver, gpu: SimulatedGpu, field: int) -> tuple[int, int]:
    """Code and value. Rows are remapped from compute capability 8.0 on, pages retired before."""
    rows, links = gpu.spec.compute_capability >= (8, 0), len(gpu.spec.links)
    known = {
        binding.RECOVERY_ACTION: (driver.asks_for_recovery, gpu.action),
        binding.REMAP_FAILED: (rows, gpu.remap_failed),
        binding.REMAP_PENDING: (rows, gpu.remap_pending),
        binding.RETIREMENT_PENDING: (not rows, gpu.remap_pending),
        binding.MEMORY_ERRORS: (True, gpu.memory_errors),
        binding.LINK_COUNT: (links + driver.box.disabled_links > 0, links),
    }
    supported, value = known.get(field, (False, 0))
    if supported:
        return OK, value
    return (NOT_SUPPORTED if field in known and field != binding.RECOVERY_ACTION else INVALID), 0


def _number(name: str, value: Callable[[SimulatedGpu], int]) -> None:
    """A function that gives one number."""
    DEVICE[name] = lambda _driver, gpu, out: put(out, value(gpu))


_number("nvmlDeviceGetIndex", lambda gpu: gpu.index)
_number("nvmlDeviceGetMinorNumber", lambda gpu: gpu.spec.minor)
_number("nvmlDeviceGetComputeMode", lambda _gpu: pynvml.NVML_COMPUTEMODE_DEFAULT)
_number("nvmlDeviceGetPersistenceMode", lambda _gpu: pynvml.NVML_FEATURE_ENABLED)
