"""NVML's C functions about links over a simulated driver; as those in `nvml_calls`."""

import uuid
from collections.abc import Callable
from typing import Any

import pynvml

from gpuagent.nvml.link_values import ENDS
from gpuagent.simulation.driver import SimulatedDriver, SimulatedGpu
from gpuagent.simulation.nvml_calls import INVALID, NOT_SUPPORTED, OK, address, of, put

LINKS: dict[str, Callable[..., int]] = {}
"""Functions of a GPU, as `nvml_calls.DEVICE`."""

_TYPES = {end: number for number, end in ENDS.items()}
_ANCESTORS = (pynvml.NVML_TOPOLOGY_SYSTEM, pynvml.NVML_TOPOLOGY_NODE, pynvml.NVML_TOPOLOGY_HOSTBRIDGE)
"""Topology levels by the number of steps that two paths share; steps after the host bridge are switches."""

OfLink = Callable[[SimulatedGpu, int, Any], int]


def _of_link(name: str) -> Callable[[OfLink], OfLink]:
    """A function whose second C argument is the number of a link."""

    def add(function: OfLink) -> OfLink:
        def call(driver: SimulatedDriver, gpu: SimulatedGpu, link: int, out: Any) -> int:
            own, disabled = len(gpu.spec.links), driver.box.disabled_links
            if not own + disabled:
                return NOT_SUPPORTED
            if own <= link < own + disabled:
                return put(out, pynvml.NVML_FEATURE_DISABLED) if name == "nvmlDeviceGetNvLinkState" else NOT_SUPPORTED
            return function(gpu, link, out) if link < own else INVALID

        LINKS[name] = call
        return function

    return add


@_of_link("nvmlDeviceGetNvLinkState")
def _state(gpu: SimulatedGpu, link: int, out: Any) -> int:
    return put(out, link not in gpu.links_down)


@_of_link("nvmlDeviceGetNvLinkVersion")
def _version(gpu: SimulatedGpu, link: int, out: Any) -> int:
    return put(out, gpu.spec.links[link].version)


@_of_link("nvmlDeviceGetNvLinkRemoteDeviceType")
def _remote_type(gpu: SimulatedGpu, link: int, out: Any) -> int:
    return put(out, _TYPES[gpu.spec.links[link].end])


@_of_link("nvmlDeviceGetNvLinkRemotePciInfo_v2")
def _remote_pci(gpu: SimulatedGpu, link: int, out: Any) -> int:
    there, info = gpu.spec.links[link], out._obj  # noqa: SLF001
    info.busId, info.pciDeviceId = there.bus_id or "00000000:00:00.0", there.pci_id
    return OK


@of(LINKS, "nvmlDeviceGetTopologyCommonAncestor")
def _common_ancestor(driver: SimulatedDriver, gpu: SimulatedGpu, handle: Any, out: Any) -> int:
    other = driver.at(address(handle))
    if other is None:
        return INVALID
    if other.lost:
        return int(pynvml.NVML_ERROR_GPU_IS_LOST)
    here, there = gpu.spec.pcie_path, other.spec.pcie_path
    if not (here and there):
        return NOT_SUPPORTED
    shared = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    if shared < len(_ANCESTORS):
        return put(out, _ANCESTORS[shared])
    return put(out, pynvml.NVML_TOPOLOGY_SINGLE if here == there else pynvml.NVML_TOPOLOGY_MULTIPLE)


@of(LINKS, "nvmlDeviceGetMaxPcieLinkGeneration")
def _pcie_generation(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.spec.pcie[0]) if gpu.spec.pcie else NOT_SUPPORTED


@of(LINKS, "nvmlDeviceGetMaxPcieLinkWidth")
def _pcie_lanes(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.spec.pcie[1]) if gpu.spec.pcie else NOT_SUPPORTED


@of(LINKS, "nvmlDeviceGetGpuFabricInfo")
def _fabric(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    info, fabric = out._obj, gpu.spec.fabric  # noqa: SLF001
    if fabric is None:
        return NOT_SUPPORTED
    info.clusterUuid[:] = uuid.UUID(fabric.cluster).bytes
    info.cliqueId, info.status = fabric.clique, OK
    completed, waits = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
    info.state = completed if gpu.fabric_ready else waits
    return OK


@of(LINKS, "nvmlDeviceGetGpuFabricInfoV")
def _fabric_v(driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    if out._obj.version != pynvml.nvmlGpuFabricInfo_v2:  # noqa: SLF001
        return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return int(_fabric(driver, gpu, out))
