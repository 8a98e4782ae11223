"""Attributes of devices, by which claims and classes select. Every device has every attribute.

A selector that names an attribute that one device lacks is an error, and the scheduler then places no claim with it,
also on other nodes. So what is not known has a value, too. Where `matchAttribute` would bring devices together, it is
a value that no other device has: a GPU without NVLinks is a domain of its own.

Names: those of Kubernetes (KEP-4381, KEP-6072), and those of NVIDIA's driver for whoever selects by them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuagent.domain.dra.isolation import isolates_now, layer_mode
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import Isolates
from gpuagent.domain.state import State

Json = dict[str, Any]

MOST_TEXT = 64
"""Characters of an attribute."""
NO_NODE = -1
"""The NUMA node as Linux writes it where there is none."""
UNKNOWN = "Unknown"
_KUBERNETES = "resource.kubernetes.io"
_ARCHITECTURES = (
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada Lovelace"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
    ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"),
    ((3, 0), "Kepler"),
)
"""Compute capability from which on a GPU is of an architecture, in NVIDIA's words."""


def gpu_attributes(gpu: Gpu, name: str, domain: str, state: State) -> Json:
    """Attributes of the device of a GPU.

    Args:
        gpu: the GPU.
        name: of its device.
        domain: name of the first GPU among those that it reaches over NVLinks.
        state: of the node.
    """
    return {
        **_common([gpu], name, state),
        "type": _text("gpu"),
        "uuid": _text(gpu.uuid),
        "minor": {"int": gpu.minor},
        "nvlinkDomain": _text(domain),
        "linkGBps": {"int": 0},
        f"{_KUBERNETES}/pciBusID": _text(_pci_bus_id(gpu)),
        **_isolation(gpu, state),
    }


def set_attributes(  # noqa: PLR0913 (all by name)
    gpus: Sequence[Gpu], *, size: int, name: str, domains: set[str], link_gbps: int, state: State
) -> Json:
    """Attributes of the device of a set of whole GPUs.

    Args:
        gpus: those of the set that are on the node, in NVML's order.
        size: how many GPUs the set has.
        name: of the device.
        domains: of the GPUs.
        link_gbps: of the slowest link.
        state: of the node.
    """
    # Without a domain that all have, the set is a domain of its own.
    domain = name
    if len(domains) == 1:
        (domain,) = domains
    return {
        **_common(gpus, name, state),
        "type": _text("gpu-set"),
        "gpus": {"int": size},
        "uuid": _text(""),
        "minor": {"int": -1},
        "nvlinkDomain": _text(domain),
        "linkGBps": {"int": link_gbps},
        f"{_KUBERNETES}/pciBusID": _text(""),
        "isolation": _text("none"),
        "memoryIsolated": {"bool": False},
        "computeIsolated": {"bool": False},
    }


def _common(gpus: Sequence[Gpu], name: str, state: State) -> Json:
    """Attributes that follow from what all GPUs of a device have in common."""
    minors = ",".join(str(gpu.minor) for gpu in gpus)
    model = _same(gpus, "model")
    brand = _same(gpus, "brand")
    capability = _same(gpus, "compute_capability")
    compute_capability = ".".join(map(str, capability or ()))
    # Devices with unknown roots must not count as being at the same one, so each has a root of its own.
    pcie_root = _same(gpus, "pcie_root") or name
    numa_node = _same(gpus, "numa_node")
    if numa_node is None:
        numa_node = NO_NODE
    node = {"int": numa_node}
    return {
        "gpus": {"int": len(gpus)},
        "minors": _text(minors),
        "productName": _text(model or ""),
        "brand": _text(brand or UNKNOWN),
        "architecture": _text(architecture(capability)),
        "cudaComputeCapability": _version(compute_capability),
        "driverVersion": _version(state.gpus.driver_version),
        "cudaDriverVersion": _version(state.gpus.cuda_version),
        "numaNode": node,
        f"{_KUBERNETES}/numaNode": node,
        f"{_KUBERNETES}/pcieRoot": _text(pcie_root),
    }


def _isolation(gpu: Gpu, state: State) -> Json:
    layer = state.layer_of(layer_mode(state))
    isolates = isolates_now(state)
    if gpu.uuid in layer.left_out:
        isolates = frozenset()
    driver = layer.driver if isolates else "none"
    return {
        "isolation": _text(driver),
        "memoryIsolated": {"bool": Isolates.MEMORY in isolates},
        "computeIsolated": {"bool": Isolates.COMPUTE in isolates},
    }


def architecture(capability: tuple[int, int] | None) -> str:
    """NVIDIA's name of the architecture."""
    if capability is None:
        return UNKNOWN
    for least, name in _ARCHITECTURES:
        if capability >= least:
            return name
    return UNKNOWN


def version(text: str) -> str:
    """A version as a semantic one: ``570.124.06`` is ``570.124.6``; ``0.0.0`` if it is none."""
    parts = text.split(".")
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal()]
    padded = [*numbers, 0, 0, 0]
    three = padded[:3]
    return ".".join(map(str, three))


def _same(gpus: Iterable[Gpu], name: str) -> Any:  # noqa: ANN401 (of any kind)
    """The attribute of that name, which all GPUs have; None if they differ or there are none."""
    different: set[Any] = {getattr(gpu, name) for gpu in gpus}
    if len(different) != 1:
        return None
    return different.pop()


def _text(value: str) -> Mapping[str, str]:
    return {"string": value[:MOST_TEXT]}


def _version(text: str) -> Mapping[str, str]:
    return {"version": version(text)}


def _pci_bus_id(gpu: Gpu) -> str:
    """As Linux writes it, with a domain of at least four digits; empty if the driver does not report it."""
    if not gpu.pci_bus_id:
        return ""
    domain, _, rest = gpu.pci_bus_id.lower().partition(":")
    number = int(domain, 16)
    return f"{number:04x}:{rest}"
