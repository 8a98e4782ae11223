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
    for _, held in _judged(state, pods):
        if isinstance(held, PodHeld):
            yield held


def uncertain(state: State, pods: Collection[Pod]) -> Iterator[tuple[Pod, str]]:
    """Those of the node's `pods` that hold devices and that `certain` leaves out, each with the reason."""
    for pod, reason in _judged(state, pods):
        if isinstance(reason, str):
            yield pod, reason


def _judged(state: State, pods: Collection[Pod]) -> Iterator[tuple[Pod, PodHeld | str]]:
    """The pods that hold devices, each with its units, or why they are not certain."""
    if not pods:
        return
    holdings = _holdings_of(state, pods)
    recorded = state.holdings.recorded
    by_key = _unmistakable(state)
    for pod in pods:
        held = holdings.get(pod.name)
        if not held or pod.ended or not pod.uid:
            continue
        if not _complete(pod, held):
            yield pod, "kubelet's allocations do not have what its containers request"
        elif not _of_this_uid(pod, held, recorded):
            yield pod, "kubelet's checkpoint does not have its devices under its UID"
        else:
            yield pod, _read(pod, held, by_key) or "it has units of a GPU that the agent has not read"


def _holdings_of(state: State, pods: Collection[Pod]) -> dict[PodName, list[Holding]]:
    """The holdings that schedulers write in annotations, by the name of the pod."""
    names = {pod.name for pod in pods}
    holdings: dict[PodName, list[Holding]] = defaultdict(list)
    for holding in state.living_holdings:
        name = holding.owner.pod
        if name in names and holding.resource in RESOURCES:
            holdings[name].append(holding)
    return holdings


def changed_pods(state: State, before: State | None) -> list[Pod]:
    """The node's pods that are not as in `before`: `certain` may say something else of them than it did then."""
    pods = state.pods.seen
    if before is None or before.gpus.by_uuid is not state.gpus.by_uuid:
        return list(pods)
    goes_by_uid = bool(state.holdings.recorded)
    if bool(before.holdings.recorded) is not goes_by_uid:
        return list(pods)
    held_before = _held(before)
    held = _held(state)
    unchanged = set()
    for pod in before.pods.seen:
        if all(held_before.get(key) == held.get(key) for key in (pod.name, pod.uid)):
            unchanged.add(id(pod))
    return [pod for pod in pods if id(pod) not in unchanged]


@once
def _held(state: State) -> dict[object, set[object]]:
    """What `certain` reads of each pod: by name its holdings, by UID its entries in the checkpoint."""
    held: dict[object, set[object]] = defaultdict(set)
    for holding in state.living_holdings:
        held[holding.owner.pod].add(holding)
    for key, ids in state.holdings.recorded.items():
        uid = key[0]
        held[uid].add((key, ids))
    return held


def _unmistakable(state: State) -> dict[str, str]:
    """GPU key to UUID. If a lost GPU had the minor number that another one has now, both are left out."""
    gpus = state.gpus.by_uuid.values()
    numbers = Counter(gpu.minor for gpu in gpus)
    return {gpu.key: gpu.uuid for gpu in gpus if numbers[gpu.minor] == 1}


def _complete(pod: Pod, holdings: list[Holding]) -> bool:
    """Whether every container except init containers has exactly the units that it requests."""
    asked: dict[tuple[str, str], int] = {}
    held: Counter[tuple[str, str]] = Counter()
    lasting = {container.name for container in pod.containers if not container.init}
    for holding in holdings:
        name = holding.owner.container
        if name in lasting:
            held[name, holding.resource] += len(holding.ids)
    for container in pod.containers:
        for resource in RESOURCES:
            if not container.init and container.asks(resource):
                key = container.name, resource
                # Only kubelet's allocations show an amount that could not be read.
                asked[key] = container.limits.get(resource) or held[key] or 1
    return bool(asked) and asked == dict(held)


def _of_this_uid(pod: Pod, held: list[Holding], recorded: Mapping[tuple[str, str, str], frozenset[str]]) -> bool:
    """Whether these are the holdings of this pod, not of an earlier pod of its name, by the UIDs of the checkpoint.

    Pod-resources has names only. Without a checkpoint the name decides, and the next read of kubelet's allocations,
    when the new pod starts, corrects a mistake.
    """
    if not recorded:
        return True
    init_names = pod.init_names
    for holding in held:
        container = holding.owner.container
        if container in init_names:
            continue
        ids = recorded.get((pod.uid, container, holding.resource), frozenset())
        if not ids >= holding.ids:
            return False
    return True


def _read(pod: Pod, held: list[Holding], by_key: Mapping[str, str]) -> PodHeld | None:
    """The units of the pod; None if one is of a GPU that the agent has not read."""
    positions = {container.name: position for position, container in enumerate(pod.app_containers)}
    containers: dict[tuple[str, int], Counter[tuple[str, Kind]]] = defaultdict(Counter)
    unnumbered: dict[str, Counter[tuple[str, Kind]]] = defaultdict(Counter)
    for holding in held:
        if holding.foreign_ids:
            return None
        resource = holding.resource
        position = positions.get(holding.owner.container)
        amounts = unnumbered[resource] if position is None else containers[resource, position]
        for unit, count in holding.units:
            if unit.gpu_key not in by_key or not _fits(resource, unit.kind):
                return None
            amounts[by_key[unit.gpu_key], unit.kind] += count
    return PodHeld(pod, containers, unnumbered)


def _fits(resource: str, kind: Kind) -> bool:
    """Whether units of that kind are of this resource."""
    if resource == GPU_MEM:
        return kind.is_memory
    if resource == GPU_CORE:
        return kind is Kind.CORE_CORE_MEM
    return kind.is_whole
