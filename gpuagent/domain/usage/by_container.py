"""What GPUs are used for, and which containers use them: the driver's samples joined with pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.pods.pod import ContainerRef, Pod, PodName
from gpuagent.domain.state import State
from gpuagent.domain.usage.process_cgroup import Place


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: in the agent's PID namespace.
        memory_bytes: GPU memory that it has; None where the driver does not tell.
        busy: part of its time that the GPU works for it, 0 to 1; None where the driver does not tell.
        place: where it runs; None if it cannot be seen, or has ended.
    """

    pid: int
    memory_bytes: int | None
    busy: float | None
    place: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at what a GPU is used for. What the driver does not tell is None.

    Attributes:
        uuid: the GPU's.
        at: when it was taken, in monotonic seconds.
        memory_used_bytes: in use, without what driver and firmware reserve.
        busy: part of its time that it works, 0 to 1.
        temperature_celsius: of the chip.
        power_watts: drawn by the board.
        processes: those that use it.
    """

    uuid: str
    at: float
    memory_used_bytes: int | None = None
    busy: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """The last sample of each GPU that has a fresh one.

    Attributes:
        by_uuid: samples that are not too old to be shown.
        failing: GPUs that were asked in vain, by UUID, and why.
        pids_seen: PIDs of containers are seen for certain; else only a process that is found in one shows it.
    """

    by_uuid: Mapping[str, GpuSample] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    pids_seen: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """What one container uses of one GPU; None where it is not known."""

    memory_bytes: int | None = 0
    busy: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses which GPU.

    Attributes:
        by_container: GPU UUID and container to what it uses; also of containers to which nothing was given.
        strays: GPU UUID to how many processes are of no container of this node's pods. Absent: not known.
        pids_seen: PIDs of containers are seen: a container without a process here really has none.
    """

    by_container: Mapping[tuple[str, ContainerRef], Used]
    strays: Mapping[str, int]
    pids_seen: bool


def use(samples: Samples, state: State, holders: Iterable[tuple[str, ContainerRef]], *, resolved: bool = False) -> Use:
    """Join processes with containers.

    Args:
        samples: what the driver told.
        state: pods and kubelet's book.
        holders: GPU UUID and container of everything that was given out.
        resolved: a process was found in a container before.
    """
    names = _Names(state, frozenset(holders))
    by_container: dict[tuple[str, ContainerRef], Used] = {}
    strays: dict[str, int] = {}
    for uuid, sample in samples.by_uuid.items():
        if sample.processes is None:
            continue
        strays[uuid] = 0
        for process in sample.processes:
            owner = names.owner(process.place, uuid) if process.place else None
            if owner is None:
                strays[uuid] += 1
            else:
                before = by_container.get((uuid, owner), Used())
                memory = _sum(before.memory_bytes, process.memory_bytes)
                by_container[uuid, owner] = Used(memory, _sum(before.busy, process.busy))
    seen = samples.pids_seen or resolved or bool(by_container)
    if seen:
        for uuid, owner in names.holders:
            if (sample_ := samples.by_uuid.get(uuid)) and sample_.processes is not None:
                by_container.setdefault((uuid, owner), Used())
    return Use(by_container, strays, seen)


def _sum(one: float | None, other: float | None) -> "int | None":
    return None if one is None or other is None else one + other  # type: ignore[return-value]


class _Names:
    """Containers by what cgroups say of them."""

    def __init__(self, state: State, holders: frozenset[tuple[str, ContainerRef]]) -> None:
        self.holders = holders
        living = [pod for pod in state.pods if not pod.ended]
        self._by_id = {
            container_id: ContainerRef(pod.name, name)
            for pod in living
            for container_id, name in pod.container_ids.items()
        }
        self._pods: dict[str, Pod] = {pod.uid: pod for pod in living}
        self._names = {**(_names_in_book(state) if not self._pods else {}), **{pod.uid: pod.name for pod in living}}

    def owner(self, place: Place, uuid: str) -> ContainerRef | None:
        """The container, by its id; by its pod where the id is not known (yet) and the pod leaves no choice."""
        name = self._names.get(place.pod or "")
        found = self._by_id.get(place.container or "")
        if found and name in {None, found.pod}:
            return found
        if name is None:
            return None
        held = {owner for gpu, owner in self.holders if gpu == uuid and owner.pod == name}
        if len(held) == 1:
            return held.pop()
        pod = self._pods.get(place.pod or "")
        only = pod.containers if pod else ()
        return ContainerRef(name, only[0].name) if len(only) == 1 else None


def _names_in_book(state: State) -> dict[str, PodName]:
    """Pod UID to name, without an API server: kubelet's checkpoint has the one, its API the other, both the devices."""
    owners = {device_id: holding.owner.pod for holding in state.holdings or () for device_id in holding.ids}
    found: dict[str, PodName] = {}
    for entry in state.checkpoint:
        if name := next((owners[device_id] for device_id in entry.ids if device_id in owners), None):
            found[entry.pod_uid] = name
    return found
