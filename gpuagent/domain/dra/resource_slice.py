"""The node's ResourceSlice: a device for each GPU, whose memory and compute the scheduler shares out.

The scheduler takes the first device that fits, so the order of the devices is the placement. A request that names no
memory gets all of it: whole GPUs and shares exclude each other by arithmetic. The name of a device never changes, as
allocations name it.

Source of the limits: k8s.io/api/resource/v1, types.go; what the API server accepts was tried on 1.36.3.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpuagent.domain.dra.device_taints import taints
from gpuagent.domain.dra.isolation import isolates_now, layer_mode
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, Isolates, Mode, Placement
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.state import State

Json = dict[str, Any]

MOST_DEVICES = 64
"""Devices in a slice of which one has a taint."""
MOST_TEXT = 64
"""Characters of an attribute."""


def device_name(gpu: Gpu) -> str:
    """The GPU's name in slices and allocations."""
    return f"gpu-{gpu.key}"


def memory_text(mib: int) -> str:
    """Kubernetes quantity of so many MiB."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def slice_spec(state: State, node_name: str) -> Json | None:
    """The spec of the node's ResourceSlice; None if there should be none.

    Until the first read of driver and kubelet, it is left as it is: see `is_known`.
    """
    if state.node.mode is not Mode.DRA:
        return None
    devices = [_device(gpu, state) for gpu in _in_order(state)]
    return {
        "driver": DRA_DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        "devices": devices[:MOST_DEVICES],
    }


def is_known(state: State) -> bool:
    """Whether the mode, the GPUs, the isolation drivers and kubelet's allocations were read in this run."""
    return bool(
        state.node.mode_known
        and (state.node.mode is not Mode.DRA or (state.gpus.by_uuid and not state.isolation.unheard))
        and state.holdings.listed is not None
    )


def _in_order(state: State) -> Iterator[Gpu]:
    """GPUs that can be devices: under binpack the fullest first, under spread the emptiest; full ones last."""
    unit, used = state.policy.unit, Counter[str]()
    for claim in state.claims.prepared.values():
        for gpu in claim.gpus:
            used[gpu.uuid] += gpu.memory_mib
    usable = [gpu for gpu in state.gpus.by_index if not gpu.mig and gpu.memory_mib >= unit.mib]
    sign = -1 if state.node.placement is Placement.BINPACK else 1

    def rank(gpu: Gpu) -> tuple[bool, float]:
        return used[gpu.uuid] > gpu.memory_mib - unit.mib, sign * used[gpu.uuid] / gpu.memory_mib

    yield from sorted(usable, key=rank)


def _device(gpu: Gpu, state: State) -> Json:
    isolates = isolates_now(state) if gpu.uuid not in state.layer_of(layer_mode(state)).left_out else frozenset()
    layer = state.layer_of(layer_mode(state)).driver if isolates else "none"
    attributes: dict[str, Json] = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid[:MOST_TEXT]},
        "minor": {"int": gpu.minor},
        "productName": {"string": gpu.model[:MOST_TEXT]},
        "isolation": {"string": layer},
        "memoryIsolated": {"bool": Isolates.MEMORY in isolates},
        "computeIsolated": {"bool": Isolates.COMPUTE in isolates},
        "resource.kubernetes.io/pciBusID": {"string": _pci_bus_id(gpu)},
    }
    if gpu.numa_node is not None:
        attributes["numaNode"] = {"int": gpu.numa_node}
    device: Json = {
        "name": device_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": _capacity(gpu, state),
    }
    if tainted := [*taints(gpu, state)]:
        device["taints"] = tainted
    return device


def _capacity(gpu: Gpu, state: State) -> Json:
    memory, unit = _memory(gpu, state.policy.unit), memory_text(state.policy.unit.mib)
    step = state.policy.core_step
    most_sharers = state.layer_of(layer_mode(state)).max_sharers
    sharers = min(filter(None, (state.policy.max_pods_per_gpu, most_sharers)))
    return {
        "memory": {
            "value": memory,
            "requestPolicy": {"default": memory, "validRange": {"min": unit, "step": unit, "max": memory}},
        },
        "cores": {
            "value": str(CORE_PERCENT_PER_GPU),
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "step": str(step), "max": str(CORE_PERCENT_PER_GPU // step * step)},
            },
        },
        "sharers": {"value": str(sharers), "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }


def _memory(gpu: Gpu, unit: MemoryUnit) -> str:
    """Whole units: the API server takes no other default."""
    return memory_text(gpu.memory_mib // unit.mib * unit.mib)


def _pci_bus_id(gpu: Gpu) -> str:
    """As Linux writes it, with a domain of four digits."""
    domain, _, rest = gpu.pci_bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
