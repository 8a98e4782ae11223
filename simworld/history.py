"""What happened in a world, in order. The checker reads it, and people do."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.units import UnitId, parse_id
from simworld.runtime.kernel import kernel
from standin.kubelet.pods import Granted

INIT = "init"
SIDECAR = "sidecar"
"""What ordinary init containers and sidecars are called, with a number."""
SEEN_S = 10.0
"""How long a scheduler may not know that a pod was deleted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    Attributes:
        at: virtual seconds since the world began.
        actor: who did it, such as ``node-1 kubelet``.
        what: in words for people.
    """

    at: float
    actor: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:9.3f} s  {self.actor:<18} {self.what}"


@dataclass(frozen=True, slots=True)
class Living:
    """A container that runs.

    Attributes:
        node: its node.
        pod_uid: of its pod.
        container: its name.
        units: device ids that kubelet gave it, by resource.
        env: environment that the agent gave it.
        since: when it started, in virtual seconds.
    """

    node: str
    pod_uid: str
    container: str
    units: Mapping[str, frozenset[str]]
    env: Mapping[str, str]
    since: float = 0.0

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs, as its environment says."""
        visible = self.env.get("NVIDIA_VISIBLE_DEVICES", "")
        return tuple(name for name in visible.split(",") if name)

    @property
    def modes(self) -> frozenset[str]:
        """The modes in which its units were sold."""
        units = [parse_id(device_id) for ids in self.units.values() for device_id in ids]
        return frozenset(str(unit.kind.mode) for unit in units if unit is not None)

    def memory_on(self, gpu: str) -> list[UnitId]:
        """Its units of memory of the GPU with this UUID: it may have some of others, too."""
        key = key_of(gpu)
        units = [parse_id(device_id) for device_id in self.units.get(MEMORY, ())]
        return [unit for unit in units if unit is not None and unit.gpu_key == key]


