"""The node's ResourceSlices: a device for each GPU, whose memory and compute the scheduler shares out, and on request
devices for sets of linked GPUs.

The scheduler takes the first device that fits, so the order of the devices is the placement. A request that names no
memory gets all of it: whole GPUs and shares exclude each other by arithmetic. The name of a device never changes, as
allocations name it.

Source of the limits: k8s.io/api/resource/v1, types.go; what the API server accepts was tried on 1.36.3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from gpuagent.domain.dra.device_attributes import gpu_attributes, set_attributes
from gpuagent.domain.dra.device_taints import taints
from gpuagent.domain.dra.gpu_sets import MOST_SETS, PART, SIZES, Mbps, ranked_sets, set_name, single_gpus_first
from gpuagent.domain.dra.ledger import most_sharers
from gpuagent.domain.gpus.gpu import Gpu, key_of
from gpuagent.domain.node_state.stored_slices import CONSUMABLE, PARTITIONABLE, TAINTS
from gpuagent.domain.placement.sharer_limits import GpuUse, sharer_limits
from gpuagent.domain.sharing.claim import ClaimedGpu
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
    gib, rest = divmod(mib, 1024)
    return f"{mib}Mi" if rest else f"{gib}Gi"


def slice_spec(state: State, node_name: str) -> Json | None:
    """The spec of the slice with the node's GPUs; None if there should be none."""
    specs = slice_specs(state, node_name)
    return specs.get("")


def slice_specs(state: State, node_name: str) -> dict[str, Json]:
    """The specs of the node's slices, by the end of their names. Their generation is for the writer to raise.

    Until the first read of driver and kubelet, they are left as they are: see `is_known`.

    No device moves from one slice to another. So a new order is one write of one slice, and scheduling goes on.
    """
    if state.node.mode is not Mode.DRA:
        return {}
    devices = _Devices(state)
    contents: dict[str, Json] = {"": {"devices": devices.gpus()}}
    if devices.sets:
        # A slice has either counters or devices.
        counter_set = {"name": COUNTERS, "counters": devices.counters()}
        contents["-counters"] = {"sharedCounters": [counter_set]}
        for name, set_devices in devices.sets.items():
            contents[name] = {"devices": set_devices}
    common = {
        "driver": DRA_DRIVER,
        "nodeName": node_name,
        "pool": {
            "name": node_name,
            "generation": 1,
            "resourceSliceCount": len(contents),
        },
    }
    return {name: common | content for name, content in contents.items()}


def is_known(state: State) -> bool:
    """Whether the mode, the GPUs, the isolation drivers and kubelet's allocations were read in this run."""
    if not state.node.mode_known or state.holdings.listed is None:
        return False
    if state.node.mode is not Mode.DRA:
        return True
    return bool(state.gpus.by_uuid) and not state.isolation.unreported


