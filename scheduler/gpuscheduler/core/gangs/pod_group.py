"""The coscheduling plugin: a label names a PodGroup, and that object says how many pods start together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, number
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import POD_GROUP_LABEL, GangRef, ObjectKey, identity
from gpuscheduler.core.gangs.job_set import job_set_ref
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.labels import part_of
from gpuscheduler.core.gangs.leader_worker_set import NO_GROUP, group_of, labeled_in_group


def pod_group_ref(
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
) -> GangRef | None:
    """What a pod says about its PodGroup; None if it names none. `controller` is the kind of the pod's controller."""
    name = labels.get(POD_GROUP_LABEL)
    if not name:
        return None
    provisional = Gang(GangSource.POD_GROUP, name, None)
    # The label may stand in a template of a JobSet, which serves several Jobs.
    of_set = job_set_ref(labels, controller)
    if of_set:
        return GangRef(
            ObjectKind.POD_GROUP,
            name,
            provisional,
            role=of_set.role,
            instance=of_set.instance,
            job_set=of_set.name,
        )
    # The label may stand in the template of a LeaderWorkerSet, which serves several groups.
    group = group_of(labels, annotations, controller) or NO_GROUP
    return GangRef(
        ObjectKind.POD_GROUP,
        name,
        provisional,
        role=group.role,
        instance=group.name,
        size=group.size,
        group_set=group.set_name,
    )


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        minimum: how many pods start together.
    """

    key: ObjectKey
    uid: str
    minimum: int

    @property
    def gang(self) -> Gang:
        """All pods of the group. Those that ask for no GPUs count, as they do for the plugin."""
        return Gang(GangSource.POD_GROUP, self.key.name, self.minimum, self.minimum)

    def gang_of(self, ref: GangRef) -> Gang:
        """The gang of a pod of the group."""
        is_for_each_group = self.minimum <= labeled_in_group(ref, POD_GROUP_LABEL, ref.name)
        return part_of(self.gang, ref.instance) if is_for_each_group else self.gang


def read_pod_group(found: Mapping[str, Any]) -> PodGroup:
    """Read an object (decoded JSON)."""
    key, uid = identity(ObjectKind.POD_GROUP, found)
    minimum = number(mapping(found.get("spec")).get("minMember"))
    return PodGroup(key, uid, minimum or 1)
