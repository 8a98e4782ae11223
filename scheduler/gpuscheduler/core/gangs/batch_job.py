"""Plain Jobs with this project's labels: which of them are jobs of their own, and which are parts of one.

All Jobs of one template have the same labels, for example those of a parameter sweep. But a launcher may also make
several Jobs, such as a master's and the workers', whose pods start together. The number of the labels tells which it
is: a Job that runs so many pods at one time, or more, needs no other one. Its pods do not say how many that are, so the
Job is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.domain.pods.json_values import mapping
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import GangRef, ObjectKey, identity, pods_at_once
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.labels import part_of

CONTROLLER = "Job"
"""Kind of the controller of each pod of a Job. Other projects have kinds of this name, too."""
NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
"""With the name of the Job. Kubernetes before 1.27 writes the second one only."""
UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
"""With the UID of the Job, written beside the others."""


def batch_job_ref(labels: Mapping[str, str], controller: str, own: Gang) -> GangRef | None:
    """What a pod says about the Job that made it; None if it is of none, or its labels name no gang.

    `controller` is the kind of the pod's controller. `own` is the gang of this project's labels.
    """
    is_made_by_job = controller == CONTROLLER and bool(_first_of(UID_LABELS, labels))
    name = _first_of(NAME_LABELS, labels)
    if not is_made_by_job or not name:
        return None
    starts_together = own.pods is not None and own.pods > 1
    if not starts_together:
        return None
    return GangRef(
        ObjectKind.BATCH_JOB,
        name,
        Gang(GangSource.CHILD_JOB, name, None),
        fallback=own,
    )


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A Job object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        pods: how many it runs at one time.
    """

    key: ObjectKey
    uid: str
    pods: int

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The gang of a pod with this project's labels."""
        own = ref.fallback
        if own is None or own.pods is None or own.pods > self.pods:
            return own
        if own.name == ref.name:
            # A label that names the Job itself needs no second name.
            return own
        gang = part_of(own, ref.name)
        # A Job that was deleted and made again has the name of the former one, whose pods may still run.
        return replace(gang, has_no_namesake=False)


def read_batch_job(found: Mapping[str, Any]) -> BatchJob:
    """Read a Job (decoded JSON)."""
    key, uid = identity(ObjectKind.BATCH_JOB, found)
    return BatchJob(key, uid, pods_at_once(mapping(found.get("spec"))))


def _first_of(names: tuple[str, ...], labels: Mapping[str, str]) -> str:
    """The value of the first of these labels that there is; empty if there is none."""
    values = (labels[name] for name in names if labels.get(name))
    return next(values, "")