@dataclass(frozen=True)
class _Devices:
    """The devices of a node."""

    state: State

    @cached_property
    def usable(self) -> list[Gpu]:
        """GPUs that can be devices, in NVML's order."""
        giving = [gpu for gpu in self.state.gpus.by_index if gives_units(gpu, self.state)]
        absent = {gpu.uuid for gpu in left_out(self.state)}
        if not self._keeps_counters:
            # Only counters show the scheduler that a set has a GPU, so it would give the GPU to another claim as well.
            absent.update(*self.claimed_sets.values())
        return [gpu for gpu in giving if gpu.uuid not in absent]

    @cached_property
    def mbps(self) -> Mbps:
        """Bandwidths between the usable GPUs."""
        topology = self.state.gpus.known_topology
        positions = [topology.gpus.index(gpu.uuid) for gpu in self.usable]
        rows = []
        for position in positions:
            row = topology.mbps[position]
            rows.append(tuple(row[other] for other in positions))
        return tuple(rows)

    @cached_property
    def used(self) -> Counter[str]:
        """MiB of each GPU that claims have."""
        used = Counter[str]()
        for claimed in self._claimed():
            used[claimed.uuid] += claimed.memory_mib
        return used

    @cached_property
    def used_cores(self) -> Counter[str]:
        """Percent of each GPU's compute that claims have."""
        used = Counter[str]()
        for claimed in self._claimed():
            used[claimed.uuid] += claimed.cores
        return used

    def _claimed(self) -> Iterator[ClaimedGpu]:
        for claim in self.state.claims.prepared.values():
            yield from claim.used

    @cached_property
    def free(self) -> frozenset[int]:
        """Numbers of the usable GPUs that a claim can have whole."""
        free = set()
        for number, gpu in enumerate(self.usable):
            # A new claim gets no GPU with a taint.
            if gpu.uuid not in self.used and not self.taints(gpu):
                free.add(number)
        return frozenset(free)

    @cached_property
    def claimed_sets(self) -> dict[str, frozenset[str]]:
        """Sets that claims have, by name: without the device, the scheduler would give their GPUs again."""
        members: dict[str, set[str]] = {}
        for claimed in self._claimed():
            is_single = claimed.device == _name_of(claimed.uuid)
            if is_single:
                continue
            of_set = members.setdefault(claimed.device, set())
            of_set.add(claimed.uuid)
        return {name: frozenset(uuids) for name, uuids in members.items()}

    @property
    def offers_sets(self) -> bool:
        return self.state.policy.gpu_sets

    @property
    def _keeps_counters(self) -> bool:
        """Whether the API server keeps the counters of devices."""
        return PARTITIONABLE not in self.state.claims.gates_off

    def taints(self, gpu: Gpu) -> list[Json]:
        return [*taints(gpu, self.state)]

    def gpus(self) -> list[Json]:
        """Under binpack the fullest first, under spread the emptiest; full ones last.

        Of empty GPUs, those come first without which good sets are left.
        """
        ordered = single_gpus_first(self.mbps, self.free)
        places = {number: place for place, number in enumerate(ordered)}

        def rank(number: int) -> tuple[bool, float, int]:
            is_full, part = self._fullness(self.usable[number])
            place = places.get(number, len(places) + number)
            return is_full, part, place

        count = len(self.usable)
        numbers = sorted(range(count), key=rank)
        devices = []
        # The first taint or counter halves the devices that the API server takes in a slice.
        for number in numbers[:PART]:
            gpu = self.usable[number]
            devices.append(self._gpu(gpu))
        return devices

    def _fullness(self, gpu: Gpu) -> tuple[bool, float]:
        """Whether the GPU is full, and the part in use, which is negative under binpack."""
        if gpu.only_whole:
            return gpu.uuid in self.used, 0.0
        used_mib = self.used[gpu.uuid]
        free_mib = gpu.memory_mib - used_mib
        is_full = free_mib < self.state.policy.unit.mib
        part = used_mib / gpu.memory_mib
        if self.state.node.placement is Placement.BINPACK:
            part = -part
        return is_full, part

    @cached_property
    def sharer_limits(self) -> Mapping[str, int]:
        """How many claims may share each GPU now."""
        most = most_sharers(self.state)
        pace = self.state.claims.spread_pace
        is_spread = self.state.node.placement is Placement.SPREAD
        if is_spread and not pace.lifted:
            uses = [self._use(gpu) for gpu in self.usable if not gpu.only_whole]
            return sharer_limits(uses, most, pace.patience)
        return {gpu.uuid: most for gpu in self.usable}

    def _use(self, gpu: Gpu) -> GpuUse:
        pace = self.state.claims.spread_pace
        return GpuUse(
            uuid=gpu.uuid,
            free_mib=gpu.memory_mib - self.used[gpu.uuid],
            free_cores=CORE_PERCENT_PER_GPU - self.used_cores[gpu.uuid],
            accepts_claims=not self._fullness(gpu)[0] and not self.taints(gpu),
            shares=pace.shares.get(gpu.uuid, 0),
            rested=pace.rested.get(gpu.uuid, 0),
        )

    def counters(self) -> Json:
        """A counter for each GPU that a device can have, also of sets whose GPUs are not usable any more."""
        usable = {gpu.uuid for gpu in self.usable}
        uuids = usable.union(*self.claimed_sets.values())
        return _counters(sorted(uuids))

    @cached_property
    def sets(self) -> dict[str, list[Json]]:
        """Devices of sets by the end of their slice's name; each slice best first. Without the gate, there are none."""
        slices: dict[str, list[Json]] = {}
        if self._keeps_counters:
            for size in SIZES:
                slices |= self._sets_of(size)
        return slices

    def _sets_of(self, size: int) -> dict[str, list[Json]]:
        """The same for sets of one size."""
        slices: dict[str, list[Json]] = {}
        offered: set[str] = set()
        count = MOST_SETS // PART if self.offers_sets else 0
        for part in range(count):
            sets = self._offered_sets(size, part)
            if sets:
                slices[f"-sets-{size}-{part}"] = self._sets(sets)
                offered |= sets.keys()
        # Sets that claims have, and that would not be published otherwise.
        kept = {}
        for name in sorted(self.claimed_sets.keys() - offered):
            uuids = self.claimed_sets[name]
            if len(uuids) == size:
                kept[name] = uuids
        if kept:
            slices[f"-sets-{size}-kept"] = self._sets(kept)
        return slices

    def _sets(self, sets: Mapping[str, frozenset[str]]) -> list[Json]:
        """The devices of sets with these UUIDs."""
        return [self._set(name, uuids) for name, uuids in sets.items()]

    def _offered_sets(self, size: int, part: int) -> dict[str, frozenset[str]]:
        """Name and UUIDs of each set of usable GPUs in one slice, best first."""
        sets = {}
        ordered = ranked_sets(self.mbps, size, part, self.free)
        for numbers in ordered:
            uuids = frozenset(self.usable[number].uuid for number in numbers)
            sets[set_name(uuids)] = uuids
        return sets

    def _gpu(self, gpu: Gpu) -> Json:
        name = device_name(gpu)
        device: Json = {
            "name": name,
            "attributes": gpu_attributes(gpu, name, self._domain(gpu), self.state),
        }
        if gpu.only_whole:
            pass  # there is no memory to share out, and one claim has the device
        elif CONSUMABLE in self.state.claims.gates_off:
            device["capacity"] = _whole_capacity(gpu, self.state)
        else:
            device["allowMultipleAllocations"] = True
            device["capacity"] = _capacity(gpu, self.sharer_limits[gpu.uuid], self.state)
        # The scheduler takes no device that consumes counters which are not there: without sets, there are none.
        if self.sets:
            device["consumesCounters"] = [_consumed([gpu.uuid])]
        tainted = self.taints(gpu)
        if tainted:
            device["taints"] = tainted
        return device

    def _domain(self, gpu: Gpu) -> str:
        """What is the same for GPUs that reach each other over NVLinks: the name of the first of them."""
        topology = self.state.gpus.known_topology
        start = topology.gpus.index(gpu.uuid)
        reached = {start}
        to_visit = [start]
        while to_visit:
            links = topology.links[to_visit.pop()]
            for position, link in enumerate(links):
                if link and link.nvlinks and position not in reached:
                    reached.add(position)
                    to_visit.append(position)
        return _name_of(topology.gpus[min(reached)])

    def _set(self, name: str, uuids: frozenset[str]) -> Json:
        by_uuid = self.state.gpus.by_uuid
        gpus = [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]  # a claim may have GPUs that are gone
        gpus.sort(key=lambda gpu: gpu.index)
        attributes = set_attributes(
            gpus,
            size=len(uuids),
            name=name,
            domains={self._domain(gpu) for gpu in gpus},
            link_gbps=self._slowest_mbps(gpus) // 1000,
            state=self.state,
        )
        device: Json = {
            "name": name,
            "attributes": attributes,
            "consumesCounters": [_consumed(sorted(uuids))],
        }
        # The API server takes each key once.
        tainted: dict[str, Json] = {}
        for gpu in gpus:
            tainted |= {taint["key"]: taint for taint in self.taints(gpu)}
        # Without taints, only a set that a claim has is published with such a GPU.
        if tainted and TAINTS not in self.state.claims.gates_off:
            device["taints"] = list(tainted.values())
        return device

    def _slowest_mbps(self, gpus: Iterable[Gpu]) -> int:
        """Of the links between these GPUs; 0 if there is none."""
        topology = self.state.gpus.known_topology
        positions = sorted(topology.gpus.index(gpu.uuid) for gpu in gpus)
        bandwidths = []
        for low, high in combinations(positions, 2):
            row = topology.mbps[low]
            bandwidths.append(row[high])
        return min(bandwidths, default=0)


