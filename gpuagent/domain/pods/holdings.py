"""Reads kubelet's allocations: the GPU of each device id, and the mode that advertised the id."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.exchange import minor_of
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName
from gpuagent.domain.sharing.mode import GPU_MEM, Mode
from gpuagent.domain.sharing.units import parse_id

NVIDIA_GPU = "nvidia.com/gpu"
"""Resource of NVIDIA's own device plugin."""

FOREIGN = "foreign"
"""Stands for the mode of a unit that another device plugin advertised: NVIDIA's own, or the old gpushare plugin."""

Allocation = tuple[str, frozenset[str]]
"""Resource and device ids."""


_OLD_ID = "-_-"
"""In every id of the old gpushare plugin: ``GPU-…-_-7``."""


FIRST_ACTIVE_ONLY = 34
"""Kubelet 1.34 was the first whose pod-resources API leaves out pods that have ended."""


def lists_ended(kubelet: str) -> bool:
    """Whether a kubelet of that version may still list devices for a pod that has ended.

    Up to 1.33, kubelet lists devices of the pod that it admitted last. An unknown version may do the same.
    """
    minor = minor_of(kubelet)
    return minor is None or minor < FIRST_ACTIVE_ONLY


def with_annotated_gpus(holding: Holding, pod: Pod | None) -> Holding:
    """`holding` with the GPUs that its pod's annotations name, if the ids are of the old gpushare plugin.

    That plugin ignores the ids that kubelet picks: the container gets the GPU of the annotation.
    """
    return replace(holding, annotated=pod.share_gpus) if pod is not None and _is_old(holding) else holding


def _is_old(holding: Holding) -> bool:
    return holding.resource == GPU_MEM and any(_OLD_ID in device_id for device_id in holding.ids)


def given_by_another(ids: Collection[str]) -> bool:
    """Whether all these ids are of another plugin, whose container outlives it."""
    return bool(ids) and not any(map(parse_id, ids))


def of_another_pod(pod: Pod, holdings: Iterable[Holding], resources: Collection[str]) -> bool:
    """Whether these holdings, listed under the pod's name, are another pod's: it does not request one of them.

    A pod that took the name of another one often has other containers, or other sizes.
    """
    # Without a function call for each container: pods may have hundreds.
    containers = {container.name: container for container in pod.containers}
    for holding in holdings:
        resource = holding.resource
        if resource not in resources:
            continue
        container = containers.get(holding.owner.container)
        if container is None:
            return True
        if container.limits.get(resource) != len(holding.ids) and resource not in container.unread:
            return True
    return False


def located(holding: Holding, gpus: Mapping[str, Gpu]) -> Iterator[tuple[str, Mode | str]]:
    """GPU UUID and mode (or `FOREIGN`) of each device id of `holding` that is on one of `gpus`.

    Ids of other plugins count if they name one of `gpus`: by UUID (`GPU-…`, `GPU-…::2`), or by NVML index for
    `nvidia.com/gpu`. Ids of the old gpushare plugin are on the GPUs in `annotated`; without these, they may be on any
    GPU. Other ids, such as those of network cards, are no GPUs.
    """
    by_key = {gpu.key: gpu.uuid for gpu in gpus.values()}
    for unit, count in holding.units:
        if unit.gpu_key in by_key:
            yield from repeat((by_key[unit.gpu_key], unit.kind.mode), count)
    for device_id in holding.foreign_ids:
        for uuid in foreign(holding, device_id, gpus):
            yield uuid, FOREIGN


def foreign(holding: Holding, device_id: str, gpus: Mapping[str, Gpu]) -> Iterator[str]:
    """UUIDs of the GPUs that a device id of another plugin stands for."""
    if _is_old(holding) and any(gpu.uuid in device_id for gpu in gpus.values()):
        yield from [gpu.uuid for gpu in gpus.values() if gpu.minor in (holding.annotated or ())] or gpus
        return
    for gpu in gpus.values():
        if gpu.uuid in device_id or (holding.resource == NVIDIA_GPU and device_id == str(gpu.index)):
            yield gpu.uuid


