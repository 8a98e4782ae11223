"""A pod as the scheduler keeps it: small, because a cluster has tens of thousands."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

from gpuagent.domain.pods.annotations import gpu_names
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.pod import Pod, PodName, count_of, parse_pod
from gpuagent.domain.scheduling.decision import ContainerUnits, Ignored, decided_units, for_another_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_MEM, GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gpu_request import (
    NO_REQUEST,
    NOTHING,
    RESOURCES,
    WHOLE,
    Amounts,
    GpuRequest,
    RequestKind,
    Used,
    gpu_request,
)
from gpuscheduler.core.node_facts import cores

COMMIT_ANNOTATION = "gpuagent.io/gang-commit"
"""The plan of a job, written on one of its pods before the first is bound."""
MOST_TEXT = 1024
MOST_READ = 1000
"""Containers of a pod that waits, init containers included. A pod of 1.5 MB has thousands."""
_NAMES = (*RESOURCES, GPU_COUNT)
_Value = TypeVar("_Value", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobLabels:
    """A pod's place in a job: labels `gpu-topology` and `gpu-topology-replica`.

    Attributes:
        name: of the job, in the pod's namespace.
        replicas: how many pods it has; None if the label is no number.
    """

    name: str
    replicas: int | None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod.

    Attributes:
        name: namespace and name.
        uid: of the pod.
        version: its resourceVersion.
        node: where it is bound; empty while it is not.
        request: the GPUs that it asks for.
        cpu: cores that it asks for.
        used: what it uses of each GPU, by its annotations or what `Scheduling` knows better; None without a valid
            decision.
        priority: of its PriorityClass.
        created: creationTimestamp.
        ended: it succeeded or failed.
        succeeded: it did not fail.
        deleting: it has a deletion timestamp.
        gated: it has scheduling gates.
        refused: the agent or kubelet refused it at admission.
        job: its job, if it is a member of one.
        scheduler: `spec.schedulerName`.
        nominated: `status.nominatedNodeName`.
        unscheduled: why kube-scheduler found no node, in its words; at most `MOST_TEXT` characters.
        owner: UID of its controller; its own where it has none.
        wishes: it states a preference among nodes.
        commit: text of the written plan of its job; empty on most pods.
    """

    name: PodName
    uid: str
    version: str
    node: str
    request: GpuRequest
    cpu: float = 0.0
    used: Used | None = None
    priority: int = 0
    created: str = ""
    ended: bool = False
    succeeded: bool = False
    deleting: bool = False
    gated: bool = False
    refused: bool = False
    job: JobLabels | None = None
    scheduler: str = ""
    nominated: str = ""
    unscheduled: str = ""
    owner: str = ""
    wishes: bool = False
    commit: str = ""


def shared(value: _Value) -> _Value:
    """The first value that was equal to this one: tens of thousands of pods have few requests, uses and owners."""
    return cast(_Value, _first(value))


@lru_cache(maxsize=16384, typed=True)
def _first(value: Hashable) -> Hashable:
    return value


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """Read a Pod object (decoded JSON). Fields that are absent or of another shape count as empty."""
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    too_many = _too_many_containers(spec)
    if too_many is not None:
        # To read them takes tens of milliseconds, in each call about the pod.
        spec = {**spec, "containers": [], "initContainers": []}
        pod = {**pod, "spec": spec}
    parsed = parse_pod(pod)
    request = shared(too_many or gpu_request(parsed))
    used = shared(_used(parsed, request)) if request.kind.gives_gpus else None
    job = _job(parsed.labels)
    annotations = mapping(metadata.get("annotations"))
    priority = spec.get("priority")
    return PodFacts(
        name=PodName(shared(parsed.name.namespace), parsed.name.name),
        uid=parsed.uid,
        version=parsed.version,
        node=shared(text(spec.get("nodeName"))),
        request=request,
        cpu=_cpu(spec),
        used=used,
        priority=priority if isinstance(priority, int) else 0,
        created=shared(parsed.created),
        ended=parsed.ended,
        succeeded=status.get("phase") == "Succeeded",
        deleting=parsed.deleting,
        gated=any(True for _ in mappings(spec.get("schedulingGates"))),
        refused=parsed.rejected is not None,
        job=job,
        scheduler=shared(text(spec.get("schedulerName"))),
        nominated=text(status.get("nominatedNodeName")),
        unscheduled=_unscheduled(status),
        owner=shared(parsed.controller.uid) if parsed.controller else parsed.uid,
        wishes=_wishes(spec),
        commit=text(annotations.get(COMMIT_ANNOTATION)) if job else "",
    )


def _job(labels: Mapping[str, str]) -> JobLabels | None:
    name = labels.get(JOB_LABEL)
    if not name:
        return None
    replicas = count_of(labels.get(REPLICAS_LABEL))
    return JobLabels(name, replicas)


