"""A pod as the scheduler keeps it: small, because a cluster has tens of thousands.

A Pod object is read in two steps. Most of it is equal for all pods of one controller, so that part is read once, as a
template (`pod_template`). The rest is another with each pod, or changes while it lives, such as its node, status and
annotations. It is read each time (`facts_by_template`).
"""

import enum
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    WRITTEN_KEYS,
    bounded,
)
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import REJECTED, Pod, PodName
from gpuagent.domain.sharing.mode import GPU_COUNT, GPU_MEM
from gpuscheduler.core.claims.gpu_claims import pod_claims
from gpuscheduler.core.constraints.labels import MOST_LABELS, NO_LABELS, Labels, labels_of, labels_on_node
from gpuscheduler.core.constraints.occupant import Occupant, first_occupant
from gpuscheduler.core.constraints.pod_rules import NO_RULES, PodRules, pod_rules
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources, pod_resources
from gpuscheduler.core.decisions.decided_use import decided_use
from gpuscheduler.core.defragment.mobility import NOT_ON_NODE, Mobility, mobility
from gpuscheduler.core.gangs.batch_job import CONTROLLER as JOB_CONTROLLER
from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gangs.gang_object import GangRef
from gpuscheduler.core.gangs.leader_worker_set import GroupRole, group_role
from gpuscheduler.core.gangs.sources import gang_or_ref
from gpuscheduler.core.gpu_request import (
    NO_REQUEST,
    RESOURCES,
    GpuRequest,
    RequestKind,
    Used,
    gpu_request,
)
from gpuscheduler.core.policy.accepted_models import ModelTerms, model_terms

