"""The GPUs that a pod asks for. Pods of one template have equal requests, which share all cached results."""

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from gpuagent.domain.pods.annotations import MOST_UNITS
from gpuagent.domain.pods.pod import ContainerSpec, Pod, asked
from gpuagent.domain.scheduling.decision import handing_on
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
"""The resources that the scheduler places."""


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


NOTHING = Amounts()


class RequestKind(enum.Enum):
    """Which resources a pod asks for."""

    NONE = enum.auto()
    SHARE = enum.auto()
    WHOLE = enum.auto()


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
        kind: shares, whole GPUs or none.
        gpus: number of whole GPUs; for shares, over how many GPUs each container is spread evenly.
        groups: of the containers with shares. Two groups may be on different GPUs.
        need: of the whole pod on one GPU, as Kubernetes counts.
        problem: why no node can serve it, after "the pod "; empty if one may.
    """

    kind: RequestKind
    gpus: int = 1
    groups: tuple[Group, ...] = ()
    need: Amounts = NOTHING
    problem: str = ""


NO_REQUEST = GpuRequest(RequestKind.NONE)


def gpu_request(pod: Pod) -> GpuRequest:
    """The request of a pod."""
    named = {name for c in pod.containers for name in (*c.limits, *c.unread) if name in RESOURCES}
    if not named:
        return NO_REQUEST
    kind = RequestKind.WHOLE if GPU_WHOLE in named else RequestKind.SHARE
    if unread := [f"{name} of {c.name}" for c in pod.containers for name in sorted(c.unread.intersection(RESOURCES))]:
        return GpuRequest(kind, problem=f"asks for an amount that is no whole number ({unread[0]})")
    most = max(amount for c in pod.containers for name, amount in c.limits.items() if name in RESOURCES)
    if most > MOST_UNITS:
        return GpuRequest(kind, problem=f"asks for {most} of one resource, which is more than any node has")
    if kind is RequestKind.SHARE:
        return _share(pod)
    if others := sorted(named - {GPU_WHOLE}):
        return GpuRequest(kind, problem=f"asks for {GPU_WHOLE} and for {others[0]}; ask for one of them")
    return GpuRequest(kind, gpus=asked(pod, GPU_WHOLE))


def _share(pod: Pod) -> GpuRequest:
    gpus, label = pod.gpu_count or 1, pod.gpu_count_label
    request = GpuRequest(RequestKind.SHARE, gpus, tuple(_groups(pod)), _need(pod, pod.containers))
    if label is not None and pod.gpu_count is None:
        return replace(request, problem=f"has label {GPU_COUNT_LABEL} with a value that is no number of GPUs")
    for container in pod.containers:
        for name in (GPU_MEM, GPU_CORE):
            if (units := container.limits.get(name, 0)) % gpus:
                text = f"asks for {units} of {name} in {container.name}, which {gpus} GPUs cannot share evenly"
                return replace(request, problem=f"{text} (label {GPU_COUNT_LABEL})")
    return request


def _groups(pod: Pod) -> list[Group]:
    """The groups. Sidecars, and init containers whose units no container reuses, are in the first one."""
    numbers = {c.name: n for n, c in enumerate(pod.app_containers) if _amounts(c) != NOTHING}
    members = [{name} for name in numbers] or [set[str]()]
    for resource in (GPU_MEM, GPU_CORE):
        for first, takers in handing_on(pod, resource):
            one, *others = [names for names in members if not names.isdisjoint(takers)] or members[:1]
            one.update({first}, *others)
            members = [names for names in members if names not in others]
    members[0].update(c.name for c in pod.containers if c.sidecar)
    return [
        Group(
            tuple((n, _amounts(pod.app_containers[n])) for name, n in numbers.items() if name in names),
            _need(pod, [c for c in pod.containers if c.name in names]),
        )
        for names in members
    ]


def _amounts(container: ContainerSpec) -> Amounts:
    return Amounts(container.limits.get(GPU_MEM, 0), container.limits.get(GPU_CORE, 0))


def _need(pod: Pod, containers: Collection[ContainerSpec]) -> Amounts:
    part = replace(pod, containers=tuple(containers))
    return Amounts(asked(part, GPU_MEM), asked(part, GPU_CORE))
