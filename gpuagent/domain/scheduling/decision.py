"""Reads the GPUs that a scheduler chose for the shares of a pod from its annotations, and checks them.

Any author of a pod can write annotations, and templates copy them from one pod to another. So annotations that do not
fit the pod are no decision: the agent serves the pod without them, and reports it. A decision that fits the pod but
that this node can never keep remains a decision. The caller then refuses the request, or chooses other GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from gpuagent.domain.pods.pod import ContainerRef, ContainerSpec, Pod, asked
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind

SKEW_NS = 60 * 10**9
"""Accepted difference between the clocks of scheduler and API server, in nanoseconds."""

GpuUnits = Mapping[str, int]
"""GPU UUID to units; the same number on each."""
ContainerUnits = dict[str, dict[int, int]]
"""Container's name to minor number to units."""
DecidedUnits = tuple[str, Mapping[str, ContainerUnits]]
"""The annotation that names the GPUs, and resource to the units of each container."""


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


def decided_containers(
    pod: Pod,
    decision: Decision,
) -> tuple[DecidedContainer, ...]:
    """The containers of a pod that a scheduler decided on."""
    by_container: dict[str, dict[str, dict[str, int]]] = {}
    for (name, resource), gpus in decision.units.items():
        by_gpu = by_container.setdefault(name, {})
        for uuid, units in gpus.items():
            of_gpu = by_gpu.setdefault(uuid, {})
            of_gpu[resource] = units
    containers = []
    for name, by_gpu in by_container.items():
        owner = ContainerRef(pod.name, name)
        containers.append(DecidedContainer(owner, by_gpu))
    return tuple(containers)


def read(
    pod: Pod,
    resource_kinds: Mapping[str, Kind],
    minors: Mapping[str, int],
    amounts: Mapping[str, GpuUnits],
) -> Decision | Ignored | None:
    """The scheduler's decision for a pod of this node; None if there is none.

    `resource_kinds` maps the resources of the mode in force to their kinds of unit. `minors` maps GPU UUIDs to minor
    numbers, the indexes that schedulers use; of two GPUs with one number, the last counts. `amounts` maps each resource
    to the total units of each GPU, and is empty for resources of other modes, which are at 0.
    """
    if not pod.annotations:
        return None
    memory: str | None = None
    core: str | None = None
    for name, kind in resource_kinds.items():
        if kind.is_memory:
            memory = name
        else:
            core = name
    if memory is None:
        return None
    decided = decided_units(pod, memory, core, minors)
    if decided is None or isinstance(decided, Ignored):
        return decided
    key, tables = decided
    return _resolved(pod, key, tables, minors, amounts)


def decided_units(
    pod: Pod,
    memory: str,
    core: str | None,
    minors: Mapping[str, int],
) -> DecidedUnits | Ignored | None:
    """The annotation that names the GPUs of a pod's shares, and the decided units of each resource.

    The units of each container are those of its limits, no more and no less: everything else is no decision for this
    pod. `memory` and `core` are the names of the resources; `core` is None where annotations about compute do not
    count. `minors` are as for `read`.
    """
    units = _fitting_units(pod, memory, core, minors)
    if units is None or isinstance(units, Ignored):
        return units
    why_not = for_another_pod(pod)
    return Ignored(why_not) if why_not else units


def _fitting_units(
    pod: Pod,
    memory: str,
    core: str | None,
    minors: Mapping[str, int],
) -> DecidedUnits | Ignored | None:
    """As `decided_units`, also where another pod was decided on."""
    of_memory = _memory(pod, memory, minors)
    if isinstance(of_memory, Ignored):
        return of_memory
    of_core = _v2(pod, CORE_ANNOTATION, core, minors) if core else None
    if isinstance(of_core, Ignored):
        return of_core
    if core is None:
        if not of_memory:
            return None
        key, memory_units = of_memory
        return key, {memory: memory_units}
    # A container has its other resource on the same GPU.
    if of_memory:
        key, memory_units = of_memory
        core_units = of_core or _same_gpu_units(pod, core, memory_units)
    elif of_core:
        key = CORE_ANNOTATION
        core_units = of_core
        memory_units = _same_gpu_units(pod, memory, core_units)
    else:
        return None
    why_not = _apart(pod, memory_units, core_units)
    return why_not or (key, {memory: memory_units, core: core_units})


def for_another_pod(pod: Pod) -> str:
    """Why the annotations belong to another pod; empty if they are this pod's own."""
    uid = pod.annotations.get(DECIDED_ANNOTATION, pod.uid)
    if uid == pod.uid:
        return ""
    return f"{DECIDED_ANNOTATION} names the pod with UID {shown(uid)}: it was copied"


def decided_text(pod: Pod, key: str) -> str | None:
    """An annotation of the pod; None where it is absent, or decides on another pod."""
    if for_another_pod(pod):
        return None
    return pod.annotations.get(key)


