"""NVML's C functions about links over a simulated driver; as those in `nvml_calls`."""

import uuid
from collections.abc import Callable, Sequence
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
            own = len(gpu.spec.links)
            listed = own + driver.box.disabled_links
            if not listed:
                return NOT_SUPPORTED
            if link < own:
                return function(gpu, link, out)
            if link >= listed:
                return INVALID
            # Some drivers report links that the GPU does not have, as disabled.
            if name == "nvmlDeviceGetNvLinkState":
                return put(out, pynvml.NVML_FEATURE_DISABLED)
            return NOT_SUPPORTED

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
    remote = gpu.spec.links[link]
    info = out._obj  # noqa: SLF001
    info.busId = remote.bus_id or "00000000:00:00.0"
    info.pciDeviceId = remote.pci_id
    return OK


@of(LINKS, "nvmlDeviceGetTopologyCommonAncestor")
def _common_ancestor(driver: SimulatedDriver, gpu: SimulatedGpu, handle: Any, out: Any) -> int:
    other = driver.at(address(handle))
    if other is None:
        return INVALID
    # `enter` has looked at the first GPU only.
    if other.lost:
        return int(pynvml.NVML_ERROR_GPU_IS_LOST)
    path = gpu.spec.pcie_path
    other_path = other.spec.pcie_path
    if not path or not other_path:
        return NOT_SUPPORTED
    shared = _shared_steps(path, other_path)
    if shared < len(_ANCESTORS):
        return put(out, _ANCESTORS[shared])
    return put(out, pynvml.NVML_TOPOLOGY_SINGLE if path == other_path else pynvml.NVML_TOPOLOGY_MULTIPLE)


def _shared_steps(path: Sequence[str], other: Sequence[str]) -> int:
    """How many steps the paths have in common, from the root on."""
    shared = 0
    for step, other_step in zip(path, other, strict=False):
        if step != other_step:
            break
        shared += 1
    return shared


@of(LINKS, "nvmlDeviceGetMaxPcieLinkGeneration")
def _pcie_generation(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.spec.pcie[0]) if gpu.spec.pcie else NOT_SUPPORTED


@of(LINKS, "nvmlDeviceGetMaxPcieLinkWidth")
def _pcie_lanes(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    return put(out, gpu.spec.pcie[1]) if gpu.spec.pcie else NOT_SUPPORTED


@of(LINKS, "nvmlDeviceGetGpuFabricInfo")
def _fabric(_driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    fabric = gpu.spec.fabric
    if fabric is None:
        return NOT_SUPPORTED
    info = out._obj  # noqa: SLF001
    info.clusterUuid[:] = uuid.UUID(fabric.cluster).bytes
    info.cliqueId = fabric.clique
    info.status = OK
    info.state = pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
    if gpu.fabric_ready:
        info.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    return OK


@of(LINKS, "nvmlDeviceGetGpuFabricInfoV")
def _fabric_v(driver: SimulatedDriver, gpu: SimulatedGpu, out: Any) -> int:
    if out._obj.version != pynvml.nvmlGpuFabricInfo_v2:  # noqa: SLF001
        return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return int(_fabric(driver, gpu, out))