@dataclass(slots=True)
class History:
    """Entries, and the containers that live now.

    Attributes:
        kept: ordinary init containers that have ended, of pods that have not.
        broken: promises that were broken, in words; the checker adds those that need the whole history.
        pods: names by UID, for people.
        starts: containers that have started.
        started_at: UID of each pod to when its last container started.
        last_end_at: when a container ended last.
        ended_ones: containers that have ended, each with the moment.
        gangs: UIDs of the pods of each job that starts together.
        gang_sizes: how many pods each of these jobs has.
        deleted_at: UIDs of pods that were deleted by force, with the moment, if a scheduler soon sees that.
        retried: UIDs of pods that came again, with those of the others of their job, which had succeeded.
        forgotten: UIDs of pods to which kube-scheduler never comes again.
        start_checks: called with each container that starts; the promises that it breaks, in words.
        refusal_checks: called with the node and the UID of each pod that kubelet refuses, and the reason; the same.
        bound_checks: called with the UID, the node and the annotations of each pod that is bound; the same.
        decisions: annotations that a scheduler bound a pod with, by its UID.
        edited: UIDs of pods whose annotations a tenant has changed, with the moment; minus infinity if it was before
            their containers ran, so that the agent follows them.
    """

    began_at: float
    entries: list[Entry] = field(default_factory=list)
    living: dict[tuple[str, str], Living] = field(default_factory=dict)
    kept: dict[tuple[str, str], Living] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    started_at: dict[str, float] = field(default_factory=dict)
    last_end_at: float = -math.inf
    ended_ones: list[tuple[float, Living]] = field(default_factory=list)
    decisions: dict[str, Mapping[str, str]] = field(default_factory=dict)
    gangs: dict[str, list[str]] = field(default_factory=dict)
    gang_sizes: dict[str, int] = field(default_factory=dict)
    deleted_at: dict[str, float] = field(default_factory=dict)
    retried: dict[str, Sequence[str]] = field(default_factory=dict)
    edited: dict[str, float] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    start_checks: list[Callable[[Living], Iterable[str]]] = field(default_factory=list)
    refusal_checks: list[Callable[[str, str, str], Iterable[str]]] = field(default_factory=list)
    bound_checks: list[Callable[[str, str, Mapping[str, str]], Iterable[str]]] = field(default_factory=list)

    def note(self, actor: str, what: str) -> None:
        """Add an entry."""
        self.entries.append(Entry(kernel().now - self.began_at, actor, what))

    def break_promise(self, what: str) -> None:
        """Note that a promise was broken, once for each text."""
        if what not in self.broken:
            self.broken.append(what)
            self.note("checker", f"BROKEN: {what}")

    def says(self, words: str) -> bool:
        """Whether a promise was broken, in a sentence with these words."""
        return any(words in what for what in self.broken)

    def name(self, uid: str) -> str:
        """Name of a pod for people."""
        return self.pods.get(uid, uid)

    def started(self, node: str, uid: str, container: str, granted: Granted) -> None:
        """A container of the pod runs now."""
        key = uid, container
        if key in self.living:
            return
        units = {resource: frozenset(ids) for resource, ids in granted.ids.items()}
        living = Living(node, uid, container, units, dict(granted.env), kernel().now)
        self.starts += 1
        self.started_at[uid] = kernel().now
        held = ", ".join(f"{len(ids)} {resource}" for resource, ids in sorted(units.items()))
        gpus = ", ".join(living.gpus) or "no GPU"
        self.note(f"{node} kubelet", f"started {self.name(uid)}/{container}: {held or 'nothing'} on {gpus}")
        self.living[key] = living
        for problem in contradicts_units(living):
            self.break_promise(f"{self.name(uid)}/{container} {problem}")
        for problem in conflicts(living, self.neighbors(living)):
            self.break_promise(problem)
        for check in self.start_checks:
            for problem in check(living):
                self.break_promise(problem)
        contradiction = self._contradicts_decision(living)
        if contradiction:
            self.break_promise(contradiction)

    def decided(self, uid: str, annotations: Mapping[str, str]) -> None:
        """A scheduler has bound a pod with these annotations."""
        for job, uids in self.gangs.items():
            has_started = not self.decisions.keys().isdisjoint(uids)
            # The others of a job that has started may be bound without those that were deleted since.
            there = len(uids) if has_started else self._there(uids)
            is_early = uid in uids and there < self.gang_sizes[job]
            if is_early:
                only = f"{there} of {self.gang_sizes[job]} pods are there"
                self.break_promise(f"{self.name(uid)} is bound, and of its job {job} only {only}")
        self.decisions[uid] = annotations

    def _there(self, uids: Iterable[str]) -> int:
        """How many of these pods are there for a scheduler that may not have seen the last deletions."""
        seen_until = kernel().now - SEEN_S
        return sum(self.deleted_at.get(uid, math.inf) > seen_until for uid in uids)

    def edit(self, uid: str) -> None:
        """A tenant has changed the annotations of a pod."""
        runs = any(owner == uid for owner, _ in self.living)
        self.edited.setdefault(uid, kernel().now if runs else -math.inf)

    def _contradicts_decision(self, living: Living) -> str:
        """Why a container has other GPUs than a scheduler decided; empty if it has those."""
        uid = living.pod_uid
        # The agent may follow what the tenant wrote instead.
        if uid in self.edited:
            return ""
        decision = self.decisions.get(uid, {}).get(ALLOCATION)
        index = living.env.get("ALIYUN_COM_GPU_MEM_IDX")
        if decision is None or index is None:
            return ""
        # Containers are called main-0, main-1 and so on. A decision goes by their numbers.
        kind, _, number = living.container.rpartition("-")
        if kind == SIDECAR:
            return ""  # no scheduler decides on it
        units_by_container = json.loads(decision)
        units_by_gpu = units_by_container.get(number, {})
        if kind == INIT:
            # It has the units that a container of the decision reuses.
            units_by_gpu = {gpu: units for of_one in units_by_container.values() for gpu, units in of_one.items()}
        is_obeyed = index in units_by_gpu if kind == INIT else list(units_by_gpu) == [index]
        if is_obeyed:
            return ""
        container = f"{self.name(uid)}/{living.container}"
        return f"{container} got GPU {index}, and the scheduler decided {units_by_gpu}"

    def ended(self, node: str, uid: str) -> None:
        """The containers of the pod have ended."""
        self.kept = {key: kept for key, kept in self.kept.items() if key[0] != uid}
        ended = [key for key in self.living if key[0] == uid]
        for key in ended:
            self.ended_ones.append((kernel().now, self.living.pop(key)))
        if ended:
            self.last_end_at = kernel().now
            self.note(f"{node} kubelet", f"ended {self.name(uid)}")

    def refused(self, node: str, uid: str, reason: str) -> None:
        """Kubelet has refused to admit the pod."""
        self.note(f"{node} kubelet", f"refused {self.name(uid)}: {reason}")
        for check in self.refusal_checks:
            for problem in check(node, uid, reason):
                self.break_promise(problem)

    def ended_init(self, node: str, uid: str, container: str) -> None:
        """An ordinary init container of the pod has ended. Kubelet keeps its units for its pod."""
        living = self.living.pop((uid, container), None)
        if living is not None:
            self.kept[uid, container] = living
            self.note(f"{node} kubelet", f"ended {self.name(uid)}/{container}")

    def neighbors(self, living: Living) -> Iterator[Living]:
        """Containers of its node with which it may not have units in common. It is one of them."""
        return self.on_node(living.node)

    def kept_on_node(self, node: str) -> Iterator[tuple[Living, dict[str, frozenset[str]]]]:
        """Init containers of a node that have ended, with the units of each that no other container of its pod has."""
        for kept in self.kept.values():
            if kept.node != node:
                continue
            others = [living for living in self.living.values() if living.pod_uid == kept.pod_uid]
            units = dict(kept.units)
            for living in others:
                for resource, ids in living.units.items():
                    units[resource] = units.get(resource, frozenset()) - ids
            yield kept, units

    def on_node(self, node: str, ended_after: float = math.inf) -> Iterator[Living]:
        """Containers that live on a node, and those that have ended after this moment."""
        for living in self.living.values():
            if living.node == node:
                yield living
        for at, ended in reversed(self.ended_ones):
            if at <= ended_after:
                return
            if ended.node == node:
                yield ended


