"""Devices that the pods of this node hold by kubelet's allocations, for pods where this is certain."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.pod import Holding, Pod, PodName
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Kind
from gpuagent.domain.state import State, once

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
"""Resources that schedulers write in annotations."""

Amounts = Mapping[tuple[str, Kind], int]
"""GPU UUID and kind of unit to units."""


@dataclass(frozen=True, slots=True)
class PodHeld:
    """The units of all containers of one living pod."""

    pod: Pod
    containers: Mapping[tuple[str, int], Amounts]
    """Resource and position in `spec.containers` to the units of that container."""
    unnumbered: Mapping[str, Amounts]
    """Resource to the units of sidecars and ordinary init containers, which annotations cannot contain: these
    containers have no position in `spec.containers`."""

    def of_containers(self, resource: str) -> Counter[tuple[str, Kind]]:
        """Units of `resource` of the containers in `spec.containers`."""
        total: Counter[tuple[str, Kind]] = Counter()
        for (name, _), amounts in self.containers.items():
            if name == resource:
                total.update(amounts)
        return total

    def of(self, resource: str) -> Amounts:
        """All units of `resource` that the pod holds."""
        total = self.of_containers(resource)
        total.update(self.unnumbered.get(resource, {}))
        return total


def certain(state: State, pods: Collection[Pod]) -> Iterator[PodHeld]:
    """Those of the node's `pods` that hold everything they request, by kubelet's allocations.

    The checkpoint identifies pods by UID; without it, the name counts. The result leaves out pods that have ended, pods
    in admission, and pods whose name another pod had when kubelet's allocations were read. It also leaves out a pod
    with a unit of a GPU that the agent has not read.
    """
    yield from (found for _, found in _judged(state, pods) if isinstance(found, PodHeld))


def uncertain(state: State, pods: Collection[Pod]) -> Iterator[tuple[Pod, str]]:
    """Those of the node's `pods` that hold devices and that `certain` leaves out, each with the reason."""
    yield from ((pod, found) for pod, found in _judged(state, pods) if isinstance(found, str))


def _judged(state: State, pods: Collection[Pod]) -> Iterator[tuple[Pod, PodHeld | str]]:
    """The pods that hold devices, each with its units, or why they are not certain."""
    names = {pod.name for pod in pods}
    held: dict[PodName, list[Holding]] = defaultdict(list)
    for holding in state.living_holdings if names else ():
        if holding.resource in RESOURCES and holding.owner.pod in names:
            held[holding.owner.pod].append(holding)
    recorded = state.holdings.recorded
    by_key = _unmistakable(state)
    for pod in pods:
        if pod.ended or not pod.uid or pod.name not in held:
            continue
        if not _complete(pod, held[pod.name]):
            yield pod, "kubelet's allocations do not have what its containers request"
        elif not _of_this_uid(pod, held[pod.name], recorded):
            yield pod, "kubelet's checkpoint does not have its devices under its UID"
        else:
            found = _read(pod, held[pod.name], by_key)
            yield pod, found or "it has units of a GPU that the agent has not read"


def changed_pods(state: State, before: State | None) -> list[Pod]:
    """The node's pods that are not as in `before`: `certain` may say something else of them than it did then."""
    unchanged: Collection[Pod] = ()
    by_uid = bool(state.holdings.recorded)
    if before and before.gpus.by_uuid is state.gpus.by_uuid and bool(before.holdings.recorded) is by_uid:
        was = _held(before)
        now = _held(state)
        unchanged = [pod for pod in before.pods.seen if all(was.get(of) == now.get(of) for of in (pod.name, pod.uid))]
    same = {id(pod) for pod in unchanged}
    return [pod for pod in state.pods.seen if id(pod) not in same]


@once
def _held(state: State) -> dict[object, set[object]]:
    """What `certain` reads of each pod: by name its holdings, by UID its entries in the checkpoint."""
    held: dict[object, set[object]] = defaultdict(set)
    for holding in state.living_holdings:
        held[holding.owner.pod].add(holding)
    for entry in state.holdings.recorded.items():
        held[entry[0][0]].add(entry)
    return held


def _unmistakable(state: State) -> dict[str, str]:
    """GPU key to UUID. If a lost GPU had the minor number that another one has now, both are left out."""
    numbers = Counter(gpu.minor for gpu in state.gpus.by_uuid.values())
    return {gpu.key: gpu.uuid for gpu in state.gpus.by_uuid.values() if numbers[gpu.minor] == 1}


def _complete(pod: Pod, held: list[Holding]) -> bool:
    """Whether every container except init containers has exactly the units that it requests."""
    sizes: Counter[tuple[str, str]] = Counter()
    for holding in held:
        sizes[holding.owner.container, holding.resource] += len(holding.ids)
    asked = {
        # Only kubelet's allocations show an amount that could not be read.
        (container.name, resource): container.limits.get(resource) or sizes[container.name, resource] or 1
        for container in pod.containers
        if not container.init
        for resource in RESOURCES
        if container.asks(resource)
    }
    lasting = {container.name for container in pod.containers if not container.init}
    return bool(asked) and asked == {place: size for place, size in sizes.items() if place[0] in lasting}


def _of_this_uid(pod: Pod, held: list[Holding], recorded: Mapping[tuple[str, str, str], frozenset[str]]) -> bool:
    """Whether these are the holdings of this pod, not of an earlier pod of its name, by the UIDs of the checkpoint.

    Pod-resources has names only. Without a checkpoint the name decides, and the next read of kubelet's allocations,
    when the new pod starts, corrects a mistake.
    """
    if not recorded:
        return True
    init = pod.init_names
    return all(
        recorded.get((pod.uid, holding.owner.container, holding.resource), frozenset()) >= holding.ids
        for holding in held
        if holding.owner.container not in init
    )


def _read(pod: Pod, held: list[Holding], by_key: Mapping[str, str]) -> PodHeld | None:
    positions = {container.name: position for position, container in enumerate(pod.app_containers)}
    containers: dict[tuple[str, int], Counter[tuple[str, Kind]]] = defaultdict(Counter)
    unnumbered: dict[str, Counter[tuple[str, Kind]]] = defaultdict(Counter)
    for holding in held:
        position = positions.get(holding.owner.container)
        into = unnumbered[holding.resource] if position is None else containers[holding.resource, position]
        if holding.foreign_ids:
            return None
        for unit, count in holding.units:
            if unit.gpu_key not in by_key or not _fits(holding.resource, unit.kind):
                return None  # a GPU that the agent has not read
            into[by_key[unit.gpu_key], unit.kind] += count
    return PodHeld(pod, containers, unnumbered)


def _fits(resource: str, kind: Kind) -> bool:
    return {GPU_MEM: kind.is_memory, GPU_CORE: kind is Kind.CORE_CORE_MEM, GPU_WHOLE: kind.is_whole}[resource]
