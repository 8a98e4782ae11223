"""What a pod and an object have to say together about the pod's gang."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gpu_request import RESOURCES

GANG_ANNOTATION = "gpuagent.io/gang"
"""An author's wish for the pods of a template: `none`, or `job` for each Job of a JobSet."""
ALONE = "none"
EACH_JOB = "job"


class ObjectKey(NamedTuple):
    """Which object."""

    kind: ObjectKind
    namespace: str
    name: str


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
        asking: by role, whether the pods of its part that are there ask for GPUs.
        run: which start of the object the pod is of, where its controller writes that; empty where it does not.
        fallback: the pod's gang if no such object can be seen.
    """

    kind: ObjectKind
    name: str
    provisional: Gang
    role: str = ""
    instance: str = ""
    size: int | None = None
    asking: tuple[tuple[str, bool], ...] = ()
    run: str = ""
    fallback: Gang | None = None

    def key_in(self, namespace: str) -> ObjectKey:
        """The object."""
        return ObjectKey(self.kind, namespace, self.name)


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


def template_asks_for_gpus(template: Mapping[str, Any]) -> bool:
    """Whether pods of a template (decoded JSON) ask for GPUs that this scheduler places."""
    spec = mapping(template.get("spec"))
    for containers in (spec.get("initContainers"), spec.get("containers")):
        for container in mappings(containers):
            limits = mapping_at(container, "resources", "limits")
            if any(amount(str(limits[name])) for name in RESOURCES if name in limits):
                return True
    return False