def _memory(
    pod: Pod,
    resource: str,
    minors: Mapping[str, int],
) -> tuple[str, ContainerUnits] | Ignored | None:
    """Memory by V2, or by V1 if V2 has no decision."""
    newer = _v2(pod, MEMORY_ANNOTATION, resource, minors)
    if newer is not None and not isinstance(newer, Ignored):
        return MEMORY_ANNOTATION, newer
    older = _v1(pod, resource, minors)
    if older is None or isinstance(older, Ignored):
        return newer or older
    return V1_GPU, older


def _v2(
    pod: Pod,
    key: str,
    resource: str,
    minors: Mapping[str, int],
) -> ContainerUnits | Ignored | None:
    """The units by a V2 annotation."""
    decision = shares(pod.annotations, key, minors)
    if isinstance(decision, Malformed):
        return Ignored(f"{decision.key} {decision.problem}")
    containers = pod.app_containers
    any_asks = any(container.limits.get(resource) for container in containers)
    if decision is None or not any_asks:
        return None
    for position, gpus in decision.containers.items():
        is_known = position < len(containers)
        # An entry without units is as good as none.
        if not is_known and any(gpus.values()):
            return Ignored(f"{key} names container {position}, and the pod has {len(containers)}")
    table: ContainerUnits = {}
    for position, container in enumerate(containers):
        named = decision.containers.get(position, {})
        gpus = {gpu: units for gpu, units in named.items() if units}
        why_not = _not_for_container(pod, container, resource, gpus)
        if why_not:
            return Ignored(f"{key} {why_not}")
        if gpus:
            table[container.name] = gpus
    return table


def _not_for_container(
    pod: Pod,
    container: ContainerSpec,
    resource: str,
    gpus: Mapping[int, int],
) -> str:
    """Why the units on each GPU are not what the container asks for; empty if they are."""
    wanted = container.limits.get(resource, 0)
    total = sum(gpus.values())
    if total != wanted:
        return f"gives container {container.name} {total} of {resource}, and it asks for {wanted}"
    if not wanted:
        return ""
    amounts = set(gpus.values())
    is_even = len(amounts) == 1
    has_all_gpus = len(gpus) == (pod.gpu_count or 1)
    if is_even and has_all_gpus:
        return ""
    if pod.gpu_count_label is None:
        asks = f"no label {GPU_COUNT_LABEL} asks for several"
    else:
        asks = f"the label {GPU_COUNT_LABEL} asks for {pod.gpu_count}, evenly"
    return f"gives container {container.name} units of GPU {_names(gpus)}, and {asks}"


def _v1(
    pod: Pod,
    resource: str,
    minors: Mapping[str, int],
) -> ContainerUnits | Ignored | None:
    """The units by the V1 annotations, which name one GPU for the whole pod."""
    decision = assumed(pod.annotations, minors)
    if isinstance(decision, Malformed):
        return Ignored(f"{decision.key} {decision.problem}")
    table: ContainerUnits = {}
    wanted = 0
    for container in pod.app_containers:
        units = container.limits.get(resource, 0)
        wanted += units
        if units and decision:
            table[container.name] = {decision.gpu: units}
    if decision is None or not wanted:
        return None
    most = asked(pod, resource)
    why_not = _not_for(pod, decision, wanted, most)
    return Ignored(why_not) if why_not else table


def _not_for(
    pod: Pod,
    decision: Assumed,
    wanted: int,
    most: int,
) -> str | None:
    """Why V1 annotations are no decision for this pod.

    Args:
        pod: with its annotations.
        decision: the content of the annotations.
        wanted: sum of the units of `spec.containers`, as the open extender counts.
        most: units with sidecars and init containers, as Kubernetes counts. A sidecar may be on another GPU, so the
            agent may write an amount between the two.
    """
    if decision.assumed_ns is None:
        return f"{V1_GPU} stands without {V1_ASSUMED}: no scheduler wrote it"
    if decision.assigned is None:
        return f"{V1_GPU} stands without {V1_ASSIGNED}: no scheduler wrote it"
    created_ns = _nanoseconds(pod.created)
    # A plugin writes `true`, and only after it has seen the pod.
    skew_ns = 0 if decision.assigned else SKEW_NS
    if created_ns is not None and decision.assumed_ns < created_ns - skew_ns:
        return f"{V1_ASSUMED} is older than the pod: it was copied from another pod"
    is_amount_right = decision.units is not None and wanted <= decision.units <= most
    if not is_amount_right:
        stated = "nothing" if decision.units is None else str(decision.units)
        more = f", with its sidecars and init containers {most}" if most > wanted else ""
        return f"{V1_UNITS} says {stated}, and the pod's containers ask for {wanted}{more}"
    wants_several = (pod.gpu_count or 1) > 1
    if wants_several:
        return f"{V1_GPU} names one GPU, and the pod's label {GPU_COUNT_LABEL} asks for {pod.gpu_count}"
    return None


def _same_gpu_units(
    pod: Pod,
    resource: str,
    table: ContainerUnits,
) -> ContainerUnits:
    """Units of `resource` on the GPU of the container's other resource, for containers on one GPU."""
    limits: dict[str, int] = {}
    for container in pod.app_containers:
        limits[container.name] = container.limits.get(resource, 0)
    units_on_gpu: ContainerUnits = {}
    for name, gpus in table.items():
        units = limits.get(name)
        is_on_one = len(gpus) == 1
        if units and is_on_one:
            units_on_gpu[name] = dict.fromkeys(gpus, units)
    return units_on_gpu


