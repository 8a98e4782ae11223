"""The node's ResourceSlices: a device for each GPU, whose memory and compute the scheduler shares out, and on request
devices for sets of linked GPUs.

The scheduler takes the first device that fits, so the order of the devices is the placement. A request that names no
memory gets all of it: whole GPUs and shares exclude each other by arithmetic. The name of a device never changes, as
allocations name it.

Source of the limits: k8s.io/api/resource/v1, types.go; what the API server accepts was tried on 1.36.3.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpuagent.domain.dra.device_attributes import gpu_attributes, set_attributes
from gpuagent.domain.dra.device_taints import taints
from gpuagent.domain.dra.gpu_sets import MOST_SETS, PART, SIZES, Mbps, in_order, set_name, singles
from gpuagent.domain.dra.ledger import most_sharers
from gpuagent.domain.gpus.gpu import Gpu, key_of
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, Mode, Placement
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.state import State
from gpuagent.domain.usable_gpus import gives_units

Json = dict[str, Any]

COUNTERS = "gpus"
"""Name of the counter set."""


def device_name(gpu: Gpu) -> str:
    """The GPU's name in slices and allocations."""
    return _name_of(gpu.uuid)


def _name_of(uuid: str) -> str:
    return f"gpu-{key_of(uuid)}"


def memory_text(mib: int) -> str:
    """Kubernetes quantity of so many MiB."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def slice_spec(state: State, node_name: str) -> Json | None:
    """The spec of the slice with the node's GPUs; None if there should be none."""
    return slice_specs(state, node_name).get("")


def slice_specs(state: State, node_name: str) -> dict[str, Json]:
    """The specs of the node's slices, by the end of their names. Their generation is for the writer to raise.

    Until the first read of driver and kubelet, they are left as they are: see `is_known`.

    No device moves from one slice to another. So a new order is one write of one slice, and scheduling goes on.
    """
    if state.node.mode is not Mode.DRA:
        return {}
    devices = _Devices(state)
    contents: dict[str, Json] = {"": {"devices": devices.gpus()}}
    if sets := devices.sets():
        contents["-counters"] = {"sharedCounters": [{"name": COUNTERS, "counters": devices.counters()}]}
        contents |= {name: {"devices": found} for name, found in sets.items()}
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": len(contents)}
    common = {"driver": DRA_DRIVER, "nodeName": node_name, "pool": pool}
    return {name: common | content for name, content in contents.items()}


def is_known(state: State) -> bool:
    """Whether the mode, the GPUs, the isolation drivers and kubelet's allocations were read in this run."""
    return bool(
        state.node.mode_known
        and (state.node.mode is not Mode.DRA or (state.gpus.by_uuid and not state.isolation.unheard))
        and state.holdings.listed is not None
    )


