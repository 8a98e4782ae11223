"""Calls about the links of a GPU."""

import ctypes

import pynvml

from gpuagent.domain.gpus.link_reports import End, Fabric, Relation
from gpuagent.nvml import answers, link_values
from gpuagent.nvml.answers import flag, unsigned, whole
from gpuagent.nvml.binding.calls import ABSENT, Handle, NvmlCalls
from gpuagent.nvml.driver_errors import CallError

MOST_LINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
"""NVLinks are numbered from 0 to below this; a GPU has fewer, or none."""
LINK_COUNT = int(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)


class WiringCalls(NvmlCalls):
    """NVLinks, PCIe paths and fabric. Every method raises CallError if NVML refuses."""

    def link_count(self, gpu: Handle) -> int | None:
        """How many NVLinks the GPU has, numbered from 0; None where the driver does not report it."""
        count = self._fields(gpu, LINK_COUNT)[LINK_COUNT]
        if count is None:
            return None
        return answers.read("nvmlDeviceGetFieldValues", count, _link_count)

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
        lanes = self._read("nvmlDeviceGetMaxPcieLinkWidth", gpu, lambda number: whole(number, 0, 32))
        return generation, lanes

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


def _link_count(count: int) -> int:
    return whole(count, 0, MOST_LINKS)
