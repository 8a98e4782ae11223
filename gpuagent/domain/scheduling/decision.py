"""Reads the GPUs that a scheduler chose for the shares of a pod from its annotations, and checks them.

Any author of a pod can write annotations, and templates copy them from one pod to another. So annotations that do not
fit the pod are no decision: the agent serves the pod without them, and reports it. A decision that fits the pod but
that this node can never keep remains a decision. The caller then refuses the request, or chooses other GPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_ASSUMED,
    V1_GPU,
    V1_UNITS,
    Assumed,
    Malformed,
    assumed,
    shares,
    shown,
)
from gpuagent.domain.pods.pod import ContainerRef, Pod, asked
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind

SKEW_NS = 60 * 10**9
"""Accepted difference between the clocks of scheduler and API server, in nanoseconds."""

GpuUnits = Mapping[str, int]
"""GPU UUID to units; the same number on each."""
ContainerUnits = dict[str, dict[int, int]]
"""Container's name to minor number to units."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A scheduler's decision for one pod.

    Attributes:
        key: the annotation that names the GPUs, for messages.
        units: container's name and resource to its units on each GPU. Schedulers number only `spec.containers`, so init
            containers and sidecars have no entry.
        follows: name of an ordinary init container, and resource, to the container that reuses its units.
        unmet: why this node can never keep the decision; empty if it may. It continues the sentence after "annotation
            KEY ".
    """

    key: str
    units: Mapping[tuple[str, str], GpuUnits]
    follows: Mapping[tuple[str, str], str] = field(default_factory=dict)
    unmet: str = ""

    @property
    def uuids(self) -> frozenset[str]:
        """UUIDs of all GPUs of the pod."""
        return frozenset[str]().union(*self.units.values())


@dataclass(frozen=True, slots=True)
class Ignored:
    """Annotations that are no decision for this pod. `why` continues the sentence after "annotation "."""

    why: str


@dataclass(frozen=True, slots=True)
class DecidedContainer:
    """GPUs that a scheduler chose for one container: UUID to resource to units."""

    owner: ContainerRef
    units: Mapping[str, Mapping[str, int]]


def decided_containers(pod: Pod, decision: Decision) -> tuple[DecidedContainer, ...]:
    """The containers of a pod that a scheduler decided on."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for (name, resource), gpus in decision.units.items():
        for uuid, units in gpus.items():
            found[name][uuid][resource] = units
    return tuple(DecidedContainer(ContainerRef(pod.name, name), units) for name, units in found.items())


def read(
    pod: Pod, resource_kinds: Mapping[str, Kind], minors: Mapping[str, int], amounts: Mapping[str, GpuUnits]
) -> Decision | Ignored | None:
    """The scheduler's decision for a pod of this node; None if there is none.

    `resource_kinds` maps the resources of the mode in force to their kinds of unit. `minors` maps GPU UUIDs to minor
    numbers, the indexes that schedulers use; of two GPUs with one number, the last counts. `amounts` maps each resource
    to the total units of each GPU, and is empty for resources of other modes, which are at 0.
    """
    memory = next((name for name, kind in resource_kinds.items() if kind.is_memory), None)
    if memory is None or not pod.annotations:
        return None
    core = next((name for name in resource_kinds if name != memory), None)
    decided = decided_units(pod, memory, core, minors)
    if decided is None or isinstance(decided, Ignored):
        return decided
    key, tables = decided
    return _resolved(pod, key, tables, minors, amounts)


def decided_units(
    pod: Pod, memory: str, core: str | None, minors: Mapping[str, int]
) -> tuple[str, Mapping[str, ContainerUnits]] | Ignored | None:
    """The annotation that names the GPUs of a pod's shares, and the decided units of each resource.

    The units of each container are those of its limits, no more and no less: everything else is no decision for this
    pod. `memory` and `core` are the names of the resources; `core` is None where annotations about compute do not
    count. `minors` are as for `read`.
    """
    units = _fitting_units(pod, memory, core, minors)
    if units is None or isinstance(units, Ignored):
        return units
    if why := for_another_pod(pod):
        return Ignored(why)
    return units


