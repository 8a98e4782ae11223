"""ResourceSlices and ResourceClaims of nodes in mode `dra`, as the nodes' GPUs and the pods on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuagent.domain.dra.device_taints import HELD_TAINT
from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, GPU_CORE, GPU_MEM
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.read.agent_page import AgentView, SeenGpu
from inspectcgpu.read.gpu_node import MOST_GPUS, GpuNode
from inspectcgpu.read.gpu_pod import GpuPod

CLAIM = "claim"
MIB = 1 << 20
Shares = dict[str, dict[int, int]]
"""Resource to minor number of a GPU to units."""


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """The GPUs that a node publishes.

    Attributes:
        node: name of the node.
        unit: in which it shares out memory.
        gpus: by name of the device. A GPU that pods of another mode hold has no units.
        sets: minor numbers of the GPUs of each set of GPUs, by name of the device.
    """

    node: str
    unit: MemoryUnit
    gpus: Mapping[str, SeenGpu]
    sets: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def of_device(self, device: str) -> list[SeenGpu]:
        """The GPUs of a device."""
        minors = self.sets.get(device, frozenset())
        return [gpu for name, gpu in self.gpus.items() if name == device or gpu.minor in minors]


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A claim with devices of this driver.

    Attributes:
        name: namespace and name.
        devices: node, name of the device, MiB of its memory and percent of its compute, for each.
        pods: that use it, in the order of their names.
    """

    name: PodName
    devices: tuple[tuple[str, str, int, int], ...]
    pods: tuple[PodName, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """All of them; slices by node."""

    slices: Mapping[str, NodeSlice] = field(default_factory=dict)
    claims: Sequence[GpuClaim] = ()

    @property
    def views(self) -> dict[str, AgentView]:
        """The slices as an agent shows its GPUs."""
        return {
            name: AgentView(one.unit, {gpu.minor: gpu for gpu in one.gpus.values()})
            for name, one in self.slices.items()
        }

    def nodes(self, nodes: Iterable[GpuNode]) -> tuple[GpuNode, ...]:
        """The nodes with what their slices advertise."""
        return tuple(_advertising(node, self.slices.get(node.name)) for node in nodes)

    def pods(self, pods: Iterable[GpuPod]) -> tuple[GpuPod, ...]:
        """The pods, and those that use claims. The GPUs of a claim of several pods count for the first."""
        known = {pod.name: pod for pod in pods}
        claimed: dict[PodName, GpuPod] = {}
        for claim in self.claims:
            for name in claim.pods:
                for node, shares in self._shares(claim).items():
                    phase = known[name].phase if name in known else ""
                    pod = claimed.setdefault(name, GpuPod(name, node, phase, asks={}))
                    claimed[name] = _sharing(pod, claim) if name != claim.pods[0] else _having(pod, shares)
        return tuple(sorted((known | claimed).values(), key=lambda pod: pod.name))

    def _shares(self, claim: GpuClaim) -> dict[str, Shares]:
        """Node to what the claim has there."""
        found: dict[str, Shares] = {}
        for node, device, mib, cores in claim.devices:
            if (one := self.slices.get(node)) is None:
                continue
            for gpu in one.of_device(device):
                whole = mib > gpu.memory_mib - one.unit.mib and not cores
                mine = gpu.memory_mib if device in one.sets else mib
                shares = found.setdefault(node, {})
                for resource, units in (
                    (GPU_MEM, mine // one.unit.mib),
                    (GPU_CORE, CORE_PERCENT_PER_GPU if whole or device in one.sets else cores),
                ):
                    if units:
                        by_gpu = shares.setdefault(resource, {})
                        by_gpu[gpu.minor] = by_gpu.get(gpu.minor, 0) + units
        return found


def _advertising(node: GpuNode, found: NodeSlice | None) -> GpuNode:
    if found is None:
        return node
    every = found.gpus.values()
    capacity, allocatable = (
        {name: sum(gpu.units.get(name, 0) for gpu in gpus) for name in (GPU_MEM, GPU_CORE)}
        for gpus in (every, [gpu for gpu in every if gpu.healthy])
    )
    return replace(node, capacity={**node.capacity, **capacity}, allocatable={**node.allocatable, **allocatable})


def _having(pod: GpuPod, shares: Shares) -> GpuPod:
    places = {resource: dict(gpus) for resource, gpus in pod.places.items()}
    for resource, gpus in shares.items():
        mine = places.setdefault(resource, {})
        for gpu, units in gpus.items():
            mine[gpu] = mine.get(gpu, 0) + units
    asks = {resource: sum(gpus.values()) for resource, gpus in places.items()}
    return replace(pod, asks=asks, places=places, sources=dict.fromkeys(places, CLAIM))


def _sharing(pod: GpuPod, claim: GpuClaim) -> GpuPod:
    text = f"its claim {claim.name} is also that of pod {claim.pods[0]}, with which its GPUs are counted"
    return replace(pod, faults=(*pod.faults, text))


def read_slice(found: Mapping[str, Any]) -> NodeSlice | None:
    """Parse a ResourceSlice; None where it is another driver's, or has no GPU and no set. Never raises."""
    spec = mapping(found.get("spec"))
    node, gpus, sets, unit = text(spec.get("nodeName")), {}, {}, 0
    if spec.get("driver") != DRA_DRIVER or not node:
        return None
    for device in mappings(spec.get("devices")):
        attributes, memory = mapping(device.get("attributes")), mapping(mapping(device.get("capacity")).get("memory"))
        minor = number(mapping(attributes.get("minor")).get("int"))
        total = (amount(text(memory.get("value"))) or 0) // MIB
        least = text(mapping(mapping(memory.get("requestPolicy")).get("validRange")).get("min"))
        unit = unit or (amount(least) or 0) // MIB
        is_set = text(mapping(attributes.get("type")).get("string")) != "gpu"
        minors = text(mapping(attributes.get("minors")).get("string"))
        if is_set and minors:
            sets[text(device.get("name"))] = frozenset(int(one) for one in minors.split(",") if _is_minor(one))
        if minor is None or minor >= MOST_GPUS or not unit:
            continue
        taints = [text(taint.get("key")) for taint in mappings(device.get("taints"))]
        bad = [key.removeprefix(f"{DRA_DRIVER}/") for key in taints if key != HELD_TAINT]
        gpus[text(device.get("name"))] = SeenGpu(
            minor=minor,
            model=text(mapping(attributes.get("productName")).get("string")),
            memory_mib=total,
            healthy=not bad,
            cause=", ".join(bad).capitalize(),
            units={} if HELD_TAINT in taints else {GPU_MEM: total // unit, GPU_CORE: CORE_PERCENT_PER_GPU},
        )
    return NodeSlice(node, MemoryUnit(unit) if unit else MemoryUnit(), gpus, sets) if gpus or sets else None


def _is_minor(word: str) -> bool:
    return word.isdecimal() and word.isascii() and len(word) <= len(str(MOST_GPUS))


def by_node(slices: Iterable[NodeSlice]) -> dict[str, NodeSlice]:
    """The slices of each node as one: its GPUs and its sets of them are in different ones."""
    found: dict[str, NodeSlice] = {}
    for one in slices:
        other = found.get(one.node, one)
        first = one if one.gpus else other
        found[one.node] = NodeSlice(one.node, first.unit, {**other.gpus, **one.gpus}, {**other.sets, **one.sets})
    return {name: one for name, one in found.items() if one.gpus}


def read_claim(found: Mapping[str, Any]) -> GpuClaim | None:
    """Parse a ResourceClaim; None where it has no device of this driver. Never raises."""
    meta, status = mapping(found.get("metadata")), mapping(found.get("status"))
    namespace = text(meta.get("namespace"))
    results = mapping(mapping(status.get("allocation")).get("devices")).get("results")
    devices = []
    for one in mappings(results):
        if one.get("driver") == DRA_DRIVER and not one.get("adminAccess"):
            consumed = mapping(one.get("consumedCapacity"))
            memory, cores = (amount(text(consumed.get(name))) or 0 for name in ("memory", "cores"))
            devices.append((text(one.get("pool")), text(one.get("device")), memory // MIB, cores))
    users = [text(one.get("name")) for one in mappings(status.get("reservedFor")) if one.get("resource") == "pods"]
    pods = tuple(PodName(namespace, user) for user in sorted(users))
    return GpuClaim(PodName(namespace, text(meta.get("name"))), tuple(devices), pods) if devices else None
