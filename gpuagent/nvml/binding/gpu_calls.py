"""Calls about the driver, and about a GPU itself."""

from typing import Any

import pynvml

from gpuagent.nvml import answers
from gpuagent.nvml.answers import flag, unsigned, whole
from gpuagent.nvml.binding.calls import ABSENT, Handle, NvmlCalls, address_of
from gpuagent.nvml.driver_errors import CallError

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
MOST_GPUS = 256
"""More than any node has; each has threads of its own."""


class GpuCalls(NvmlCalls):
    """What a GPU is. Every method raises CallError if NVML refuses, unless its docstring differs."""

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
            number = answers.read(function, self._call(function), lambda number: whole(number, 1, 999_999))
        except CallError:
            return ""
        major = number // 1000
        minor = number % 1000 // 10
        return f"{major}.{minor}"

    def count(self) -> int:
        function = "nvmlDeviceGetCount"
        return answers.read(function, self._call(function), lambda count: whole(count, 0, MOST_GPUS))

    def handle(self, index: int) -> Handle:
        function = "nvmlDeviceGetHandleByIndex"
        pointer = self._call(function, index, gpu=index)
        # By this number, the GPU of an event is recognized.
        address = answers.read(function, pointer, lambda pointer: unsigned(address_of(pointer)))
        return Handle(index, pointer, address)

    def uuid(self, gpu: Handle) -> str:
        return self._read("nvmlDeviceGetUUID", gpu, answers.gpu_uuid)

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
