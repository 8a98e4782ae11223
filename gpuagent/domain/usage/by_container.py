"""The use of each GPU by containers: the driver's samples joined with pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.pods.pod import ContainerRef, Pod, PodName
from gpuagent.domain.state import State
from gpuagent.domain.usage.process_cgroup import ProcessContainer


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: in the agent's PID namespace.
        memory_bytes: GPU memory of the process; None if the driver does not report it.
        busy: share of time in which the GPU works for it, 0 to 1; None if the driver does not report it.
        place: its container and pod; None if the agent cannot read them, or the process has ended.
    """

    pid: int
    memory_bytes: int | None
    busy: float | None
    place: ProcessContainer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One sample of the use of a GPU. A value that the driver does not report is None.

    Attributes:
        uuid: UUID of the GPU.
        at: time of the sample, in monotonic seconds.
        memory_used_bytes: memory in use, without the part that driver and firmware reserve.
        busy: share of time in which the GPU works, 0 to 1.
        temperature_celsius: temperature of the chip.
        power_watts: power draw of the board.
        processes: the processes that use the GPU.
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
        by_uuid: samples that are recent enough to show.
        failing: UUID of each GPU whose query failed, to the reason.
        pids_seen: the agent can certainly see PIDs of containers. If False, only a process found in one proves it.
    """

    by_uuid: Mapping[str, GpuSample] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    pids_seen: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """The use of one GPU by one container; None for a value that the driver does not report."""

    memory_bytes: int | None = 0
    busy: float | None = 0.0

    def plus(self, process: GpuProcess) -> "Used":
        """The use together with that of one more process."""
        memory_bytes = None
        if self.memory_bytes is not None and process.memory_bytes is not None:
            memory_bytes = self.memory_bytes + process.memory_bytes
        busy = None
        if self.busy is not None and process.busy is not None:
            busy = self.busy + process.busy
        return Used(memory_bytes, busy)

    def at_least(self) -> "Used":
        """If further processes may be of the container: it is not known to be idle."""
        return replace(self, busy=self.busy or None)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of each GPU by containers.

    Attributes:
        by_container: GPU UUID and container to the use; includes containers that hold no device. One is absent if its
            use is not known: a process that no container was found for may be its.
        strays: GPU UUID to the number of processes outside the containers of this node's pods. A GPU is absent if the
            driver does not list its processes.
        pids_seen: the agent can see PIDs of containers.
    """

    by_container: Mapping[tuple[str, ContainerRef], Used]
    strays: Mapping[str, int]
    pids_seen: bool


def use(samples: Samples, state: State, holders: Iterable[tuple[str, ContainerRef]], *, resolved: bool = False) -> Use:
    """Join processes with containers.

    Args:
        samples: the driver's samples.
        state: has the pods and kubelet's allocations.
        holders: GPU UUID and container of every allocation.
        resolved: a process was found in a container before.
    """
    names = _Names(state, frozenset(holders))
    by_container: dict[tuple[str, ContainerRef], Used] = {}
    # Where the processes without a container are, by GPU.
    strays: dict[str, list[ProcessContainer | None]] = {}
    for uuid, sample in samples.by_uuid.items():
        # The driver does not list the processes of such a GPU.
        if sample.processes is None:
            continue
        strays[uuid] = []
        for process in sample.processes:
            owner = names.owner(process.place, uuid) if process.place else None
            if owner is None:
                strays[uuid].append(process.place)
                continue
            before = by_container.get((uuid, owner), Used())
            by_container[uuid, owner] = before.plus(process)
    pids_seen = samples.pids_seen or resolved or bool(by_container)
    for uuid, owner in names.holders:
        if uuid not in strays:
            continue
        used = _with_strays(
            by_container.get((uuid, owner)),
            may_have_more=any(names.may_be_of(owner, place) for place in strays[uuid]),
            pids_seen=pids_seen,
        )
        if used is not None:
            by_container[uuid, owner] = used
    counts = {uuid: len(places) for uuid, places in strays.items()}
    return Use(by_container, counts, pids_seen)


def _with_strays(used: Used | None, *, may_have_more: bool, pids_seen: bool) -> Used | None:
    """What is known of the use of a GPU by a container that holds it; None if nothing is.

    Args:
        used: by the processes that were found in the container; None without any.
        may_have_more: a process that no container was found for may be its.
        pids_seen: the agent can see PIDs of containers.
    """
    if may_have_more:
        return used.at_least() if used is not None else None
    if used is None and pids_seen:
        # Without a process on the GPU, it uses nothing of it.
        return Used()
    return used


class _Names:
    """Finds containers by the cgroups of their processes."""

    def __init__(self, state: State, holders: frozenset[tuple[str, ContainerRef]]) -> None:
        self.holders = holders
        self._by_id: dict[str, ContainerRef] = {}
        self._pods: dict[str, Pod] = {}
        self._names: dict[str, PodName] = {}
        for uid, pod in state.pods_by_kubelets_uid.items():
            if pod.ended:
                continue
            self._pods[uid] = pod
            self._names[uid] = pod.name
            for container_id, name in pod.container_ids.items():
                self._by_id[container_id] = ContainerRef(pod.name, name)
        if not self._pods:
            self._names.update(state.holdings.pod_names)
        self._known_pods = frozenset(self._names.values())

    def may_be_of(self, owner: ContainerRef, place: ProcessContainer | None) -> bool:
        """Whether a process that no container was found for may be of that one."""
        if place is None:
            return True
        if place.of_agent:
            return False
        if place.pod is None:
            # For example, a container that was started past kubelet.
            return True
        name = self._names.get(place.pod)
        if name is None:
            # The process is of a pod that is not known. The container's own may be that one.
            return owner.pod not in self._known_pods
        return name == owner.pod

    def owner(self, place: ProcessContainer, uuid: str) -> ContainerRef | None:
        """The container by its id, or by its pod if the id is unknown and only one container of the pod fits."""
        name = self._names.get(place.pod or "")
        container = self._by_id.get(place.container or "")
        if container and name in {None, container.pod}:
            return container
        if name is None:
            return None
        holders = {owner for gpu, owner in self.holders if gpu == uuid and owner.pod == name}
        if len(holders) == 1:
            return holders.pop()
        pod = self._pods.get(place.pod or "")
        if pod is None or len(pod.containers) != 1:
            return None
        return ContainerRef(name, pod.containers[0].name)
