"""The memory that kubelet allocated to the containers of a pod, and limits that differ from it."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuagent.domain.deviceplugin.memory_shares import spread
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from gpuagent.domain.sharing.units import parse_id
from gpuagent.domain.state import State

OnGpu = tuple[str, Kind]
"""Key of a GPU and kind of units."""
Units = Mapping[OnGpu, int]
Limits = Mapping[str, int]
"""Name of a container to its units in all."""


@dataclass(frozen=True, slots=True)
class AllocatedMemory:
    """What kubelet allocated to the containers of a pod.

    Attributes:
        lasting: name of each container with memory, without init containers that end before the others begin.
    """

    lasting: Mapping[str, Units]

    @classmethod
    def of(cls, pod: Pod, state: State) -> "AllocatedMemory":
        init_names = pod.init_names
        lasting = {}
        for entry in state.holdings.checkpoint:
            is_own = entry.pod_uid == pod.uid and entry.resource == GPU_MEM
            if is_own and entry.container not in init_names:
                units = _count(entry.ids)
                if units:
                    lasting[entry.container] = units
        return cls(lasting)

    def units(self, container: str) -> int:
        """Units of a container in all."""
        return sum(self.lasting.get(container, {}).values())

    def all_units(self, limits: Limits) -> Limits:
        """The units of every container, with these limits in place of the allocations."""
        return {name: limits.get(name, self.units(name)) for name in self.lasting}

    def larger(self, limits: Limits, others: Limits) -> Limits:
        """For each container the larger limit, as far as it is above the allocation."""
        larger = {}
        for name in self.lasting:
            units = self.units(name)
            highest = max(limits.get(name, units), others.get(name, units))
            if highest > units:
                larger[name] = highest
        return larger

    def smaller(self, limits: Limits, others: Limits) -> Limits:
        """For each container the smaller limit, as far as it differs from the allocation."""
        smaller = {}
        for name in self.lasting:
            units = self.units(name)
            lowest = min(limits.get(name, units), others.get(name, units))
            if lowest != units:
                smaller[name] = lowest
        return smaller

    def beyond(self, limits: Limits) -> Units:
        """The units that these limits take beyond the allocations."""
        beyond: Counter[OnGpu] = Counter()
        for name, limit in limits.items():
            on_gpus = self.lasting.get(name)
            if on_gpus:
                beyond.update(spread(on_gpus, limit))
                beyond.subtract(on_gpus)
        return {key: count for key, count in beyond.items() if count > 0}


def lacking_units(needed: Units, extra: frozenset[str]) -> Units:
    """The units that are needed and not there."""
    lacking = Counter(needed)
    lacking.subtract(_count(extra))
    return {key: count for key, count in sorted(lacking.items()) if count > 0}


def enough_units(needed: Units, extra: frozenset[str]) -> frozenset[str]:
    """As many of the extra units as are needed."""
    missing = Counter(needed)
    kept = set()
    for device_id in sorted(extra):
        unit = parse_id(device_id)
        if unit is not None and missing[unit.gpu_key, unit.kind] > 0:
            missing[unit.gpu_key, unit.kind] -= 1
            kept.add(device_id)
    return frozenset(kept)


def _count(ids: Collection[str]) -> Counter[OnGpu]:
    """Memory units by GPU and kind."""
    counts: Counter[OnGpu] = Counter()
    for unit in map(parse_id, ids):
        if unit is not None and unit.kind.is_memory:
            counts[unit.gpu_key, unit.kind] += 1
    return counts
