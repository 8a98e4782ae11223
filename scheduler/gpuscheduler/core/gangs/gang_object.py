"""What a pod and an object have to say together about the pod's gang."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import JOB_LABEL
from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gpu_request import RESOURCES

GANG_ANNOTATION = "gpuagent.io/gang"
"""An author's wish for the pods of a template: `none`, or `job` for each Job of a JobSet."""
ALONE = "none"
EACH_JOB = "job"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Of the coscheduling plugin. Its value is the name of a PodGroup."""
GANG_LABELS = (JOB_LABEL, POD_GROUP_LABEL)
"""Labels that name a gang, and may stand in a template of a workload."""


class ObjectKey(NamedTuple):
    """Which object."""

    kind: ObjectKind
    namespace: str
    name: str


class RolePods(NamedTuple):
    """What counts of the pods of one role in a group. All of them are made from one template.

    Attributes:
        together: they start with the others of the group.
        labels: those that name a gang, with their values.
    """

    together: bool
    labels: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class GangRef:
    """What a pod says about its place in an object of its namespace.

    Attributes:
        kind: of the object.
        name: of the object.
        provisional: the pod's gang until the object is seen.
        role: which part of the object the pod is of.
        instance: which of several equal parts.
        size: how many pods its part has, by the pod; None if it does not say.
        group_set: name of the LeaderWorkerSet that the pod is of; empty if it is of none.
        job_set: name of the JobSet that the pod of a PodGroup is of; empty if it is of none.
        roles: by role in the group of that set, what its pods are like; empty if that is not known.
        run: which start of the object the pod is of, where its controller writes that; empty where it does not.
        fallback: the pod's gang if no such object can be seen.
    """

    kind: ObjectKind
    name: str
    provisional: Gang
    role: str = ""
    instance: str = ""
    size: int | None = None
    group_set: str = ""
    job_set: str = ""
    roles: "tuple[tuple[str, RolePods], ...]" = ()
    run: str = ""
    fallback: Gang | None = None

    def key_in(self, namespace: str) -> ObjectKey:
        """The object."""
        return ObjectKey(self.kind, namespace, self.name)

    def keys_in(self, namespace: str) -> set[ObjectKey]:
        """The object, and the LeaderWorkerSet or JobSet whose templates say which pods carry a label."""
        keys = {self.key_in(namespace)}
        if self.group_set:
            keys.add(ObjectKey(ObjectKind.LEADER_WORKER_SET, namespace, self.group_set))
        if self.job_set:
            keys.add(ObjectKey(ObjectKind.JOB_SET, namespace, self.job_set))
        return keys


class GangObject(Protocol):
    """An object that says which pods belong together."""

    @property
    def key(self) -> ObjectKey:
        """Which object it is."""

    @property
    def uid(self) -> str:
        """Its UID."""

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The gang of a pod that refers to the object; None if the pod starts alone."""


def identity(kind: ObjectKind, found: Mapping[str, Any]) -> tuple[ObjectKey, str]:
    """The key and UID of an object (decoded JSON)."""
    metadata = mapping(found.get("metadata"))
    namespace = text(metadata.get("namespace"))
    name = text(metadata.get("name"))
    return ObjectKey(kind, namespace, name), text(metadata.get("uid"))


def starts_with_workload(template: Mapping[str, Any]) -> bool:
    """Whether the pods of a template (decoded JSON) start with the others of their workload.

    They ask for GPUs, and nothing in the template says that they are of another gang, or of none.
    """
    metadata = mapping(template.get("metadata"))
    spec = mapping(template.get("spec"))
    labels = mapping(metadata.get("labels"))
    names_gang = any(text(labels.get(label)) for label in GANG_LABELS)
    names_native_gang = bool(spec.get("schedulingGroup") or spec.get("workloadRef"))
    is_alone = mapping(metadata.get("annotations")).get(GANG_ANNOTATION) == ALONE
    is_told_otherwise = names_gang or names_native_gang or is_alone
    return template_asks_for_gpus(template) and not is_told_otherwise


def template_asks_for_gpus(template: Mapping[str, Any]) -> bool:
    """Whether pods of a template (decoded JSON) ask for GPUs that this scheduler places."""
    spec = mapping(template.get("spec"))
    for containers in (spec.get("initContainers"), spec.get("containers")):
        for container in mappings(containers):
            limits = mapping_at(container, "resources", "limits")
            if any(amount(str(limits[name])) for name in RESOURCES if name in limits):
                return True
    return False


def pods_at_once(job_spec: Mapping[str, Any]) -> int:
    """How many pods a Job with this `spec` (decoded JSON) runs at one time."""
    parallelism = number_or_one(job_spec.get("parallelism"))
    completions = job_spec.get("completions")
    if completions is None:
        return parallelism
    return min(parallelism, number_or_one(completions))


def number_or_one(value: object) -> int:
    """A number of pods or Jobs, which is 1 where nothing is said."""
    said = number(value)
    return 1 if said is None else said
