"""A typed facade over `pynvml`: plain values out, `CallError` for errors, and the call in progress.

NVML's exceptions are unhashable and compare by number, so they end here.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from gpuagent.domain.gpus.health import HealthReading
from gpuagent.domain.gpus.link_reports import End, Fabric, Relation
from gpuagent.nvml import answers, link_values
from gpuagent.nvml.answers import flag, unsigned, whole
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, driver_error

T = TypeVar("T")

XID = int(pynvml.nvmlEventTypeXidCriticalError)
DOUBLE_BIT_ECC = int(pynvml.nvmlEventTypeDoubleBitEccError)
BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
"""NVML's numbers of product lines to the names that NVIDIA's own driver for claims publishes (go-nvlib)."""
ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Codes for a value that the driver or the GPU does not have."""
TIMEOUT = int(pynvml.NVML_ERROR_TIMEOUT)
INVALID_ARGUMENT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
GPU_IS_LOST = int(pynvml.NVML_ERROR_GPU_IS_LOST)
GONE = DRIVER_WIDE | {GPU_IS_LOST}
"""Codes after which no other call about this GPU can succeed."""
MOST_LINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
"""NVLinks are numbered from 0 to below this; a GPU has fewer, or none."""
MOST_GPUS = 256
"""More than any node has; each has threads of its own."""
LINK_COUNT = int(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
RECOVERY_ACTION = int(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
REMAP_FAILED = int(pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
REMAP_PENDING = int(pynvml.NVML_FI_DEV_REMAPPED_PENDING)
RETIREMENT_PENDING = int(pynvml.NVML_FI_DEV_RETIRED_PENDING)
MEMORY_ERRORS = int(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
HOT, POWER_BRAKE = (
    int(pynvml.nvmlClocksEventReasonHwThermalSlowdown),
    int(pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown),
)
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field's value lies, by its value type."""


@dataclass(frozen=True, slots=True)
class Handle:
    """NVML's handle of the GPU at `index`. `address` is the same for the same GPU while NVML stays initialized."""

    index: int
    pointer: Any
    address: int | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that has not returned yet; `since` in monotonic seconds."""

    function: str
    gpu: int | None
    since: float

    def __str__(self) -> str:
        return self.function if self.gpu is None else f"{self.function} on GPU {self.gpu}"


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """The result of the event wait: the GPU's handle (None: no GPU), its address, an event type, the XID in `data`."""

    device: Any
    address: int | None
    kind: int
    data: int


class Nvml:
    """NVML for one thread. Other threads may read `pending`: the call in progress, None between calls.

    Every method raises CallError if NVML refuses, unless its docstring differs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.pending: Pending | None = None
        self.waiting_since: float | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Keep NVML initialized (NVML counts, so sessions may overlap). Raises DriverError if that fails."""
        try:
            self._call("nvmlInit")
        except CallError as err:
            raise driver_error(err) from err
        try:
            yield
        finally:
            with suppress(CallError):  # the driver may be gone by now
                self._call("nvmlShutdown")

    def driver_version(self) -> str:
        """The driver's version, such as ``580.95.05``; empty if the driver does not report it."""
        function = "nvmlSystemGetDriverVersion"
        try:
            return answers.read(function, self._call(function), answers.printable)
        except CallError:
            return ""

    def cuda_version(self) -> str:
        """The newest CUDA that the driver supports, such as ``13.0``; empty if the driver does not report it."""
        function = "nvmlSystemGetCudaDriverVersion"
        try:
            number = answers.read(function, self._call(function), lambda found: whole(found, 1, 999_999))
        except CallError:
            return ""
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        function = "nvmlDeviceGetCount"
        return answers.read(function, self._call(function), lambda count: whole(count, 0, MOST_GPUS))

    def handle(self, index: int) -> Handle:
        function = "nvmlDeviceGetHandleByIndex"
        pointer = self._call(function, index, gpu=index)
        return Handle(index, pointer, answers.read(function, pointer, lambda pointer: unsigned(_address(pointer))))

    def uuid(self, gpu: Handle) -> str:
        return self._read("nvmlDeviceGetUUID", gpu, answers.gpu_uuid)

    def uuid_of(self, event: NvmlEvent) -> str:
        """The UUID of the GPU in an event."""
        function = "nvmlDeviceGetUUID"
        return answers.read(function, self._call(function, event.device), answers.gpu_uuid)

    def name(self, gpu: Handle) -> str:
        return self._read("nvmlDeviceGetName", gpu, answers.printable)

    def minor(self, gpu: Handle) -> int:
        return self._read("nvmlDeviceGetMinorNumber", gpu, lambda minor: whole(minor, 0, answers.MOST_MINOR))

    def pci_bus_id(self, gpu: Handle) -> str:
        return self._read("nvmlDeviceGetPciInfo", gpu, answers.pci_address)

    def memory_bytes(self, gpu: Handle) -> tuple[int, int]:
        """Total and reserved memory. Drivers before 510 count the reserved part as used: 0.

        Raises CallError with one of `ABSENT` for a GPU that shares the memory of the host, such as a GB10.
        """
        function = "nvmlDeviceGetMemoryInfo"
        try:
            return self._read(
                function, gpu, lambda info: answers.memory(info.total, info.reserved), pynvml.nvmlMemory_v2
            )
        except CallError as err:
            if err.code not in ABSENT:
                raise
            return self._read(function, gpu, lambda info: answers.memory(info.total, 0))

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        function = "nvmlDeviceGetCudaComputeCapability"

        def parse(pair: Any) -> tuple[int, int]:  # noqa: ANN401 (untyped binding)
            major, minor = pair
            return whole(major, 0, 99), whole(minor, 0, 99)

        return self._read(function, gpu, parse)

    def brand(self, gpu: Handle) -> str:
        """The product line; empty if NVIDIA has no name for it here."""
        number = self._read("nvmlDeviceGetBrand", gpu, lambda brand: whole(brand, 0, 999))
        return BRANDS.get(number, "")

    def mig_enabled(self, gpu: Handle) -> bool:
        return self._read("nvmlDeviceGetMigMode", gpu, lambda modes: flag(modes[0]))

    def numa_node(self, gpu: Handle) -> int:
        return self._read("nvmlDeviceGetNumaNodeId", gpu, unsigned)

    def link_count(self, gpu: Handle) -> int | None:
        """How many NVLinks the GPU has, numbered from 0; None where the driver does not report it."""
        count = self._fields(gpu, LINK_COUNT)[LINK_COUNT]
        return None if count is None else answers.read("nvmlDeviceGetFieldValues", count, _link_count)

    def link_is_up(self, gpu: Handle, link: int) -> bool:
        return self._read("nvmlDeviceGetNvLinkState", gpu, flag, link)

    def link_version(self, gpu: Handle, link: int) -> str:
        return self._read("nvmlDeviceGetNvLinkVersion", gpu, lambda number: link_values.version(unsigned(number)), link)

    def link_end(self, gpu: Handle, link: int) -> End:
        function = "nvmlDeviceGetNvLinkRemoteDeviceType"
        return self._read(function, gpu, lambda number: link_values.ENDS.get(unsigned(number), End.UNKNOWN), link)

    def link_remote(self, gpu: Handle, link: int) -> tuple[str, int]:
        """Bus id, and PCI device and vendor, of the link's other end; empty and 0 where unknown."""
        return self._read("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link_values.remote, link)

    def relation(self, gpu: Handle, other: Handle) -> Relation | None:
        """The PCIe path between two GPUs; None for a level that this agent does not support."""
        function = "nvmlDeviceGetTopologyCommonAncestor"
        return self._read(function, gpu, lambda level: link_values.RELATIONS.get(unsigned(level)), other.pointer)

    def pcie(self, gpu: Handle) -> tuple[int, int]:
        """Generation and lanes that both GPU and slot support."""
        generation = self._read("nvmlDeviceGetMaxPcieLinkGeneration", gpu, lambda number: whole(number, 0, 99))
        return generation, self._read("nvmlDeviceGetMaxPcieLinkWidth", gpu, lambda number: whole(number, 0, 32))

    def fabric(self, gpu: Handle) -> Fabric | None:
        """The GPU's NVLink fabric; None if it is in none. Drivers before 545 have only the older of the two calls."""
        for function, info in (
            ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v2_t()),
            ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t()),
        ):
            try:
                self._ask(function, gpu, ctypes.byref(info))
            except CallError as err:
                if err.code not in ABSENT:
                    raise
            else:
                return answers.read(function, info, link_values.fabric)
        return None

    def recovery_action(self, gpu: Handle) -> int | None:
        """The recovery action that the driver recommends; None where the driver has none (before r570)."""
        return self._fields(gpu, RECOVERY_ACTION)[RECOVERY_ACTION]

    def condition(self, gpu: Handle) -> HealthReading:
        """All but the recovery action. A value that the GPU lacks counts as healthy."""
        memory = (REMAP_FAILED, REMAP_PENDING, RETIREMENT_PENDING, MEMORY_ERRORS)
        values = self._fields(gpu, *memory)
        failed, pending, retired, errors = (values[field] or 0 for field in memory)
        reasons = self._clocks_event_reasons(gpu)
        return HealthReading(
            remap_failed=bool(failed),
            remap_pending=bool(pending or retired),
            memory_errors=errors,
            hot=bool(reasons & HOT),
            power_brake=bool(reasons & POWER_BRAKE),
            mig=self._mig_if_reported(gpu),
        )

    def _mig_if_reported(self, gpu: Handle) -> bool | None:
        try:
            return self.mig_enabled(gpu)
        except CallError as err:
            if err.code in GONE:
                raise
            return None

    def probe(self, gpu: Handle) -> None:
        """Make a cheap call that the library does not answer from its own cache.

        By NVML's reference the call returns GPU_IS_LOST for a GPU that fell off the bus. A GPU that does not report its
        memory is asked for its temperature.
        """
        try:
            self._ask("nvmlDeviceGetMemoryInfo", gpu)
        except CallError as err:
            if err.code not in ABSENT:
                raise
            self._probe_temperature(gpu)

    def _probe_temperature(self, gpu: Handle) -> None:
        try:
            self._ask("nvmlDeviceGetTemperature", gpu, pynvml.NVML_TEMPERATURE_GPU)
        except CallError as err:
            if err.code not in ABSENT:
                raise

    def supported_events(self, gpu: Handle) -> int:
        """Bits of the event types that this GPU can report; 0 if it has no events at all."""
        try:
            return self._read("nvmlDeviceGetSupportedEventTypes", gpu, unsigned)
        except CallError as err:
            if err.code in ABSENT:
                return 0
            raise

    @contextmanager
    def event_set(self) -> Iterator[Any]:
        events = self._call("nvmlEventSetCreate")
        try:
            yield events
        finally:
            with suppress(CallError):
                self._call("nvmlEventSetFree", events)

    def register(self, gpu: Handle, kinds: int, events: Any) -> None:  # noqa: ANN401 (opaque)
        self._ask("nvmlDeviceRegisterEvents", gpu, kinds, events)

    def wait(self, events: Any, timeout_s: float) -> NvmlEvent | None:  # noqa: ANN401 (opaque)
        """Block until an event arrives; None after `timeout_s`. Not in `pending`, as it may last long."""
        self.waiting_since = self._clock()
        try:
            got = pynvml.nvmlEventSetWait_v2(events, int(timeout_s * 1000))
        except pynvml.NVMLError as err:
            if err.value == TIMEOUT:
                return None
            raise CallError("nvmlEventSetWait_v2", err.value, str(err)) from None
        finally:
            self.waiting_since = None
        address = _address(got.device)
        return NvmlEvent(got.device if address else None, address, int(got.eventType), int(got.eventData))

    def _fields(self, gpu: Handle, *fields: int) -> dict[int, int | None]:
        """Each field's value; None for one that driver or GPU lacks. Raises CallError if another one fails."""
        values: dict[int, int | None] = dict.fromkeys(fields)
        function = "nvmlDeviceGetFieldValues"
        try:
            got = self._read(function, gpu, _field_results, fields)
        except CallError as err:
            if err.code in ABSENT:
                return values
            raise
        for field, code, value in got:
            if not code:
                values[field] = value
            elif code not in ABSENT | {INVALID_ARGUMENT}:  # an unknown field is invalid
                raise CallError(function, code, str(pynvml.NVMLError(code)))
        return values

    def _clocks_event_reasons(self, gpu: Handle) -> int:
        """NVML's bits of the reasons for slow clocks; 0 where the GPU has none. Drivers before 535 use the second."""
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            try:
                return self._read(function, gpu, unsigned)
            except CallError as err:
                if err.code in GONE:
                    raise
        return 0

    def _read(self, function: str, gpu: Handle, parse: Callable[[Any], T], *args: object) -> T:
        """The checked answer."""
        return answers.read(function, self._ask(function, gpu, *args), parse)

    def _ask(self, function: str, gpu: Handle, *args: object) -> Any:  # noqa: ANN401 (untyped binding)
        return self._call(function, gpu.pointer, *args, gpu=gpu.index)

    def _call(self, function: str, *args: object, gpu: int | None = None) -> Any:  # noqa: ANN401 (untyped binding)
        self.pending = Pending(function, gpu, self._clock())
        try:
            return getattr(pynvml, function)(*args)
        except pynvml.NVMLError as err:
            raise CallError(function, err.value, str(err)) from None
        except UnicodeDecodeError as err:
            raise answers.undecodable(function, err) from None
        finally:
            self.pending = None


def _field_results(fields: Any) -> list[tuple[int, int, int | None]]:  # noqa: ANN401 (NVML's structures)
    """Number, NVML's code and value of each field."""
    results = []
    for field in fields:
        value = None
        if not field.nvmlReturn:
            member = _MEMBERS[field.valueType]
            value = unsigned(getattr(field.value, member))
        results.append((unsigned(field.fieldId), unsigned(field.nvmlReturn), value))
    return results


def _link_count(count: int) -> int:
    return whole(count, 0, MOST_LINKS)


def _address(pointer: Any) -> int | None:  # noqa: ANN401 (untyped binding)
    return ctypes.cast(pointer, ctypes.c_void_p).value
