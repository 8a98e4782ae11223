"""The GPUs that a pod asks for. Pods of one template have equal requests, which share all cached results."""

import enum
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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

MOST_KNOWN = 1024
"""Different requests that are kept."""
MOST_COMPARED = 16
"""Containers of a pod whose request is kept: many would take longer to compare."""


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
        # Twice negative, because `//` rounds down.
        memory = -(-self.memory // gpus)
        core = -(-self.core // gpus)
        return Amounts(memory, core)

    def times_in(self, free: "Amounts", most: int) -> int:
        """How many times `free` has this, at most `most`."""
        if not self.within(free):
            # Also where others use more than there is of a resource that this does not need.
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

    @property
    def is_single_share(self) -> bool:
        """Whether all of it is a share of one GPU, for which there is nothing to search."""
        return self.kind is RequestKind.SHARE and self.gpus == 1 and len(self.groups) <= 1


NO_REQUEST = GpuRequest(RequestKind.NONE)
_known: dict[Hashable, GpuRequest] = {}
"""What the containers of a pod ask for to its request."""


def gpu_request(pod: Pod) -> GpuRequest:
    """The request of a pod. It is worked out once for all pods of a template, and for all events about one pod."""
    if len(pod.containers) > MOST_COMPARED:
        return _gpu_request(pod)
    asks = pod.gpu_count_label, tuple(_compared(container) for container in pod.containers)
    request = _known.get(asks)
    if request is None:
        request = _gpu_request(pod)
        while len(_known) >= MOST_KNOWN:
            first = next(iter(_known))
            del _known[first]
        _known[asks] = request
    return request


def _compared(container: ContainerSpec) -> Hashable:
    """All that a request depends on."""
    limits = tuple(container.limits.items())
    return container.name, limits, container.init, container.sidecar, container.unread


def _gpu_request(pod: Pod) -> GpuRequest:
    named = _named(pod)
    if not named:
        if asks_for_count(pod):
            return GpuRequest(RequestKind.COUNT, problem=COUNT_ONLY)
        return NO_REQUEST
    kind = RequestKind.WHOLE if GPU_WHOLE in named else RequestKind.SHARE
    problem = _unread(pod) or _more_than_a_node(pod)
    if problem:
        return GpuRequest(kind, problem=problem)
    if kind is RequestKind.SHARE:
        return _share(pod)
    others = sorted(named - {GPU_WHOLE})
    if others:
        problem = f"asks for {GPU_WHOLE} and for {others[0]}; ask for one of them"
        return GpuRequest(kind, problem=problem)
    count = asked(pod, GPU_WHOLE)
    return GpuRequest(kind, gpus=count)


def _named(pod: Pod) -> set[str]:
    """Which of `RESOURCES` the containers name, amounts that cannot be read included."""
    names = set[str]()
    for container in pod.containers:
        names.update(container.limits)
        names.update(container.unread)
    return names.intersection(RESOURCES)


def _unread(pod: Pod) -> str:
    """Which amount of a container cannot be read; empty if all can."""
    for container in pod.containers:
        unread = container.unread.intersection(RESOURCES)
        if unread:
            name = min(unread)
            return f"asks for an amount that is no whole number ({name} of {container.name})"
    return ""


def _more_than_a_node(pod: Pod) -> str:
    """Why no node has as much as a container asks for, whatever its GPUs; empty if one may."""
    limits: list[tuple[int, str]] = []
    for container in pod.containers:
        for name, units in container.limits.items():
            if name in RESOURCES:
                limits.append((units, name))
    most, resource = max(limits, key=lambda limit: limit[0])
    if most < MORE_THAN_A_NODE:
        return ""
    problem = f"asks for {most} of {resource}, which is more than any node has"
    # An author who writes bytes instead of units gets such a number.
    hint = if_bytes(most) if resource == GPU_MEM else ""
    return f"{problem}; {hint}" if hint else problem


def _share(pod: Pod) -> GpuRequest:
    """The request of a pod that asks for shares."""
    gpus = pod.gpu_count or 1
    asking = [container for container in pod.containers if _amounts(container) != NOTHING]
    # Init containers ask, too, but a decision names amounts for those in `spec.containers` alone.
    amounts: dict[int, Amounts] = {}
    for number, container in enumerate(pod.app_containers):
        each = _amounts(container)
        if each != NOTHING:
            amounts[number] = each
    if len(asking) > MOST_CONTAINERS:
        return _too_many(asking, amounts, gpus)
    names = [container.name for container in pod.app_containers]
    # To look at thousands of containers that ask for nothing takes long, so they are left out from here on.
    asking_pod = replace(pod, containers=tuple(asking))
    groups = _groups(asking_pod, amounts, names)
    cores = [each.core for each in amounts.values()]
    request = GpuRequest(
        kind=RequestKind.SHARE,
        gpus=gpus,
        groups=groups,
        need=_need(asking),
        slots=tuple(_slots(groups, gpus)),
        apart=sum((group.need for group in groups), NOTHING),
        core_divisor=gcd(*cores),
        paired=all(each.memory and each.core for each in amounts.values()),
    )
    problem = _label_problem(pod) or _uneven(asking, gpus)
    return replace(request, problem=problem) if problem else request


def _too_many(
    asking: Collection[ContainerSpec],
    amounts: Mapping[int, Amounts],
    gpus: int,
) -> GpuRequest:
    """A request that no node serves, because to place so many containers takes too long."""
    need = _need(asking)
    return GpuRequest(
        kind=RequestKind.SHARE,
        gpus=gpus,
        groups=(Group(tuple(amounts.items()), need),),
        need=need,
        problem=f"asks for GPU units in {len(asking)} containers; at most {MOST_CONTAINERS} of a pod may ask for them",
    )


def _label_problem(pod: Pod) -> str:
    """That the number of GPUs in the pod's label cannot be read; empty if it can, or there is no label."""
    if pod.gpu_count_label is None or pod.gpu_count is not None:
        return ""
    return f"has label {GPU_COUNT_LABEL} with a value that is no number of GPUs"


def _uneven(asking: Iterable[ContainerSpec], gpus: int) -> str:
    """Which amount cannot be spread evenly over so many GPUs; empty if all can."""
    for container in asking:
        for name in (GPU_MEM, GPU_CORE):
            units = container.limits.get(name, 0)
            if units % gpus:
                amount = f"{units} of {name}"
                return (
                    f"asks for {amount} in {container.name}, "
                    f"which {gpus} GPUs cannot share evenly (label {GPU_COUNT_LABEL})"
                )
    return ""


def _groups(
    pod: Pod,
    amounts: Mapping[int, Amounts],
    names: Sequence[str],
) -> tuple[Group, ...]:
    """The groups. Sidecars, and init containers whose units no container reuses, are in the first one.

    Args:
        pod: with the containers that ask for units, and no others.
        amounts: by index in `spec.containers`.
        names: of all containers there.
    """
    app_names = [names[number] for number in amounts]
    members = _grouped_names(pod, app_names)
    group_of: dict[str, int] = {}
    for group, names_of_group in enumerate(members):
        group_of.update(dict.fromkeys(names_of_group, group))
    # The init containers count for the need of a group, and a decision gives them nothing.
    containers: list[list[ContainerSpec]] = [[] for _ in members]
    for container in pod.containers:
        group = group_of[container.name]
        containers[group].append(container)
    given: list[list[tuple[int, Amounts]]] = [[] for _ in members]
    for number, each in amounts.items():
        group = group_of[names[number]]
        given[group].append((number, each))
    groups: list[Group] = []
    for of_apps, of_all in zip(given, containers, strict=True):
        groups.append(Group(tuple(of_apps), _need(of_all)))
    return tuple(groups)


def _grouped_names(pod: Pod, app_names: Sequence[str]) -> list[set[str]]:
    """Names of the containers of each group."""
    groups = [{name} for name in app_names] or [set[str]()]
    for resource in (GPU_MEM, GPU_CORE):
        for init_name, takers in handing_on(pod, resource):
            # Kubelet hands the units of the init container on to all takers, so that they need the same GPUs.
            joined = [group for group in groups if not group.isdisjoint(takers)]
            if not joined:
                # Its units are not reused, so it may be on any GPU.
                joined = groups[:1]
            merged = joined[0]
            merged.add(init_name)
            for other in joined[1:]:
                merged.update(other)
                groups.remove(other)
    sidecars = [container.name for container in pod.containers if container.sidecar]
    groups[0].update(sidecars)
    return groups


def _slots(groups: Collection[Group], gpus: int) -> Iterator[tuple[Amounts, int]]:
    """What a node must have free for the largest group, for the larger half of the groups, and for all of them."""
    needs = [group.need.over(gpus) for group in groups]
    needs.sort(reverse=True)
    largest = needs.count(needs[0])
    half = (len(needs) + 1) // 2
    counts = {largest, half, len(needs)}
    for count in sorted(counts):
        # The slot has to be in each of these needs.
        these = needs[:count]
        memory = min(need.memory for need in these)
        core = min(need.core for need in these)
        yield Amounts(memory, core), count * gpus


def _amounts(container: ContainerSpec) -> Amounts:
    memory = container.limits.get(GPU_MEM, 0)
    core = container.limits.get(GPU_CORE, 0)
    return Amounts(memory, core)


def _need(containers: Iterable[ContainerSpec]) -> Amounts:
    """The most that these containers have at one time."""
    given = tuple(containers)
    return Amounts(most_at_once(given, GPU_MEM), most_at_once(given, GPU_CORE))