def _fitting_units(
    pod: Pod, memory: str, core: str | None, minors: Mapping[str, int]
) -> tuple[str, Mapping[str, ContainerUnits]] | Ignored | None:
    """As `decided_units`, also where another pod was decided on."""
    tables: dict[str, ContainerUnits] = {}
    found = _memory(pod, memory, minors)
    if isinstance(found, Ignored):
        return found
    key = MEMORY_ANNOTATION
    if found:
        key, tables[memory] = found
    cores = _v2(pod, CORE_ANNOTATION, core, minors) if core else None
    if isinstance(cores, Ignored):
        return cores
    if core and cores:
        key, tables[core] = (key if memory in tables else CORE_ANNOTATION), cores
    if not tables:
        return None
    for one, other in ((memory, core), (core, memory)):
        if one in tables and other and other not in tables:  # a container has its other resource on the same GPU
            tables[other] = _same_gpu_units(pod, other, tables[one])
    if core and (apart := _apart(pod, tables[memory], tables[core])):
        return apart
    return key, {name: tables[name] for name in (memory, core) if name in tables}


def for_another_pod(pod: Pod) -> str:
    """Why the pod's annotations decide on another pod; empty where they do not."""
    uid = pod.annotations.get(DECIDED_ANNOTATION, pod.uid)
    return "" if uid == pod.uid else f"{DECIDED_ANNOTATION} names the pod with UID {shown(uid)}: it was copied"


def decided_text(pod: Pod, key: str) -> str | None:
    """An annotation of the pod; None where it is absent, or decides on another pod."""
    return None if for_another_pod(pod) else pod.annotations.get(key)


def _memory(pod: Pod, resource: str, minors: Mapping[str, int]) -> tuple[str, ContainerUnits] | Ignored | None:
    """Memory by V2, or by V1 if V2 has no decision."""
    newer = _v2(pod, MEMORY_ANNOTATION, resource, minors)
    if newer is not None and not isinstance(newer, Ignored):
        return MEMORY_ANNOTATION, newer
    older = _v1(pod, resource, minors)
    if older is None or isinstance(older, Ignored):
        return newer or older
    return V1_GPU, older


def _v2(pod: Pod, key: str, resource: str, minors: Mapping[str, int]) -> ContainerUnits | Ignored | None:
    found = shares(pod.annotations, key, minors)
    if isinstance(found, Malformed):
        return Ignored(str(found)[len("annotation ") :])
    apps = pod.app_containers
    if found is None or not any(c.limits.get(resource) for c in apps):
        return None
    beyond = [n for n, gpus in found.containers.items() if n >= len(apps) and any(gpus.values())]
    if beyond:
        return Ignored(f"{key} names container {beyond[0]}, and the pod has {len(apps)}")
    table: ContainerUnits = {}
    for number, container in enumerate(apps):
        gpus = {gpu: units for gpu, units in found.containers.get(number, {}).items() if units}
        wanted = container.limits.get(resource, 0)
        if sum(gpus.values()) != wanted:
            text = f"gives container {container.name} {sum(gpus.values())} of {resource}, and it asks for {wanted}"
            return Ignored(f"{key} {text}")
        if wanted and (len(gpus) != (pod.gpu_count or 1) or len(set(gpus.values())) > 1):
            label = f"the label {GPU_COUNT_LABEL} asks for {pod.gpu_count}, evenly"
            asks = f"and no label {GPU_COUNT_LABEL} asks for several" if pod.gpu_count_label is None else f"and {label}"
            return Ignored(f"{key} gives container {container.name} units of GPU {_names(gpus)}, {asks}")
        if wanted:
            table[container.name] = gpus
    return table


def _v1(pod: Pod, resource: str, minors: Mapping[str, int]) -> ContainerUnits | Ignored | None:
    found = assumed(pod.annotations, minors)
    if isinstance(found, Malformed):
        return Ignored(str(found)[len("annotation ") :])
    wanted = sum(c.limits.get(resource, 0) for c in pod.app_containers)
    if found is None or not wanted:
        return None
    if why := _not_for(pod, found, wanted, asked(pod, resource)):
        return Ignored(why)
    return {c.name: {found.gpu: units} for c in pod.app_containers if (units := c.limits.get(resource))}


def _not_for(pod: Pod, found: Assumed, wanted: int, most: int) -> str | None:
    """Why V1 annotations are no decision for this pod.

    Args:
        pod: with its annotations.
        found: the content of the annotations.
        wanted: sum of the units of `spec.containers`, as the open extender counts.
        most: units with sidecars and init containers, as Kubernetes counts. A sidecar may be on another GPU, so the
            agent may write an amount between the two.
    """
    if found.assumed_ns is None or found.assigned is None:
        missing = V1_ASSUMED if found.assumed_ns is None else V1_ASSIGNED
        return f"{V1_GPU} stands without {missing}: no scheduler wrote it"
    created = _nanoseconds(pod.created)
    skew = 0 if found.assigned else SKEW_NS  # a plugin writes `true`, after it has seen the pod
    if created is not None and found.assumed_ns < created - skew:
        return f"{V1_ASSUMED} is older than the pod: it was copied from another pod"
    if found.units is None or not wanted <= found.units <= most:
        stated = "nothing" if found.units is None else str(found.units)
        more = f", with its sidecars and init containers {most}" if most > wanted else ""
        return f"{V1_UNITS} says {stated}, and the pod's containers ask for {wanted}{more}"
    if (pod.gpu_count or 1) > 1:
        return f"{V1_GPU} names one GPU, and the pod's label {GPU_COUNT_LABEL} asks for {pod.gpu_count}"
    return None


