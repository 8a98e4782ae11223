"""Indexes of a snapshot. Most events change neither pods nor kubelet's allocations, so the next snapshot keeps them.

What an index finds is worked out when it is first asked for.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpuagent.domain.pods.holdings import Recorded, of_another_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerSpec, Holding, Pod, PodName

FirstAsks = dict[tuple[str, int | None], list[tuple[Pod, ContainerSpec]]]
"""Resource and units to pods, each with the container that asks."""


@dataclass(frozen=True)
class PodIndex:
    """The living pods.

    Attributes:
        living: by name, in the order in which the agent saw them; of one name, the newest.
        resources: of the mode in force.
    """

    living: Mapping[PodName, Pod]
    resources: Collection[str]

    @cached_property
    def decided(self) -> tuple[Pod, ...]:
        """Pods with a scheduler's decision in their annotations."""
        return tuple(pod for pod in self.living.values() if pod.annotations)

    @cached_property
    def arrival(self) -> dict[PodName, int]:
        """Number of each pod in the order in which the agent saw them."""
        return {name: number for number, name in enumerate(self.living)}

    @cached_property
    def by_uid(self) -> dict[str, Pod]:
        """Pods by UID."""
        return {pod.uid: pod for pod in self.living.values()}

    @cached_property
    def first_asks(self) -> FirstAsks:
        """Resource and units to the pods whose first container with a share requests them.

        Units are None if they could not be read. The pods are in the order in which the agent saw them, which is also
        the order of kubelet's own watch.
        """
        asks: FirstAsks = defaultdict(list)
        for pod in self.living.values():
            first = self._first_with_share(pod.containers)
            if first is None:
                continue
            for resource in self._asked(first):
                units = first.limits.get(resource)
                asks[resource, units].append((pod, first))
        return asks

    def _first_with_share(self, containers: Iterable[ContainerSpec]) -> ContainerSpec | None:
        for container in containers:
            if self._asked(container):
                return container
        return None

    def _asked(self, container: ContainerSpec) -> list[str]:
        """The resources of the mode that the container requests."""
        return [resource for resource in self.resources if container.asks(resource)]


@dataclass(frozen=True)
class AllocationIndex:
    """Kubelet's allocations and the pods that have them.

    Attributes:
        holdings: of pods that have not ended.
        checkpoint: from the same moment.
        pods: all of them.
        living: by name.
        units: advertised device id to GPU UUID.
        resources: every resource of the agent, in any mode.
    """

    holdings: tuple[Holding, ...]
    checkpoint: tuple[CheckpointEntry, ...]
    pods: tuple[Pod, ...]
    living: Mapping[PodName, Pod]
    units: Mapping[str, str]
    resources: Collection[str]

    @cached_property
    def with_devices(self) -> frozenset[str]:
        """UIDs of the pods for which kubelet has recorded something.

        The checkpoint has UIDs, but for a static pod its UID differs from the API server's. Without UIDs, devices that
        a pod does not request are those of a former pod of its name.
        """
        recorded = frozenset([entry.pod_uid for entry in self.checkpoint])
        by_name: dict[PodName, list[Holding]] = defaultdict(list)
        for holding in self.holdings:
            by_name[holding.owner.pod].append(holding)
        named = []
        for name, held in by_name.items():
            pod = self.living.get(name)
            # Where the checkpoint was read, it has the UIDs of all but static pods.
            if pod is None or (recorded and not pod.static):
                continue
            if not of_another_pod(pod, held, self.resources):
                named.append(pod.uid)
        return recorded.union(named)

    @cached_property
    def unstarted(self) -> tuple[Pod, ...]:
        """Living pods with devices recorded by kubelet, and without a started container."""
        waiting = [pod for pod in self.living.values() if not pod.container_ids]
        return tuple([pod for pod in waiting if pod.uid in self.with_devices])

    @cached_property
    def placed(self) -> list[tuple[Holding, frozenset[str]]]:
        """Holdings, each with the UUIDs of the GPUs of its advertised units."""
        placed = []
        for holding in self.holdings:
            uuids = map(self.units.get, holding.ids)
            placed.append((holding, frozenset(uuid for uuid in uuids if uuid)))
        return placed

    @cached_property
    def recorded(self) -> Recorded:
        """Kubelet's allocations, indexed by container and GPU."""
        return Recorded(self.holdings, self.checkpoint, self.pods, self.units)
