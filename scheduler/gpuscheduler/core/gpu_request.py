"""The GPUs that a pod asks for. Pods of one template have equal requests, which share all cached results."""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from gpuagent.domain.pods.mistaken import COUNT_ONLY, asks_for_count
from gpuagent.domain.pods.pod import ContainerSpec, Pod, asked, most_at_once
from gpuagent.domain.scheduling.decision import handing_on
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuagent.domain.sharing.units import MORE_THAN_A_NODE, if_bytes

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
"""The resources that the scheduler places."""
MOST_CONTAINERS = 128
"""Containers of a pod that may ask for shares. A pod of 1.5 MB has thousands, and each is placed by itself."""


@dataclass(frozen=True, slots=True, order=True)
class Amounts:
    """A part of one GPU: units of memory, and percent of compute."""

    memory: int = 0
    core: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.memory + other.memory, self.core + other.core)

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.memory - other.memory, self.core - other.core)

    def within(self, other: "Amounts") -> bool:
        """Whether `other` has as much of both."""
        return self.memory <= other.memory and self.core <= other.core

    def at_least(self, other: "Amounts") -> "Amounts":
        """The larger of both amounts, for memory and for compute."""
        return Amounts(max(self.memory, other.memory), max(self.core, other.core))

    def over(self, gpus: int) -> "Amounts":
        """The part on each of `gpus` GPUs, evenly, rounded up."""
        return Amounts(-(-self.memory // gpus), -(-self.core // gpus))

    def times_in(self, free: "Amounts", most: int) -> int:
        """How many times `free` has this, at most `most`."""
        if not self.within(free):  # also where others use more than there is of what this does not need
            return 0
        times = most
        if self.memory:
            times = min(times, free.memory // self.memory)
        if self.core:
            times = min(times, free.core // self.core)
        return times


NOTHING = Amounts()
WHOLE = Amounts(-1, -1)
"""Stands for all of a GPU."""

Used = tuple[tuple[int, Amounts], ...]
"""Minor number of each GPU and what is used of it, by ascending number. A whole GPU uses `WHOLE`."""


class RequestKind(enum.Enum):
    """Which resources a pod asks for."""

    NONE = enum.auto()
    COUNT = enum.auto()
    """Only the number of a node's GPUs. No scheduler and no plugin gives a GPU for it."""
    SHARE = enum.auto()
    WHOLE = enum.auto()

    @property
    def gives_gpus(self) -> bool:
        """Whether a pod on a node may hold GPUs by such a request."""
        return self is RequestKind.SHARE or self is RequestKind.WHOLE


@dataclass(frozen=True, slots=True)
class Group:
    """Containers that need the same GPUs: kubelet hands the units of an init container on to all of them.

    Attributes:
        containers: index in `spec.containers` and amounts of each that asks for some.
        need: the most that they have at one time, with their init containers and sidecars.
    """

    containers: tuple[tuple[int, Amounts], ...]
    need: Amounts


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs that a pod asks for.

    Attributes:
        kind: shares, whole GPUs, none, or a mistaken number of them.
        gpus: number of whole GPUs; for shares, over how many GPUs each container is spread evenly.
        groups: of the containers with shares. Two groups may be on different GPUs.
        need: of the whole pod on one GPU, as Kubernetes counts.
        problem: why no node can serve it, after "the pod "; empty if one may.
        slots: what follows from `groups` for the GPUs of a node: an amount on one GPU, and how many times a node must
            have it free if all groups fit. It is worked out once, as thousands of nodes are compared with it.
        apart: what all groups need if each is placed by itself.
        core_divisor: the greatest common divisor of what the containers ask for of compute; 0 if none does.
        paired: each container that asks for memory or compute asks for both.
    """

    kind: RequestKind
    gpus: int = 1
    groups: tuple[Group, ...] = ()
    need: Amounts = NOTHING
    problem: str = ""
    slots: tuple[tuple[Amounts, int], ...] = field(default=(), compare=False)
    apart: Amounts = field(default=NOTHING, compare=False)
    core_divisor: int = field(default=0, compare=False)
    paired: bool = field(default=True, compare=False)


NO_REQUEST = GpuRequest(RequestKind.NONE)


def gpu_request(pod: Pod) -> GpuRequest:
    """The request of a pod."""
    named = {name for c in pod.containers for name in (*c.limits, *c.unread) if name in RESOURCES}
    if not named:
        return GpuRequest(RequestKind.COUNT, problem=COUNT_ONLY) if asks_for_count(pod) else NO_REQUEST
    kind = RequestKind.WHOLE if GPU_WHOLE in named else RequestKind.SHARE
    if unread := [f"{name} of {c.name}" for c in pod.containers for name in sorted(c.unread.intersection(RESOURCES))]:
        return GpuRequest(kind, problem=f"asks for an amount that is no whole number ({unread[0]})")
    if problem := _more_than_a_node(pod):
        return GpuRequest(kind, problem=problem)
    if kind is RequestKind.SHARE:
        return _share(pod)
    if others := sorted(named - {GPU_WHOLE}):
        return GpuRequest(kind, problem=f"asks for {GPU_WHOLE} and for {others[0]}; ask for one of them")
    return GpuRequest(kind, gpus=asked(pod, GPU_WHOLE))


def _more_than_a_node(pod: Pod) -> str:
    """Why no node has as much as a container asks for, whatever its GPUs; empty if one may."""
    limits = [limit for container in pod.containers for limit in container.limits.items() if limit[0] in RESOURCES]
    resource, most = max(limits, key=lambda limit: limit[1])
    if most < MORE_THAN_A_NODE:
        return ""
    hint = if_bytes(most) if resource == GPU_MEM else ""
    return f"asks for {most} of {resource}, which is more than any node has{f'; {hint}' if hint else ''}"


def _share(pod: Pod) -> GpuRequest:
    gpus = pod.gpu_count or 1
    label = pod.gpu_count_label
    asking = [c for c in pod.containers if _amounts(c) != NOTHING]
    amounts = {n: _amounts(c) for n, c in enumerate(pod.app_containers) if _amounts(c) != NOTHING}
    if len(asking) > MOST_CONTAINERS:
        text = f"asks for GPU units in {len(asking)} containers; at most {MOST_CONTAINERS} of a pod may ask for them"
        need = _need(asking)
        return GpuRequest(RequestKind.SHARE, gpus, (Group(tuple(amounts.items()), need),), need, text)
    groups = _groups(replace(pod, containers=tuple(asking)), amounts, [c.name for c in pod.app_containers])
    request = GpuRequest(
        RequestKind.SHARE,
        gpus,
        groups,
        _need(asking),
        slots=tuple(_slots(groups, gpus)),
        apart=sum((group.need for group in groups), NOTHING),
        core_divisor=gcd(*(each.core for each in amounts.values())),
        paired=all(each.memory and each.core for each in amounts.values()),
    )
    if label is not None and pod.gpu_count is None:
        return replace(request, problem=f"has label {GPU_COUNT_LABEL} with a value that is no number of GPUs")
    for container in asking:
        for name in (GPU_MEM, GPU_CORE):
            if (units := container.limits.get(name, 0)) % gpus:
                text = f"asks for {units} of {name} in {container.name}, which {gpus} GPUs cannot share evenly"
                return replace(request, problem=f"{text} (label {GPU_COUNT_LABEL})")
    return request


def _groups(pod: Pod, amounts: Mapping[int, Amounts], names: Sequence[str]) -> tuple[Group, ...]:
    """The groups. Sidecars, and init containers whose units no container reuses, are in the first one.

    `pod` has the containers that ask for units. `amounts` are by place in `spec.containers`, whose names are `names`.
    """
    members = [{names[n]} for n in amounts] or [set[str]()]
    for resource in (GPU_MEM, GPU_CORE):
        for first, takers in handing_on(pod, resource):
            one, *others = [names for names in members if not names.isdisjoint(takers)] or members[:1]
            one.update({first}, *others)
            members = [names for names in members if names not in others]
    members[0].update(c.name for c in pod.containers if c.sidecar)
    group_of = {name: n for n, group in enumerate(members) for name in group}
    containers: list[list[ContainerSpec]] = [[] for _ in members]
    for container in pod.containers:
        containers[group_of[container.name]].append(container)
    given: list[list[tuple[int, Amounts]]] = [[] for _ in members]
    for n, each in amounts.items():
        given[group_of[names[n]]].append((n, each))
    return tuple(Group(tuple(own), _need(some)) for own, some in zip(given, containers, strict=True))


def _slots(groups: Collection[Group], gpus: int) -> Iterator[tuple[Amounts, int]]:
    """What a node must have free for the largest group, for the larger half of the groups, and for all of them."""
    needs = sorted((group.need.over(gpus) for group in groups), reverse=True)
    for count in sorted({needs.count(needs[0]), (len(needs) + 1) // 2, len(needs)}):
        least = Amounts(min(need.memory for need in needs[:count]), min(need.core for need in needs[:count]))
        yield least, count * gpus


def _amounts(container: ContainerSpec) -> Amounts:
    return Amounts(container.limits.get(GPU_MEM, 0), container.limits.get(GPU_CORE, 0))


def _need(containers: Iterable[ContainerSpec]) -> Amounts:
    given = tuple(containers)
    return Amounts(most_at_once(given, GPU_MEM), most_at_once(given, GPU_CORE))