MEMORY = "aliyun.com/gpu-mem"
CORES = "aliyun.com/gpu-core.percentage"
WHOLE = "aliyun.com/gpu"
GIB_PER_GPU = 80
"""Memory of each simulated GPU."""
WHOLE_GPUS = frozenset({WHOLE, "nvidia.com/gpu"})
"""Resources of which one unit is a whole GPU."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""Annotation with the units of each container on each GPU, by the numbers of both."""


def conflicts(new: Living, all_living: Iterator[Living]) -> Iterator[str]:
    """Promises that a container breaks by starting beside those that live."""
    for other in all_living:
        if other is new:
            continue
        for resource, ids in new.units.items():
            twice = ids & other.units.get(resource, frozenset())
            if twice:
                example = min(twice)
                yield f"unit {example} has two living containers: {other.pod_uid} and {new.pod_uid}"
        shared = set(new.gpus) & set(other.gpus)
        if not shared:
            continue
        # One with claims has no units. It may only watch the GPU: the checker of claims knows.
        has_claims = not new.units or not other.units
        if not has_claims and WHOLE_GPUS & {*new.units, *other.units}:
            gpu = min(shared)
            yield f"GPU {gpu} is whole for one of {other.pod_uid} and {new.pod_uid}, and both live on it"


def contradicts_units(living: Living) -> Iterator[str]:
    """What the environment of a container with units says of GPUs that kubelet's units do not say."""
    units = [parse_id(device_id) for ids in living.units.values() for device_id in ids]
    booked = {unit.gpu_key for unit in units if unit is not None}
    if not booked:
        return
    said = {key_of(gpu) for gpu in living.gpus}
    if booked != said:
        visible = living.env.get("NVIDIA_VISIBLE_DEVICES")
        yield f"has units of {sorted(booked)}, and NVIDIA_VISIBLE_DEVICES={visible!r} names {sorted(said)}"


def mixed_modes(starting: Living, all_living: Iterator[Living]) -> Iterator[str]:
    """Promises that a container breaks by starting on a GPU of which others have units of another mode."""
    for other in all_living:
        shared = set(starting.gpus) & set(other.gpus)
        modes = {*starting.modes, *other.modes}
        if shared and len(modes) > 1:
            gpu = min(shared)
            both = " and ".join(sorted(modes))
            yield f"GPU {gpu} was sold in modes {both}, to {other.pod_uid} and {starting.pod_uid}"