def _same_gpu_units(pod: Pod, resource: str, table: ContainerUnits) -> ContainerUnits:
    """Units of `resource` on the GPU of the container's other resource, for containers on one GPU."""
    limits = {c.name: c.limits.get(resource, 0) for c in pod.app_containers}
    return {
        name: dict.fromkeys(gpus, limits[name]) for name, gpus in table.items() if limits.get(name) and len(gpus) == 1
    }


def _apart(pod: Pod, memory: ContainerUnits, core: ContainerUnits) -> Ignored | None:
    for container in pod.app_containers:
        here, there = memory.get(container.name), core.get(container.name)
        if here and there and here.keys() != there.keys():
            gpus = f"its memory on GPU {_names(here)} and its compute on GPU {_names(there)}"
            return Ignored(f"{CORE_ANNOTATION} and that of the memory do not agree: {container.name} has {gpus}")
    return None


def _resolved(
    pod: Pod,
    key: str,
    tables: Mapping[str, ContainerUnits],
    minors: Mapping[str, int],
    amounts: Mapping[str, GpuUnits],
) -> Decision:
    by_minor = {minor: uuid for uuid, minor in minors.items()}
    if gone := [minor for table in tables.values() for gpus in table.values() for minor in gpus.keys() - by_minor]:
        return Decision(key, {}, unmet=f"names GPU {gone[0]}, and this node has no such GPU")
    if too_much := _too_much(pod, tables, by_minor, amounts):
        return Decision(key, {}, unmet=too_much)
    units = {
        (name, resource): {by_minor[minor]: amount for minor, amount in gpus.items()}
        for resource, table in tables.items()
        for name, gpus in table.items()
    }
    follows: dict[tuple[str, str], str] = {}
    for resource in tables:
        for first, takers in handing_on(pod, resource):
            if len({frozenset(units[taker, resource]) for taker in takers if (taker, resource) in units}) > 1:
                text = (
                    f"puts {' and '.join(takers)} on different GPUs, and kubelet hands the units of {first} on to both"
                )
                return Decision(key, units, unmet=text)
            if chosen := [taker for taker in takers if (taker, resource) in units]:
                follows[first, resource] = chosen[0]
    return Decision(key, units, follows)


def _too_much(
    pod: Pod, tables: Mapping[str, ContainerUnits], by_minor: Mapping[int, str], amounts: Mapping[str, GpuUnits]
) -> str:
    """Why the pod does not fit even on an empty node; empty if it fits."""
    for resource, of in amounts.items():
        if (wanted := asked(pod, resource)) > (most := sum(of.values())):
            return f"is on a pod that asks for {wanted} of {resource}, and this node has {most} in all"
    for resource, table in tables.items():
        units: Counter[int] = Counter()
        for gpus in table.values():
            units.update(gpus)
        for minor, wanted in units.items():
            if wanted > (most := amounts[resource].get(by_minor[minor], 0)):
                return f"gives the pod {wanted} of {resource} on GPU {minor}, which has {most} in all"
    return ""


def handing_on(pod: Pod, resource: str) -> Iterator[tuple[str, list[str]]]:
    """Init containers, each with the containers that reuse its units."""
    most = 0
    for place, container in enumerate(pod.containers):
        if container.init and (units := container.limits.get(resource)):
            most = left = max(most, units)
            takers = []
            for taker in pod.containers[place + 1 :]:
                if left and not taker.init and (wants := taker.limits.get(resource)):
                    takers.append(taker.name)
                    left -= min(left, wants)
            yield container.name, takers


def _names(gpus: Mapping[int, int] | list[int]) -> str:
    return " and ".join(map(str, sorted(gpus)))


def _nanoseconds(created: str) -> int | None:
    """Unix nanoseconds of a `creationTimestamp`, which has whole seconds; None where it is none."""
    try:
        return int(datetime.fromisoformat(created).timestamp()) * 10**9
    except (ValueError, OverflowError):
        return None
