"""A pod as the scheduler keeps it: small, because a cluster has tens of thousands."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

from gpuagent.domain.pods.annotations import gpu_names
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.pod import Pod, PodName, count_of, parse_pod
from gpuagent.domain.scheduling.decision import Ignored, decided_units, for_another_pod
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
    meta, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    too_many = _too_many_containers(spec)
    if too_many is not None:  # reading them takes tens of milliseconds, in each call about the pod
        spec = {**spec, "containers": [], "initContainers": []}
        pod = {**pod, "spec": spec}
    found = parse_pod(pod)
    request = shared(too_many or gpu_request(found))
    job = found.labels.get(JOB_LABEL)
    priority = spec.get("priority")
    return PodFacts(
        name=PodName(shared(found.name.namespace), found.name.name),
        uid=found.uid,
        version=found.version,
        node=shared(text(spec.get("nodeName"))),
        request=request,
        cpu=_cpu(spec),
        used=shared(_used(found, request)) if request.kind.gives_gpus else None,
        priority=priority if isinstance(priority, int) else 0,
        created=shared(found.created),
        ended=found.ended,
        succeeded=status.get("phase") == "Succeeded",
        deleting=found.deleting,
        gated=any(True for _ in mappings(spec.get("schedulingGates"))),
        refused=found.rejected is not None,
        job=JobLabels(job, count_of(found.labels.get(REPLICAS_LABEL))) if job else None,
        scheduler=shared(text(spec.get("schedulerName"))),
        nominated=text(status.get("nominatedNodeName")),
        unscheduled=_unscheduled(status),
        owner=shared(found.controller.uid) if found.controller else found.uid,
        wishes=_wishes(spec),
        commit=text(mapping(meta.get("annotations")).get(COMMIT_ANNOTATION)) if job else "",
    )


def _too_many_containers(spec: Mapping[str, Any]) -> GpuRequest | None:
    """The request of a pod that has more containers than are read; None if they are read.

    What a pod on a node may hold has to be known, so that its containers are always read.
    """
    containers = [*mappings(spec.get("initContainers")), *mappings(spec.get("containers"))]
    if len(containers) <= MOST_READ or spec.get("nodeName"):
        return None
    for container in containers:
        limits = mapping(mapping(container.get("resources")).get("limits"))
        if not limits.keys().isdisjoint(_NAMES):
            text = f"has {len(containers)} containers; at most {MOST_READ} of a pod that asks for GPUs are read"
            return GpuRequest(RequestKind.SHARE, problem=text)
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
    numbers = {container.name: number for number, container in enumerate(pod.app_containers)}
    memory = Counter[int]()
    core = Counter[int]()
    containers: dict[int, set[int]] = {}
    for resource, total in ((GPU_MEM, memory), (GPU_CORE, core)):
        for name, gpus in tables.get(resource, {}).items():
            total.update(gpus)
            for minor in gpus:
                containers.setdefault(minor, set()).add(numbers[name])
    needs = _needs(request, containers)
    return tuple((minor, Amounts(memory[minor], core[minor]).at_least(needs[minor])) for minor in sorted(containers))


def _whole(pod: Pod, count: int) -> Used | None:
    """The whole GPUs that the annotation names; None unless they are as many as the pod asks for."""
    names = gpu_names(pod.annotations, GROUP_ANNOTATION)
    if not isinstance(names, tuple) or not all(name.isdecimal() for name in names):
        return None
    minors = sorted({int(name) for name in names})
    return tuple((minor, WHOLE) for minor in minors) if len(minors) == count else None


def _needs(request: GpuRequest, on: Mapping[int, Collection[int]]) -> dict[int, Amounts]:
    """What Kubernetes counts on each GPU: the annotations do not name init containers and sidecars.

    `on` has the indexes of the containers by GPU.
    """
    if len(on) == request.gpus:
        return dict.fromkeys(on, request.need.over(request.gpus))
    each = [({n for n, _ in group.containers}, group.need.over(request.gpus)) for group in request.groups]
    return {n: sum((need for names, need in each if names.intersection(there)), NOTHING) for n, there in on.items()}


def _cpu(spec: Mapping[str, Any]) -> float:
    """Cores as Kubernetes counts them: the sum of the containers, or the largest init container."""

    def requested(containers: object) -> Iterator[float]:
        for container in mappings(containers):
            yield cores(mapping(mapping(container.get("resources")).get("requests")).get("cpu", "0"))

    return max(sum(requested(spec.get("containers"))), max(requested(spec.get("initContainers")), default=0.0))


def _unscheduled(status: Mapping[str, Any]) -> str:
    conditions = mappings(status.get("conditions"))
    found = (one for one in conditions if one.get("type") == "PodScheduled" and one.get("status") == "False")
    return text(next(found, {}).get("message"))[:MOST_TEXT]


def _wishes(spec: Mapping[str, Any]) -> bool:
    affinity = mapping(spec.get("affinity"))
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    kinds = ("nodeAffinity", "podAffinity", "podAntiAffinity")
    soft = any(mapping(affinity.get(kind)).get(preferred) for kind in kinds)
    spread = mappings(spec.get("topologySpreadConstraints"))
    return soft or any(one.get("whenUnsatisfiable") == "ScheduleAnyway" for one in spread)