def _apart(
    pod: Pod,
    memory: ContainerUnits,
    core: ContainerUnits,
) -> Ignored | None:
    """A container whose memory and compute are on different GPUs."""
    for container in pod.app_containers:
        memory_gpus = memory.get(container.name)
        core_gpus = core.get(container.name)
        if not memory_gpus or not core_gpus:
            continue
        if memory_gpus.keys() != core_gpus.keys():
            of_memory = f"its memory on GPU {_names(memory_gpus)}"
            of_core = f"its compute on GPU {_names(core_gpus)}"
            disagree = f"{CORE_ANNOTATION} and that of the memory do not agree"
            return Ignored(f"{disagree}: {container.name} has {of_memory} and {of_core}")
    return None


def _resolved(
    pod: Pod,
    key: str,
    tables: Mapping[str, ContainerUnits],
    minors: Mapping[str, int],
    amounts: Mapping[str, GpuUnits],
) -> Decision:
    """The decision with UUIDs in place of minor numbers, or why this node can never keep it."""
    by_minor = {minor: uuid for uuid, minor in minors.items()}
    unknown = _unknown_gpu(tables, by_minor)
    if unknown is not None:
        text = f"names GPU {unknown}, and this node has no such GPU"
        return Decision(key, {}, unmet=text)
    units: dict[tuple[str, str], GpuUnits] = {}
    for resource, table in tables.items():
        for name, gpus in table.items():
            units[name, resource] = {by_minor[minor]: count for minor, count in gpus.items()}
    too_much = _too_much(pod, tables, by_minor, amounts)
    if too_much:
        return Decision(key, {}, unmet=too_much)
    follows: dict[tuple[str, str], str] = {}
    for resource in tables:
        # An init container has to be where the containers are that reuse its units.
        for init_name, takers in handing_on(pod, resource):
            decided = [taker for taker in takers if (taker, resource) in units]
            gpu_sets = {frozenset(units[taker, resource]) for taker in decided}
            if len(gpu_sets) > 1:
                names = " and ".join(takers)
                text = f"puts {names} on different GPUs, and kubelet hands the units of {init_name} on to both"
                return Decision(key, units, unmet=text)
            if decided:
                follows[init_name, resource] = decided[0]
    return Decision(key, units, follows)


def _unknown_gpu(tables: Mapping[str, ContainerUnits], by_minor: Mapping[int, str]) -> int | None:
    """A GPU that the decision names and the node does not have."""
    for table in tables.values():
        for gpus in table.values():
            unknown = gpus.keys() - by_minor
            if unknown:
                return unknown.pop()
    return None


def _too_much(
    pod: Pod,
    tables: Mapping[str, ContainerUnits],
    by_minor: Mapping[int, str],
    amounts: Mapping[str, GpuUnits],
) -> str:
    """Why the pod does not fit even on an empty node; empty if it fits."""
    for resource, by_gpu in amounts.items():
        wanted = asked(pod, resource)
        most = sum(by_gpu.values())
        if wanted > most:
            has = f"this node has {most} in all"
            return f"is on a pod that asks for {wanted} of {resource}, and {has}"
    for resource, table in tables.items():
        by_gpu = amounts[resource]
        totals: Counter[int] = Counter()
        for gpus in table.values():
            totals.update(gpus)
        for minor, wanted in totals.items():
            uuid = by_minor[minor]
            most = by_gpu.get(uuid, 0)
            if wanted > most:
                has = f"GPU {minor}, which has {most} in all"
                return f"gives the pod {wanted} of {resource} on {has}"
    return ""


def handing_on(pod: Pod, resource: str) -> Iterator[tuple[str, list[str]]]:
    """Init containers, each with the containers that reuse its units."""
    most = 0
    for position, container in enumerate(pod.containers):
        units = container.limits.get(resource)
        if not container.init or not units:
            continue
        # Kubelet has kept the units of the largest init container so far.
        most = max(most, units)
        later = pod.containers[position + 1 :]
        yield container.name, _takers(later, resource, most)


def _takers(containers: Iterable[ContainerSpec], resource: str, units: int) -> list[str]:
    """Names of the containers that get these units again, in the order in which they start."""
    remaining = units
    takers = []
    for container in containers:
        wanted = container.limits.get(resource)
        reuses = bool(wanted) and not container.init
        if remaining and wanted and reuses:
            takers.append(container.name)
            remaining -= min(remaining, wanted)
    return takers


def _names(gpus: Mapping[int, int] | list[int]) -> str:
    in_order = sorted(gpus)
    return " and ".join(map(str, in_order))


def _nanoseconds(created: str) -> int | None:
    """Unix nanoseconds of a `creationTimestamp`, which has whole seconds; None where it is none."""
    try:
        time = datetime.fromisoformat(created)
        seconds = int(time.timestamp())
    except (ValueError, OverflowError):
        return None
    return seconds * 10**9