def held_otherwise(
    holdings: Iterable[Holding], gpus: Mapping[str, Gpu], mode: Mode, *, exclusive: bool
) -> dict[str, list[Holding]]:
    """GPU UUID to the holdings on it that another mode than `mode`, or another plugin, advertised.

    `exclusive`: this agent serves mode `default`. If it does not, pods of other plugins are normal in that mode.
    """
    own = {mode, FOREIGN} if mode is Mode.DEFAULT and not exclusive else {mode}
    blocked: dict[str, list[Holding]] = {}
    for holding in holdings:
        for uuid in dict.fromkeys(uuid for uuid, sold_in in located(holding, gpus) if sold_in not in own):
            blocked.setdefault(uuid, []).append(holding)
    return blocked


def holder(resource: str, ids: frozenset[str], holdings: Collection[Holding]) -> ContainerRef | None:
    """The holder of `ids`. Kubelet does not list init containers: for one, the pod whose container reuses its ids."""
    reusers = [h for h in holdings if h.resource == resource and h.ids & ids]
    exact = [h.owner for h in reusers if h.ids == ids]
    if exact:
        return exact[0]
    pods = {h.owner.pod for h in reusers}
    return ContainerRef(pods.pop(), "") if len(pods) == 1 else None


@dataclass(frozen=True, slots=True)
class Record:
    """Kubelet's allocations of one container.

    Attributes:
        container: the container. If only the checkpoint lists it, the UID replaces the name of its pod.
        units: resource to device ids.
        pod: its pod as the API server has it; None if that is not certain.
        uid: UID of its pod in the checkpoint; empty if only pod-resources lists it.
    """

    container: ContainerRef
    units: Mapping[str, frozenset[str]]
    pod: Pod | None
    uid: str


@dataclass(frozen=True)
class Recorded:
    """All of kubelet's allocations at one moment, by pod-resources and by the checkpoint.

    Attributes:
        pods: as the API server has them.
        gpus: UUID of the GPU by device id.
    """

    holdings: Sequence[Holding]
    checkpoint: Sequence[CheckpointEntry]
    pods: Sequence[Pod]
    gpus: Mapping[str, str]

    @cached_property
    def containers(self) -> Mapping[Allocation, Sequence[Record]]:
        """Allocations to the containers that have exactly these ids; those that pod-resources lists come first.

        An init container has the same ids as the container that reuses them. Pod-resources leaves ordinary init
        containers out; the checkpoint has them, and the UIDs of pods.
        """
        listed = {(h.owner.container, h.resource, h.ids): h.owner.pod for h in self.holdings}
        names: dict[str, PodName] = {}
        units: dict[tuple[str, PodName, str], dict[str, frozenset[str]]] = defaultdict(dict)
        for entry in sorted(self.checkpoint, key=lambda e: (e.container, e.resource, e.ids) not in listed):
            name = listed.pop((entry.container, entry.resource, entry.ids), None)
            if name and name.namespace:
                names[entry.pod_uid] = name
            units[entry.pod_uid, PodName("", entry.pod_uid), entry.container][entry.resource] = entry.ids
        for (container, resource, ids), name in listed.items():
            units["", name, container][resource] = ids
        living = {pod.name: pod for pod in self.pods if not pod.ended}
        by_uid = {pod.uid: pod for pod in living.values()}
        found: dict[Allocation, list[Record]] = defaultdict(list)
        for (uid, name, container), held in units.items():
            pod = by_uid.get(uid)
            named = pod.name if pod else names.get(uid, name)
            if pod is None and (same := living.get(named)) and (same.static or not uid):
                pod = same  # a static pod has another UID in the checkpoint
            record = Record(ContainerRef(named, container), held, pod, uid)
            for allocation in held.items():
                found[allocation].append(record)
        return found

    @cached_property
    def sharers(self) -> Mapping[str, tuple[set[PodName], set[ContainerRef]]]:
        """GPU UUID to the pods and the containers that have units of it."""
        found: dict[str, tuple[set[PodName], set[ContainerRef]]] = defaultdict(lambda: (set(), set()))
        for holding in self.holdings:
            for uuid in self.gpus_of(holding):
                found[uuid][0].add(holding.owner.pod)
                found[uuid][1].add(holding.owner)
        return found

    def gpus_of(self, holding: Holding) -> set[str]:
        return {uuid for device_id in holding.ids if (uuid := self.gpus.get(device_id))}