@dataclass(frozen=True)
class _Devices:
    """The devices of a node."""

    state: State

    @cached_property
    def usable(self) -> list[Gpu]:
        """GPUs that can be devices, in NVML's order."""
        return [gpu for gpu in self.state.gpus.by_index if gives_units(gpu, self.state)]

    @cached_property
    def mbps(self) -> Mbps:
        """Bandwidths between the usable GPUs."""
        known = self.state.gpus.known_topology
        places = [known.gpus.index(gpu.uuid) for gpu in self.usable]
        return tuple(tuple(known.mbps[i][j] for j in places) for i in places)

    @cached_property
    def used(self) -> Counter[str]:
        """MiB of each GPU that claims have."""
        used = Counter[str]()
        for claim in self.state.claims.prepared.values():
            for gpu in claim.used:
                used[gpu.uuid] += gpu.memory_mib
        return used

    @cached_property
    def free(self) -> frozenset[int]:
        """Places of the usable GPUs that a claim can have whole."""
        usable = enumerate(self.usable)
        return frozenset(n for n, gpu in usable if gpu.uuid not in self.used and not self.taints(gpu))

    @cached_property
    def kept_sets(self) -> dict[str, frozenset[str]]:
        """Sets that claims have, by name: without the device, the scheduler would give their GPUs again."""
        members: dict[str, set[str]] = {}
        for claim in self.state.claims.prepared.values():
            for gpu in claim.used:
                if gpu.device != _name_of(gpu.uuid):
                    members.setdefault(gpu.device, set()).add(gpu.uuid)
        return {name: frozenset(uuids) for name, uuids in members.items()}

    @property
    def has_sets(self) -> bool:
        return self.offers_sets or bool(self.kept_sets)

    @property
    def offers_sets(self) -> bool:
        """Without counters, the scheduler would give the GPUs of a set to others as well."""
        return self.state.policy.gpu_sets and not self.state.claims.drops_counters

    def taints(self, gpu: Gpu) -> list[Json]:
        return [*taints(gpu, self.state)]

    def gpus(self) -> list[Json]:
        """Under binpack the fullest first, under spread the emptiest; full ones last.

        Of empty GPUs, those come first without which good sets are left.
        """
        unit, used = self.state.policy.unit, self.used
        sign = -1 if self.state.node.placement is Placement.BINPACK else 1
        places = {place: n for n, place in enumerate(singles(self.mbps, self.free))}

        def rank(numbered: tuple[int, Gpu]) -> tuple[bool, float, int]:
            n, gpu = numbered
            place = places.get(n, len(places) + n)
            if gpu.only_whole:
                return gpu.uuid in used, 0.0, place
            return used[gpu.uuid] > gpu.memory_mib - unit.mib, sign * used[gpu.uuid] / gpu.memory_mib, place

        ordered = [gpu for _, gpu in sorted(enumerate(self.usable), key=rank)]
        return [self._gpu(gpu) for gpu in ordered[:PART]]

    def counters(self) -> Json:
        uuids = {gpu.uuid for gpu in self.usable}.union(*self.kept_sets.values())
        return _counters(sorted(uuids))

    def sets(self) -> dict[str, list[Json]]:
        """Devices of sets by the end of their slice's name; each slice best first."""
        found: dict[str, list[Json]] = {}
        for size in SIZES if self.has_sets else ():
            names = set()
            for part in range(MOST_SETS // PART if self.offers_sets else 0):
                ordered = in_order(self.mbps, size, part, self.free)
                members = [frozenset(self.usable[n].uuid for n in one) for one in ordered]
                if devices := [self._set(set_name(one), one) for one in members]:
                    found[f"-sets-{size}-{part}"] = devices
                    names |= {device["name"] for device in devices}
            kept = {name: uuids for name, uuids in self.kept_sets.items() if len(uuids) == size and name not in names}
            if kept:
                found[f"-sets-{size}-kept"] = [self._set(name, kept[name]) for name in sorted(kept)]
        return found

    def _gpu(self, gpu: Gpu) -> Json:
        device: Json = {
            "name": device_name(gpu),
            "attributes": gpu_attributes(gpu, device_name(gpu), self._domain(gpu), self.state),
        }
        if not gpu.only_whole:  # else there is no memory to share out, and one claim has the device
            device |= {"allowMultipleAllocations": True, "capacity": _capacity(gpu, self.state)}
        if self.has_sets:
            device["consumesCounters"] = [{"counterSet": COUNTERS, "counters": _counters([gpu.uuid])}]
        if tainted := self.taints(gpu):
            device["taints"] = tainted
        return device

    def _domain(self, gpu: Gpu) -> str:
        """What is the same for GPUs that reach each other over NVLinks: the name of the first of them."""
        topology = self.state.gpus.known_topology
        start = topology.gpus.index(gpu.uuid)
        reached, found = {start}, [start]
        for i in found:
            new = [j for j, link in enumerate(topology.links[i]) if link and link.nvlinks and j not in reached]
            reached.update(new)
            found += new
        return _name_of(topology.gpus[min(reached)])

    def _set(self, name: str, uuids: frozenset[str]) -> Json:
        by_uuid, topology = self.state.gpus.by_uuid, self.state.gpus.known_topology
        gpus = sorted((by_uuid[uuid] for uuid in uuids if uuid in by_uuid), key=lambda gpu: gpu.index)
        places = [topology.gpus.index(gpu.uuid) for gpu in gpus]
        slowest = min((topology.mbps[i][j] for i in places for j in places if i < j), default=0)
        domains = {self._domain(gpu) for gpu in gpus}
        device: Json = {
            "name": name,
            "attributes": set_attributes(
                gpus, size=len(uuids), name=name, domains=domains, link_gbps=slowest // 1000, state=self.state
            ),
            "consumesCounters": [{"counterSet": COUNTERS, "counters": _counters(sorted(uuids))}],
        }
        if tainted := {taint["key"]: taint for gpu in gpus for taint in self.taints(gpu)}:
            device["taints"] = [*tainted.values()]
        return device


def _counters(uuids: Iterable[str]) -> Json:
    return {_name_of(uuid): {"value": "1"} for uuid in uuids}


def _capacity(gpu: Gpu, state: State) -> Json:
    memory, unit = _memory(gpu, state.policy.unit), memory_text(state.policy.unit.mib)
    memory_range = {"min": unit, "max": memory}
    if memory != unit:
        # The API server refuses the slice if minimum and step together are more than the capacity.
        memory_range["step"] = unit
    step = state.policy.core_step
    return {
        "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": memory_range}},
        "cores": {
            "value": str(CORE_PERCENT_PER_GPU),
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "step": str(step), "max": str(CORE_PERCENT_PER_GPU // step * step)},
            },
        },
        "sharers": {"value": str(most_sharers(state)), "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }


def _memory(gpu: Gpu, unit: MemoryUnit) -> str:
    """Whole units: the API server takes no other default."""
    return memory_text(gpu.memory_mib // unit.mib * unit.mib)
