"""Kubernetes' own API of pod groups: `spec.schedulingGroup` of a pod names a PodGroup (Kubernetes 1.36 and later).

In Kubernetes 1.35, `spec.workloadRef` named a group of a Workload instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import GangRef, ObjectKey, identity
from gpuscheduler.core.gangs.kinds import ObjectKind


def native_pod_group_ref(spec: Mapping[str, Any]) -> GangRef | None:
    """What the `spec` of a pod says about its group; None if it names none."""
    name = text(mapping(spec.get("schedulingGroup")).get("podGroupName"))
    if name:
        return GangRef(ObjectKind.NATIVE_POD_GROUP, name, Gang(GangSource.NATIVE_POD_GROUP, name, None))
    workload = mapping(spec.get("workloadRef"))
    name = text(workload.get("name"))
    if not name:
        return None
    group = text(workload.get("podGroup"))
    replica = text(workload.get("podGroupReplicaKey"))
    parts = [part for part in (name, group, replica) if part]
    gang = Gang(GangSource.NATIVE_POD_GROUP, "/".join(parts), None)
    return GangRef(ObjectKind.WORKLOAD, name, gang, role=group)


@dataclass(frozen=True, slots=True)
class NativePodGroups:
    """A PodGroup, or the groups of a Workload.

    Attributes:
        key: kind, namespace and name.
        uid: its UID.
        minimum: group to how many of its pods start together; a PodGroup has one, with an empty name. Groups whose
            policy is not `gang` are left out.
    """

    key: ObjectKey
    uid: str
    minimum: Mapping[str, int]

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The gang of a pod; None if the policy of its group lets each pod start alone."""
        minimum = self.minimum.get(ref.role)
        if minimum is None:
            return None
        return Gang(GangSource.NATIVE_POD_GROUP, ref.provisional.name, minimum, minimum)


def read_native_pod_group(found: Mapping[str, Any]) -> NativePodGroups:
    """Read a PodGroup (decoded JSON)."""
    key, uid = identity(ObjectKind.NATIVE_POD_GROUP, found)
    policy = mapping_at(found, "spec", "schedulingPolicy")
    return NativePodGroups(key, uid, _minimum("", policy))


def read_workload(found: Mapping[str, Any]) -> NativePodGroups:
    """Read a Workload of Kubernetes 1.35 (decoded JSON)."""
    key, uid = identity(ObjectKind.WORKLOAD, found)
    groups = mapping(found.get("spec")).get("podGroups")
    minimum: dict[str, int] = {}
    for group in mappings(groups):
        name = text(group.get("name"))
        minimum |= _minimum(name, mapping(group.get("policy")))
    return NativePodGroups(key, uid, minimum)


def _minimum(group: str, policy: Mapping[str, Any]) -> dict[str, int]:
    gang = policy.get("gang")
    if not isinstance(gang, dict):
        return {}
    return {group: number(gang.get("minCount")) or 1}