COMMIT_ANNOTATION = "gpuagent.io/gang-commit"
"""The plan of a job, written on one of its pods before the first is bound."""
JOB_GATE = "gpuagent.io/job"
"""The scheduling gate that pods of a job may be created with. The scheduler removes it when the job is complete."""
MOST_TEXT = 1024
MOST_READ = 1000
"""Containers of a pod that waits, init containers included. A pod of 1.5 MB has thousands."""
_SHORT_TEXT = 256
"""Characters of an annotation that is read once for several pods. It names up to a dozen containers."""
_DECISIONS = frozenset(WRITTEN_KEYS)
VOLATILE_METADATA = frozenset(
    {
        *("name", "generateName", "uid", "selfLink"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
        *("resourceVersion", "generation", "managedFields"),
    }
)
"""Parts of the metadata that are another with each pod, or change while it lives. `spec.nodeName` and `status` are such
parts, too."""
VOLATILE_ANNOTATIONS = _DECISIONS | {COMMIT_ANNOTATION}
"""The same among the annotations."""
_NAMES = (*RESOURCES, GPU_COUNT)
_CLAIMED = frozenset({"ephemeral", "persistentVolumeClaim"})
"""Volumes that are claimed. Kubernetes makes the claim of an ephemeral one for the pod."""
_SHORT_OF_ANY = ("Insufficient ", "Too many pods")
"""What kube-scheduler says where pods on a node use too much of a resource, GPUs or not."""
_SHORT = tuple(f"Insufficient {resource}" for resource in RESOURCES)
_NOT_NEAR = "didn't match pod affinity rules"
"""What kube-scheduler says of nodes where a pod would not be near those that it has to be near."""
_Value = TypeVar("_Value", bound=Hashable)


class PodEnd(enum.Enum):
    """How a pod has ended."""

    SUCCEEDED = enum.auto()
    FAILED = enum.auto()
    REFUSED = enum.auto()
    """The agent or kubelet refused it at admission, so that it never ran."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod.

    Attributes:
        name: namespace and name.
        uid: of the pod.
        version: its resourceVersion.
        node: where it is bound; empty while it is not.
        request: the GPUs that it asks for.
        requests: what it asks for of CPU, memory and other resources of the node.
        labels: of the pod.
        rules: about the nodes where it may be, and the pods beside it.
        used: what it uses of each GPU, by its annotations or what `Scheduling` knows better; None without a valid
            decision.
        priority: of its PriorityClass.
        may_preempt: kube-scheduler may evict pods of lower priority for it.
        created: creationTimestamp.
        end: how it has ended; None while it lives.
        deleting: it has a deletion timestamp.
        gated: it has scheduling gates.
        foreign_gate: the first of its gates that only another controller removes; empty without any. Until then the
            pod may never come, so that nothing is planned or reserved for it.
        job: the pods that it starts together with, if there are such.
        in_native_group: it is of a pod group of Kubernetes' own, which kube-scheduler tries as one.
        group_role: what it says of the others of its group of a LeaderWorkerSet; None if it is of none.
        gang_ref: what it says of an object that knows `job`; None if `job` follows from the pod alone.
        scheduler: `spec.schedulerName`.
        nominated: `status.nominatedNodeName`.
        unscheduled: why kube-scheduler found no node, in its words; at most `MOST_TEXT` characters.
        owner: UID of its controller; its own where it has none.
        is_made_by_job: its controller is a Job, which makes no other pod in the place of one that succeeds.
        has_preferences: it states a preference among nodes.
        has_claims: volumes or devices that it claims may keep it off nodes.
        claims: its ResourceClaims, as far as they are made.
        commit: text of the written plan of its job; empty on most pods.
        models: the GPU models that it asks for.
        mobility: whether it may be moved to another node, if it is on one with GPUs.
    """

    name: PodName
    uid: str
    version: str
    node: str
    request: GpuRequest
    requests: Resources = NO_RESOURCES
    labels: Labels = NO_LABELS
    rules: PodRules = NO_RULES
    used: Used | None = None
    priority: int = 0
    may_preempt: bool = True
    created: str = ""
    end: PodEnd | None = None
    deleting: bool = False
    gated: bool = False
    foreign_gate: str = ""
    job: Gang | None = None
    group_role: GroupRole | None = None
    gang_ref: GangRef | None = None
    in_native_group: bool = False
    scheduler: str = ""
    nominated: str = ""
    unscheduled: str = ""
    owner: str = ""
    is_made_by_job: bool = False
    has_preferences: bool = False
    has_claims: bool = False
    claims: tuple[PodName, ...] = ()
    commit: str = ""
    models: ModelTerms = ()
    mobility: Mobility = NOT_ON_NODE

    @property
    def cpu(self) -> float:
        """Cores that it asks for."""
        return self.requests.cores

    @property
    def occupant(self) -> Occupant:
        """What it is to other pods on its node, and in the domains of its node."""
        occupant = Occupant(
            namespace=self.name.namespace,
            labels=self.labels,
            requests=self.requests,
            anti_affinity=self.rules.anti_affinity,
            ports=self.rules.ports,
            ending=self.deleting,
        )
        return first_occupant(occupant)

    @property
    def is_short_in_sum(self) -> bool:
        """Whether kube-scheduler says that no node has enough units left in all, so that it does not ask about it."""
        return self._is_refused_for(_SHORT)

    @property
    def is_short(self) -> bool:
        """Whether kube-scheduler says that a node lacks GPUs, CPU, memory or another resource for it."""
        return self._is_refused_for(_SHORT_OF_ANY)

    def _is_refused_for(self, reasons: Collection[str]) -> bool:
        if self.node or self.deleting or not self.unscheduled:
            return False
        return any(text in self.unscheduled for text in reasons)

    @property
    def is_kept_from_others(self) -> bool:
        """Whether kube-scheduler says that its affinity to pods keeps it off nodes. It does not ask about it then."""
        if self.node or self.deleting or not self.rules.affinity:
            return False
        return _NOT_NEAR in self.unscheduled

    @property
    def has_our_gate_only(self) -> bool:
        """Whether nothing but our own scheduling gate keeps kube-scheduler from trying it."""
        return self.gated and not self.foreign_gate and not self.node and not self.deleting

    @property
    def ended(self) -> bool:
        """Whether it succeeded or failed."""
        return self.end is not None


def shared(value: _Value) -> _Value:
    """The first value that was equal to this one: tens of thousands of pods have few requests, uses and owners."""
    return cast(_Value, _first(value))


@lru_cache(maxsize=16384, typed=True)
def _first(value: Hashable) -> Hashable:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class PodTemplate:
    """What follows from all of a Pod object but its volatile parts, which is read once for objects that are equal.

    Attributes:
        facts: of the pod that was read. The fields that follow from the volatile parts are not of other pods.
        parsed: the containers and labels by which a decision is read; None if none counts.
        shares_memory: whether a container asks for a share of memory.
    """

    facts: PodFacts
    parsed: Pod | None
    shares_memory: bool


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """Read a Pod object (decoded JSON). Fields that are absent or of another shape count as empty."""
    return facts_by_template(pod, pod_template(pod))


def facts_by_template(pod: Mapping[str, Any], template: PodTemplate) -> PodFacts:
    """Read the volatile parts of a Pod object, and take the rest from its template. For `spec`, see `needs_spec`."""
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    of_template = template.facts
    annotations = mapping(metadata.get("annotations"))
    uid = text(metadata.get("uid"))
    created = shared(text(metadata.get("creationTimestamp")))
    requests = of_template.requests
    claims = of_template.claims
    if needs_spec(status):
        requests = shared(pod_resources(spec, status))
        claims = pod_claims(pod)
    has_claim_for_limits = _has_claim_for_limits(status)
    return replace(
        of_template,
        request=NO_REQUEST if has_claim_for_limits else of_template.request,
        name=PodName(of_template.name.namespace, text(metadata.get("name"))),
        uid=uid,
        version=text(metadata.get("resourceVersion")),
        node=shared(text(spec.get("nodeName"))),
        requests=requests,
        used=None if has_claim_for_limits else _used(template, uid, created, annotations),
        created=created,
        end=_end(status),
        deleting="deletionTimestamp" in metadata,
        nominated=text(status.get("nominatedNodeName")),
        unscheduled=_unscheduled(status),
        owner=of_template.owner or uid,
        claims=claims,
        # Any author may write the annotation. A pod without a job has no plan, so its text is not kept.
        commit=text(annotations.get(COMMIT_ANNOTATION)) if of_template.job else "",
    )


def _has_claim_for_limits(status: Mapping[str, Any]) -> bool:
    """Whether kube-scheduler made a claim for the GPUs in the pod's limits, so that no device plugin gives them.

    Only nodes whose device plugins have none of the resource serve such pods, so it is all or nothing.
    """
    extended = mapping(status.get("extendedResourceClaimStatus"))
    entries = mappings(extended.get("requestMappings"))
    return any(text(entry.get("resourceName")) in _NAMES for entry in entries)


def _used(
    template: PodTemplate,
    uid: str,
    created: str,
    annotations: Mapping[str, Any],
) -> Used | None:
    """What a pod of the template uses of each GPU, by its annotations."""
    if template.parsed is None or _DECISIONS.isdisjoint(annotations):
        return None
    used = _used_by_known_text(template, uid, annotations)
    if used is not None:
        return used
    parsed = replace(
        template.parsed,
        uid=uid,
        created=created,
        annotations=bounded(annotations),
    )
    return shared(decided_use(parsed, template.facts.request))


def _used_by_known_text(template: PodTemplate, uid: str, annotations: Mapping[str, Any]) -> Used | None:
    """The use by the newer annotations alone, if they are short and this pod's own; None where all have to be read.

    The older annotations contain a time, so they differ between all pods. They count only if the newer one for memory
    is not a decision.
    """
    memory = annotations.get(MEMORY_ANNOTATION)
    core = annotations.get(CORE_ANNOTATION)
    is_own = annotations.get(DECIDED_ANNOTATION, uid) == uid
    are_short = _is_short(memory) and (core is None or _is_short(core))
    if template.shares_memory and is_own and are_short:
        return _used_by_text(template, cast(str, memory), core)
    return None


def _is_short(written: object) -> bool:
    return isinstance(written, str) and len(written) <= _SHORT_TEXT


@lru_cache(maxsize=4096)
def _used_by_text(template: PodTemplate, memory: str, core: str | None) -> Used | None:
    """The use by these texts, which is worked out once for the pods of a template that have the same GPU numbers."""
    assert template.parsed is not None
    annotations = bounded({MEMORY_ANNOTATION: memory, CORE_ANNOTATION: core})
    parsed = replace(template.parsed, annotations=annotations)
    return shared(decided_use(parsed, template.facts.request))


def needs_spec(status: Mapping[str, Any]) -> bool:
    """Whether all of the spec is needed beside a template; otherwise `spec.nodeName` is enough.

    Containers may have other amounts than the spec says, and its claims get their names.
    """
    return any(map(status.get, ("containerStatuses", "initContainerStatuses", "resources", "resourceClaimStatuses")))


def pod_template(pod: Mapping[str, Any]) -> PodTemplate:
    """Read all of a Pod object (decoded JSON) but its `VOLATILE` parts."""
    too_many = _too_many_containers(mapping(pod.get("spec")))
    if too_many is not None:
        # To read them takes tens of milliseconds, in each call about the pod.
        pod = _without_containers(pod)
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    parsed = parse_pod({"metadata": metadata, "spec": spec})
    request = shared(too_many or gpu_request(parsed))
    asks_for_gpus = request.kind is not RequestKind.NONE
    controller = parsed.controller
    controller_kind = controller.kind if controller else ""
    gang = gang_or_ref(pod, parsed.labels, controller_kind, asks_for_gpus=asks_for_gpus)
    ref = shared(gang) if isinstance(gang, GangRef) else None
    job = ref.provisional if ref else cast(Gang | None, gang)
    is_on_node = bool(spec.get("nodeName"))
    # Pods that come again may have to be near one pod of their job, such as rank 0.
    is_sought = gang is not None or asks_for_gpus
    labels = labels_of(parsed.labels) if is_sought or not is_on_node else labels_on_node(parsed.labels)
    rules = pod_rules(spec, parsed.name.namespace, labels)
    is_to_be_planned = gang is not None and not is_on_node
    if is_to_be_planned:
        request = _request_in_plan(request, parsed, rules)
    gates = _gates(spec)
    priority = spec.get("priority")
    holds_gpus = is_on_node and request.kind.gives_gpus
    facts = PodFacts(
        name=PodName(shared(parsed.name.namespace), ""),
        uid="",
        version="",
        node="",
        request=request,
        requests=shared(pod_resources(spec, {})),
        labels=labels,
        rules=rules,
        priority=priority if isinstance(priority, int) else 0,
        may_preempt=spec.get("preemptionPolicy") != "Never",
        gated=bool(gates),
        foreign_gate=shared(_foreign_gate(gates)),
        job=job,
        group_role=shared(group_role(parsed.labels, controller_kind, gang)),
        gang_ref=ref,
        in_native_group=bool(spec.get("schedulingGroup")),
        scheduler=shared(text(spec.get("schedulerName"))),
        owner=shared(controller.uid) if controller else "",
        is_made_by_job=controller_kind == JOB_CONTROLLER,
        has_preferences=_has_preferences(spec),
        has_claims=_has_claims(spec),
        claims=pod_claims({"metadata": metadata, "spec": spec}),
        models=shared(model_terms(spec)),
        mobility=mobility(pod) if holds_gpus else NOT_ON_NODE,
    )
    shares_memory = any(container.limits.get(GPU_MEM) for container in parsed.app_containers)
    return PodTemplate(facts, parsed if request.kind.gives_gpus else None, shares_memory)


def _request_in_plan(request: GpuRequest, pod: Pod, rules: PodRules) -> GpuRequest:
    """The request of a pod that waits with its job. It has a problem if not all of the pod's rules were read.

    The plan of the job would not know these, and kube-scheduler would refuse the planned nodes.
    """
    unread = f"more than {MOST_LABELS} labels" if len(pod.labels) > MOST_LABELS else rules.unread
    if not unread or request.problem:
        return request
    return shared(replace(request, problem=f"has {unread}; a pod of a job may not"))


def changed_on_node(pod: Mapping[str, Any], former: PodFacts) -> PodFacts:
    """Read a changed Pod object whose pod was read on its node before: what its containers ask for stays as it was."""
    facts = pod_facts(_without_containers(pod))
    # Without its containers, it seems to ask for no GPUs.
    job = former.job if former.gang_ref else facts.job
    return replace(
        facts,
        request=former.request,
        requests=former.requests,
        rules=former.rules,
        used=former.used,
        job=job,
        group_role=former.group_role,
        gang_ref=former.gang_ref,
    )


def _without_containers(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = {**mapping(pod.get("spec")), "containers": [], "initContainers": []}
    return {**pod, "spec": spec}


def _end(status: Mapping[str, Any]) -> PodEnd | None:
    phase = status.get("phase")
    if phase == "Succeeded":
        return PodEnd.SUCCEEDED
    if phase != "Failed":
        return None
    return PodEnd.REFUSED if status.get("reason") == REJECTED else PodEnd.FAILED


def _gates(spec: Mapping[str, Any]) -> list[str]:
    """Names of the pod's scheduling gates."""
    gates = mappings(spec.get("schedulingGates"))
    return [text(gate.get("name")) for gate in gates]


def _foreign_gate(gates: Collection[str]) -> str:
    foreign = (gate for gate in gates if gate != JOB_GATE)
    return next(foreign, "")


def is_large_on_node(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod object that has a node has more containers than are read each time that the pod changes."""
    spec = mapping(pod.get("spec"))
    if not spec.get("nodeName"):
        return False
    lists = (spec.get("initContainers"), spec.get("containers"))
    return sum(len(containers) for containers in lists if isinstance(containers, list)) > MOST_READ


def _too_many_containers(spec: Mapping[str, Any]) -> GpuRequest | None:
    """The request of a pod that has more containers than are read; None if they are read.

    What a pod on a node may hold has to be known, so that its containers are read once.
    """
    init_containers = list(mappings(spec.get("initContainers")))
    app_containers = list(mappings(spec.get("containers")))
    containers = init_containers + app_containers
    if len(containers) <= MOST_READ or spec.get("nodeName"):
        return None
    for container in containers:
        resources = mapping(container.get("resources"))
        limits = mapping(resources.get("limits"))
        if not limits.keys().isdisjoint(_NAMES):
            problem = f"has {len(containers)} containers; at most {MOST_READ} of a pod that asks for GPUs are read"
            return GpuRequest(RequestKind.SHARE, problem=problem)
    return NO_REQUEST


def _unscheduled(status: Mapping[str, Any]) -> str:
    """Why kube-scheduler found no node, in its words; empty if it says nothing."""
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return text(condition.get("message"))[:MOST_TEXT]
    return ""


def _has_claims(spec: Mapping[str, Any]) -> bool:
    """Whether the pod claims volumes or devices, which may be on some nodes only."""
    if spec.get("resourceClaims"):
        return True
    volumes = mappings(spec.get("volumes"))
    return not all(map(_CLAIMED.isdisjoint, volumes))


def _has_preferences(spec: Mapping[str, Any]) -> bool:
    """Whether the pod states a preference among nodes."""
    affinity = mapping(spec.get("affinity"))
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        rules = mapping(affinity.get(kind))
        if rules.get("preferredDuringSchedulingIgnoredDuringExecution"):
            return True
    for constraint in mappings(spec.get("topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            return True
    return False