def left_out(state: State) -> list[Gpu]:
    """GPUs that are not published, as the API server does not keep the taints that they need.

    A GPU is the same device when it comes back, so claims that have it are not disturbed.
    """
    if TAINTS not in state.claims.gates_off:
        return []
    return [gpu for gpu in state.gpus.by_index if any(taints(gpu, state))]


def _consumed(uuids: Iterable[str]) -> Json:
    return {"counterSet": COUNTERS, "counters": _counters(uuids)}


def _counters(uuids: Iterable[str]) -> Json:
    return {_name_of(uuid): {"value": "1"} for uuid in uuids}


def _whole_capacity(gpu: Gpu, state: State) -> Json:
    """Of a GPU that one claim has: what claims can select by. Classes of shares select devices with `sharers`."""
    return {
        "memory": {"value": _memory(gpu, state.policy.unit)},
        "cores": {"value": str(CORE_PERCENT_PER_GPU)},
    }


def _capacity(gpu: Gpu, sharers: int, state: State) -> Json:
    unit = state.policy.unit
    memory = _memory(gpu, unit)
    # A monitor asks for none of the memory and for no place among the sharers: with adminAccess too, the scheduler
    # compares amounts with what others leave. Prepare refuses such amounts of other claims.
    memory_range = {"min": "0", "step": memory_text(unit.mib), "max": memory}
    step = state.policy.core_step
    # The API server takes only a maximum that is a whole number of steps.
    most_cores = CORE_PERCENT_PER_GPU // step * step
    cores_range = {"min": "0", "step": str(step), "max": str(most_cores)}
    return {
        "memory": {
            "value": memory,
            "requestPolicy": {"default": memory, "validRange": memory_range},
        },
        "cores": {
            "value": str(CORE_PERCENT_PER_GPU),
            "requestPolicy": {"default": "0", "validRange": cores_range},
        },
        "sharers": {
            "value": str(sharers),
            "requestPolicy": {"default": "1", "validValues": ["0", "1"]},
        },
    }


def _memory(gpu: Gpu, unit: MemoryUnit) -> str:
    """Whole units: the API server takes no other default."""
    units = gpu.memory_mib // unit.mib
    return memory_text(units * unit.mib)
