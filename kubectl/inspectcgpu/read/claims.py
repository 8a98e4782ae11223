"""ResourceSlices and ResourceClaims of nodes in mode `dra`, as the nodes' GPUs and the pods on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
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
class ClaimedDevice:
    """What a claim has of a device.

    Attributes:
        node: name of the node.
        name: of the device.
        memory_mib: of its memory; infinite if no other claim can have the device.
        percent: of its compute.
    """

    node: str
    name: str
    memory_mib: float
    percent: int


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A claim with devices of this driver.

    Attributes:
        name: namespace and name.
        devices: those that it has.
        pods: that use it, in the order of their names.
    """

    name: PodName
    devices: tuple[ClaimedDevice, ...]
    pods: tuple[PodName, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """All of them; slices by node."""

    slices: Mapping[str, NodeSlice] = field(default_factory=dict)
    claims: Sequence[GpuClaim] = ()

    @property
    def views(self) -> dict[str, AgentView]:
        """The slices as an agent shows its GPUs."""
        views = {}
        for name, node_slice in self.slices.items():
            by_minor = {gpu.minor: gpu for gpu in node_slice.gpus.values()}
            views[name] = AgentView(node_slice.unit, by_minor)
        return views

    def nodes(self, nodes: Iterable[GpuNode]) -> tuple[GpuNode, ...]:
        """The nodes with what their slices advertise."""
        return tuple(_advertising(node, self.slices.get(node.name)) for node in nodes)

    def pods(self, pods: Iterable[GpuPod]) -> tuple[GpuPod, ...]:
        """The pods, and those that use claims. The GPUs of a claim of several pods count for the first."""
        known = {pod.name: pod for pod in pods}
        claimed: dict[PodName, GpuPod] = {}
        for claim in self.claims:
            first_pod = claim.pods[0] if claim.pods else None
            by_node = self._shares(claim)
            for name in claim.pods:
                for node, shares in by_node.items():
                    phase = known[name].phase if name in known else ""
                    pod = claimed.setdefault(name, GpuPod(name, node, phase, asks={}))
                    if name == first_pod:
                        claimed[name] = _with_shares(pod, shares)
                    else:
                        claimed[name] = _with_note(pod, claim)
        all_pods = known | claimed
        return tuple(sorted(all_pods.values(), key=lambda pod: pod.name))

    def _shares(self, claim: GpuClaim) -> dict[str, Shares]:
        """Node to what the claim has there."""
        by_node: dict[str, Shares] = {}
        for device in claim.devices:
            node_slice = self.slices.get(device.node)
            if node_slice is None:
                continue
            for gpu in node_slice.of_device(device.name):
                shares = by_node.setdefault(device.node, {})
                _add_shares(shares, device, gpu, node_slice)
        return by_node


def _add_shares(shares: Shares, device: ClaimedDevice, gpu: SeenGpu, node_slice: NodeSlice) -> None:
    """Add what the claim of a device has of one of its GPUs."""
    if device.name in node_slice.sets:
        # A set has all of its GPUs.
        memory_mib: float = gpu.memory_mib
        percent = CORE_PERCENT_PER_GPU
    else:
        memory_mib = min(device.memory_mib, gpu.memory_mib)
        # A claim for all of the memory that asks for no part of the compute has all of that, too.
        has_all_memory = device.memory_mib > gpu.memory_mib - node_slice.unit.mib
        percent = CORE_PERCENT_PER_GPU if has_all_memory and not device.percent else device.percent
    _add_units(shares, GPU_MEM, gpu.minor, int(memory_mib) // node_slice.unit.mib)
    _add_units(shares, GPU_CORE, gpu.minor, percent)


def _add_units(shares: Shares, resource: str, gpu: int, units: int) -> None:
    if units:
        by_gpu = shares.setdefault(resource, {})
        by_gpu[gpu] = by_gpu.get(gpu, 0) + units


def _advertising(node: GpuNode, node_slice: NodeSlice | None) -> GpuNode:
    if node_slice is None:
        return node
    gpus = list(node_slice.gpus.values())
    healthy = [gpu for gpu in gpus if gpu.healthy]
    return replace(
        node,
        capacity={**node.capacity, **_units_of_all(gpus)},
        allocatable={**node.allocatable, **_units_of_all(healthy)},
    )


def _units_of_all(gpus: Sequence[SeenGpu]) -> dict[str, int]:
    """Units of memory and of compute of these GPUs together."""
    return {name: sum(gpu.units.get(name, 0) for gpu in gpus) for name in (GPU_MEM, GPU_CORE)}


def _with_shares(pod: GpuPod, shares: Shares) -> GpuPod:
    """The pod with the shares of a claim, beside those of its other claims."""
    places = {resource: dict(by_gpu) for resource, by_gpu in pod.places.items()}
    for resource, by_gpu in shares.items():
        for gpu, units in by_gpu.items():
            _add_units(places, resource, gpu, units)
    asks = {resource: sum(by_gpu.values()) for resource, by_gpu in places.items()}
    return replace(pod, asks=asks, places=places, sources=dict.fromkeys(places, CLAIM))


def _with_note(pod: GpuPod, claim: GpuClaim) -> GpuPod:
    """The pod with a note on the claim, of which the GPUs are counted with another pod."""
    text = f"its claim {claim.name} is also that of pod {claim.pods[0]}, with which its GPUs are counted"
    return replace(pod, faults=(*pod.faults, text))


def read_slice(resource_slice: Mapping[str, Any]) -> NodeSlice | None:
    """Parse a ResourceSlice; None where it is another driver's, or has no GPU and no set. Never raises."""
    spec = mapping(resource_slice.get("spec"))
    node = text(spec.get("nodeName"))
    if spec.get("driver") != DRA_DRIVER or not node:
        return None
    devices = list(mappings(spec.get("devices")))
    # The unit is that of the first device that has one. None has where no GPU reports its memory.
    unit_mib = next(filter(None, map(_unit_mib, devices)), 0)
    unit = MemoryUnit(unit_mib) if unit_mib else MemoryUnit()
    gpus: dict[str, SeenGpu] = {}
    sets: dict[str, frozenset[int]] = {}
    for device in devices:
        name = text(device.get("name"))
        minors = _minors_of_set(device)
        if minors is not None:
            sets[name] = minors
        gpu = _seen_gpu(device, unit)
        if gpu is not None:
            gpus[name] = gpu
    if not gpus and not sets:
        return None
    return NodeSlice(node, unit, gpus, sets)


def _attribute(device: Mapping[str, Any], name: str, kind: str) -> object:
    """The value of an attribute of one kind, such as ``string``; None without it."""
    attributes = mapping(device.get("attributes"))
    return mapping(attributes.get(name)).get(kind)


def _memory(device: Mapping[str, Any]) -> Mapping[str, Any]:
    capacity = mapping(device.get("capacity"))
    return mapping(capacity.get("memory"))


def _mib(quantity: object) -> int:
    """Whole MiB of a quantity; 0 where it cannot be read."""
    return (amount(text(quantity)) or 0) // MIB


def _unit_mib(device: Mapping[str, Any]) -> int:
    """The unit in which claims have memory of the device; 0 if the device has none."""
    policy = mapping(_memory(device).get("requestPolicy"))
    return _mib(mapping(policy.get("validRange")).get("step"))


def _minors_of_set(device: Mapping[str, Any]) -> frozenset[int] | None:
    """Minor numbers of the GPUs of a set; None for a device that is not a set."""
    minors = text(_attribute(device, "minors", "string"))
    is_gpu = text(_attribute(device, "type", "string")) == "gpu"
    if is_gpu or not minors:
        return None
    return frozenset([int(word) for word in minors.split(",") if _is_minor(word)])


def _seen_gpu(device: Mapping[str, Any], unit: MemoryUnit) -> SeenGpu | None:
    """The GPU of a device; None for a device that is not a GPU."""
    minor = number(_attribute(device, "minor", "int"))
    if minor is None or minor >= MOST_GPUS:
        return None
    memory_mib = _mib(_memory(device).get("value"))
    taints = [text(taint.get("key")) for taint in mappings(device.get("taints"))]
    causes = [key.removeprefix(f"{DRA_DRIVER}/") for key in taints if key != HELD_TAINT]
    units = {GPU_MEM: memory_mib // unit.mib, GPU_CORE: CORE_PERCENT_PER_GPU}
    return SeenGpu(
        minor=minor,
        model=text(_attribute(device, "productName", "string")),
        memory_mib=memory_mib,
        healthy=not causes,
        cause=", ".join(causes).capitalize(),
        units={} if HELD_TAINT in taints else units,
    )


def _is_minor(word: str) -> bool:
    return word.isdecimal() and word.isascii() and len(word) <= len(str(MOST_GPUS))


def by_node(slices: Iterable[NodeSlice]) -> dict[str, NodeSlice]:
    """The slices of each node as one: its GPUs and its sets of them are in different ones."""
    joined: dict[str, NodeSlice] = {}
    for part in slices:
        former = joined.get(part.node, part)
        # A slice of sets alone does not say the unit.
        unit = part.unit if part.gpus else former.unit
        gpus = {**former.gpus, **part.gpus}
        sets = {**former.sets, **part.sets}
        joined[part.node] = NodeSlice(part.node, unit, gpus, sets)
    return {node: whole for node, whole in joined.items() if whole.gpus}


def read_claim(claim: Mapping[str, Any]) -> GpuClaim | None:
    """Parse a ResourceClaim; None where it has no device of this driver. Never raises."""
    metadata = mapping(claim.get("metadata"))
    status = mapping(claim.get("status"))
    allocation = mapping(status.get("allocation"))
    allocated = mapping(allocation.get("devices"))
    used = filter(_is_used, mappings(allocated.get("results")))
    devices = tuple(map(_claimed_device, used))
    if not devices:
        return None
    namespace = text(metadata.get("namespace"))
    users = mappings(status.get("reservedFor"))
    pods = [PodName(namespace, text(user.get("name"))) for user in users if user.get("resource") == "pods"]
    name = PodName(namespace, text(metadata.get("name")))
    return GpuClaim(name, devices, tuple(sorted(pods)))


def _is_used(result: Mapping[str, Any]) -> bool:
    """Whether an allocated device is ours, and used: with adminAccess, it is only looked at."""
    return result.get("driver") == DRA_DRIVER and not result.get("adminAccess")


def _claimed_device(result: Mapping[str, Any]) -> ClaimedDevice:
    consumed = mapping(result.get("consumedCapacity"))
    memory_mib: float = _mib(consumed.get("memory"))
    is_share = "shareID" in result or "consumedCapacity" in result
    if not is_share:
        memory_mib = inf  # the claim has the device alone
    return ClaimedDevice(
        node=text(result.get("pool")),
        name=text(result.get("device")),
        memory_mib=memory_mib,
        percent=amount(text(consumed.get("cores"))) or 0,
    )
