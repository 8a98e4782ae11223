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

_Entry = tuple[str, str, frozenset[str]]
"""Container, resource and device ids."""

_Container = tuple[str, PodName, str]
"""UID and name of the pod, one of them where the other is not known, and name of the container."""

_UnitsByContainer = Mapping[_Container, dict[str, frozenset[str]]]
_Sharers = tuple[set[PodName], set[ContainerRef]]

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
    if pod is None or not _is_old(holding):
        return holding
    return replace(holding, annotated=pod.share_gpus)


def _is_old(holding: Holding) -> bool:
    if holding.resource != GPU_MEM:
        return False
    return any(_OLD_ID in device_id for device_id in holding.ids)


def given_by_another(ids: Collection[str]) -> bool:
    """Whether all these ids are of another plugin, whose container outlives it."""
    return bool(ids) and not any(map(parse_id, ids))


def of_another_pod(
    pod: Pod,
    holdings: Iterable[Holding],
    resources: Collection[str],
) -> bool:
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
        has_other_size = container.limits.get(resource) != len(holding.ids)
        if has_other_size and resource not in container.unread:
            return True
    return False


def located(
    holding: Holding,
    gpus: Mapping[str, Gpu],
) -> Iterator[tuple[str, Mode | str]]:
    """GPU UUID and mode (or `FOREIGN`) of each device id of `holding` that is on one of `gpus`.

    Ids of other plugins count if they name one of `gpus`: by UUID (`GPU-…`, `GPU-…::2`), or by NVML index for
    `nvidia.com/gpu`. Ids of the old gpushare plugin are on the GPUs in `annotated`; without these, they may be on any
    GPU. Other ids, such as those of network cards, are no GPUs.
    """
    uuid_of = {gpu.key: gpu.uuid for gpu in gpus.values()}
    for unit, count in holding.units:
        uuid = uuid_of.get(unit.gpu_key)
        if uuid is not None:
            place = (uuid, unit.kind.mode)
            yield from repeat(place, count)
    for device_id in holding.foreign_ids:
        uuids = foreign(holding, device_id, gpus)
        for uuid in uuids:
            yield uuid, FOREIGN


def foreign(
    holding: Holding,
    device_id: str,
    gpus: Mapping[str, Gpu],
) -> Iterator[str]:
    """UUIDs of the GPUs that a device id of another plugin stands for."""
    all_gpus = gpus.values()
    named = [gpu.uuid for gpu in all_gpus if gpu.uuid in device_id]
    if named and _is_old(holding):
        annotated = holding.annotated or ()
        assigned = [gpu.uuid for gpu in all_gpus if gpu.minor in annotated]
        # Without an annotation, the container may be on any GPU.
        yield from assigned or gpus
        return
    is_of_nvidia = holding.resource == NVIDIA_GPU
    for gpu in all_gpus:
        has_index = is_of_nvidia and device_id == str(gpu.index)
        if gpu.uuid in named or has_index:
            yield gpu.uuid


def held_otherwise(
    holdings: Iterable[Holding],
    gpus: Mapping[str, Gpu],
    mode: Mode,
    *,
    exclusive: bool,
) -> dict[str, list[Holding]]:
    """GPU UUID to the holdings on it that another mode than `mode`, or another plugin, advertised.

    `exclusive`: this agent serves mode `default`. If it does not, pods of other plugins are normal in that mode.
    """
    own: set[Mode | str] = {mode}
    if mode is Mode.DEFAULT and not exclusive:
        own.add(FOREIGN)
    blocked: dict[str, list[Holding]] = {}
    for holding in holdings:
        # A holding has many units of one GPU, and counts there once.
        uuids: dict[str, None] = {}
        for uuid, sold_in in located(holding, gpus):
            if sold_in not in own:
                uuids[uuid] = None
        for uuid in uuids:
            on_gpu = blocked.setdefault(uuid, [])
            on_gpu.append(holding)
    return blocked


def holder(
    resource: str,
    ids: frozenset[str],
    holdings: Collection[Holding],
) -> ContainerRef | None:
    """The holder of `ids`. Kubelet does not list init containers: for one, the pod whose container reuses its ids."""
    pods: set[PodName] = set()
    for holding in holdings:
        if holding.resource != resource or ids.isdisjoint(holding.ids):
            continue
        if holding.ids == ids:
            return holding.owner
        pods.add(holding.owner.pod)
    # The ids of an init container may have gone to containers of several pods since. Then none of them is certain.
    is_certain = len(pods) == 1
    return ContainerRef(pods.pop(), "") if is_certain else None


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
        units, names = self._units_by_container()
        living = {pod.name: pod for pod in self.pods if not pod.ended}
        by_uid = {pod.uid: pod for pod in living.values()}
        records: dict[Allocation, list[Record]] = defaultdict(list)
        for (uid, name, container), held in units.items():
            pod = by_uid.get(uid)
            pod_name = pod.name if pod else names.get(uid, name)
            if pod is None:
                same_name = living.get(pod_name)
                pod = _of_name(same_name, uid)
            owner = ContainerRef(pod_name, container)
            record = Record(owner, held, pod, uid)
            for allocation in held.items():
                of_allocation = records[allocation]
                of_allocation.append(record)
        return records

    def _units_by_container(self) -> tuple[_UnitsByContainer, Mapping[str, PodName]]:
        """Each container to its device ids by resource, and UID to the name of a pod that both records have."""
        listed: dict[_Entry, PodName] = {}
        for holding in self.holdings:
            owner = holding.owner
            listed[owner.container, holding.resource, holding.ids] = owner.pod

        def is_unlisted(entry: CheckpointEntry) -> bool:
            return _entry(entry) not in listed

        names: dict[str, PodName] = {}
        units: dict[_Container, dict[str, frozenset[str]]] = defaultdict(dict)
        # Sorted before the loop takes entries out of `listed`.
        listed_first = sorted(self.checkpoint, key=is_unlisted)
        for entry in listed_first:
            uid = entry.pod_uid
            name = listed.pop(_entry(entry), None)
            if name and name.namespace:
                names[uid] = name
            # Only the UID identifies its pod.
            container = (uid, PodName("", uid), entry.container)
            units[container][entry.resource] = entry.ids
        # What is left is in pod-resources alone, which has no UIDs.
        for (container_name, resource, ids), name in listed.items():
            container = ("", name, container_name)
            units[container][resource] = ids
        return units, names

    @cached_property
    def sharers(self) -> Mapping[str, _Sharers]:
        """GPU UUID to the pods and the containers that have units of it."""
        # A GPU that no container has gets empty sets.
        sharers: dict[str, _Sharers] = defaultdict(lambda: (set(), set()))
        for holding in self.holdings:
            owner = holding.owner
            for uuid in self.gpus_of(holding):
                pods, containers = sharers[uuid]
                pods.add(owner.pod)
                containers.add(owner)
        return sharers

    def gpus_of(self, holding: Holding) -> set[str]:
        """UUIDs of the GPUs of its units, as far as these are advertised."""
        uuids = map(self.gpus.get, holding.ids)
        return {uuid for uuid in uuids if uuid}


def _of_name(pod: Pod | None, uid: str) -> Pod | None:
    """The living pod of a container's name, if it is the container's own.

    With a UID, the container is another pod's of the same name, unless the pod is static: that one has another UID in
    the checkpoint.
    """
    if pod is None:
        return None
    return pod if pod.static or not uid else None


def _entry(entry: CheckpointEntry) -> _Entry:
    return entry.container, entry.resource, entry.ids