def _too_many_containers(spec: Mapping[str, Any]) -> GpuRequest | None:
    """The request of a pod that has more containers than are read; None if they are read.

    What a pod on a node may hold has to be known, so that its containers are always read.
    """
    containers = [*mappings(spec.get("initContainers")), *mappings(spec.get("containers"))]
    if len(containers) <= MOST_READ or spec.get("nodeName"):
        return None
    for container in containers:
        resources = mapping(container.get("resources"))
        limits = mapping(resources.get("limits"))
        if not limits.keys().isdisjoint(_NAMES):
            problem = f"has {len(containers)} containers; at most {MOST_READ} of a pod that asks for GPUs are read"
            return GpuRequest(RequestKind.SHARE, problem=problem)
    return NO_REQUEST


def _used(pod: Pod, request: GpuRequest) -> Used | None:
    """The use of each GPU by the annotations; None where they are no decision that gives the pod just its limits."""
    if request.kind is RequestKind.WHOLE:
        return None if for_another_pod(pod) else _whole(pod, request.gpus)
    # Annotations of another pod, copied from a template, stay beside those of the Binding.
    core_resource = GPU_CORE if request.need.core else None
    decided = decided_units(pod, GPU_MEM, core_resource, {})
    if decided is None or isinstance(decided, Ignored):
        return None
    _, tables = decided
    memory = _by_gpu(tables.get(GPU_MEM, {}))
    core = _by_gpu(tables.get(GPU_CORE, {}))
    needs = _needs(request, _containers_by_gpu(pod, tables))
    used: list[tuple[int, Amounts]] = []
    for minor in sorted(needs):
        given = Amounts(memory[minor], core[minor])
        used.append((minor, given.at_least(needs[minor])))
    return tuple(used)


def _by_gpu(units: ContainerUnits) -> Counter[int]:
    """Units of one resource on each GPU, of all containers together."""
    total = Counter[int]()
    for gpus in units.values():
        total.update(gpus)
    return total


def _containers_by_gpu(pod: Pod, tables: Mapping[str, ContainerUnits]) -> dict[int, set[int]]:
    """Minor number of each GPU to the indexes in `spec.containers` of the containers with units there."""
    numbers = {container.name: number for number, container in enumerate(pod.app_containers)}
    containers: dict[int, set[int]] = {}
    for units in tables.values():
        for name, gpus in units.items():
            for minor in gpus:
                containers.setdefault(minor, set()).add(numbers[name])
    return containers


def _whole(pod: Pod, count: int) -> Used | None:
    """The whole GPUs that the annotation names; None unless they are as many as the pod asks for."""
    names = gpu_names(pod.annotations, GROUP_ANNOTATION)
    if not isinstance(names, tuple) or not all(name.isdecimal() for name in names):
        return None
    minors = sorted({int(name) for name in names})
    if len(minors) != count:
        return None
    return tuple((minor, WHOLE) for minor in minors)


def _needs(request: GpuRequest, containers: Mapping[int, Collection[int]]) -> dict[int, Amounts]:
    """What Kubernetes counts on each GPU: the annotations do not name init containers and sidecars.

    `containers` has the indexes of the containers by GPU.
    """
    if len(containers) == request.gpus:
        return dict.fromkeys(containers, request.need.over(request.gpus))
    needs = dict.fromkeys(containers, NOTHING)
    for group in request.groups:
        numbers = {number for number, _ in group.containers}
        each = group.need.over(request.gpus)
        for minor, of_gpu in containers.items():
            if not numbers.isdisjoint(of_gpu):
                needs[minor] += each
    return needs


def _cpu(spec: Mapping[str, Any]) -> float:
    """Cores as Kubernetes counts them: the sum of the containers, or the largest init container."""
    together = sum(_requested(spec.get("containers")))
    largest_init = max(_requested(spec.get("initContainers")), default=0.0)
    return max(together, largest_init)


def _requested(containers: object) -> Iterator[float]:
    """Cores that each container asks for."""
    for container in mappings(containers):
        resources = mapping(container.get("resources"))
        requests = mapping(resources.get("requests"))
        yield cores(requests.get("cpu", "0"))


def _unscheduled(status: Mapping[str, Any]) -> str:
    """Why kube-scheduler found no node, in its words; empty if it says nothing."""
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return text(condition.get("message"))[:MOST_TEXT]
    return ""


def _wishes(spec: Mapping[str, Any]) -> bool:
    """Whether the pod states a preference among nodes."""
    affinity = mapping(spec.get("affinity"))
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        if mapping(affinity.get(kind)).get("preferredDuringSchedulingIgnoredDuringExecution"):
            return True
    spread = mappings(spec.get("topologySpreadConstraints"))
    return any(constraint.get("whenUnsatisfiable") == "ScheduleAnyway" for constraint in spread)
