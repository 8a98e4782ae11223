"""LeaderWorkerSet: each group, a leader and its workers, is a gang.

Its controller creates the workers of a group later if they depend on the leader: with `startupPolicy: LeaderReady` when
the leader is ready, with exclusive topology when the leader has a node. A leader that waited for them would wait for
ever, so it starts alone there, and the workers start together.

Labels that name a gang may stand in both templates, or in one of them. Their number is meant for each group if a group
has so many pods with the label.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mapping_at, text
from gpuagent.domain.pods.pod import count_of
from gpuagent.domain.sharing.mode import JOB_LABEL
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import (
    GANG_LABELS,
    GangRef,
    ObjectKey,
    RolePods,
    identity,
    starts_with_workload,
)
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.labels import part_of

NAME = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
SIZE = "leaderworkerset.sigs.k8s.io/size"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LEADER = "leader"
WORKER = "worker"
CONTROLLER = "StatefulSet"
"""Kind of the controller of each pod of a LeaderWorkerSet."""


class Group(NamedTuple):
    """The group that a pod is of.

    Attributes:
        set_name: the LeaderWorkerSet.
        name: of the group.
        role: of the pod.
        size: of the group; None if that is not a number.
    """

    set_name: str
    name: str
    role: str
    size: int | None = None


NO_GROUP = Group("", "", "")


def group_of(
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
) -> Group | None:
    """The group that a pod is of; None if it is of none. `controller` is the kind of the pod's controller."""
    name = labels.get(NAME)
    index = labels.get(GROUP_INDEX, "")
    is_made_by_set = controller == CONTROLLER
    if not name or not index.isdecimal() or not is_made_by_set:
        return None
    is_leader = labels.get(WORKER_INDEX) == "0"
    size = count_of(text(annotations.get(SIZE)))
    return Group(name, f"{name}-{index}", LEADER if is_leader else WORKER, size)


class GroupRole(NamedTuple):
    """What a pod says about others of its group.

    Attributes:
        group: its name.
        role: of the pod.
        pods: what the pods of this role are like.
    """

    group: str
    role: str
    pods: RolePods


def group_role(
    labels: Mapping[str, str],
    controller: str,
    gang: Gang | GangRef | None,
) -> GroupRole | None:
    """What a pod says about others of its group; None if it is of none. `gang` is what `gang_or_ref` says of it."""
    group = group_of(labels, {}, controller)
    if group is None:
        return None
    starts_with_group = False
    if isinstance(gang, GangRef):
        starts_with_group = gang.kind is ObjectKind.LEADER_WORKER_SET and gang.fallback is None
    return GroupRole(group.name, group.role, role_pods(labels, together=starts_with_group))


def role_pods(labels: Mapping[str, Any], *, together: bool) -> RolePods:
    """What counts of pods with these labels."""
    naming = [(label, text(labels.get(label))) for label in GANG_LABELS]
    return RolePods(together, frozenset(pair for pair in naming if pair[1]))


def labeled_in_group(ref: GangRef, label: str, value: str) -> int:
    """How many pods of a pod's group carry this label, which the pod does itself.

    0 if it is not known how many pods the group has. Without its LeaderWorkerSet, all of them count.
    """
    if ref.size is None:
        return 0
    roles = dict(ref.roles)
    labeled = 0
    for role, pods in ((LEADER, 1), (WORKER, ref.size - 1)):
        is_same_template = role == ref.role or role not in roles
        if is_same_template or (label, value) in roles[role].labels:
            labeled += pods
    return labeled


def gang_by_label(own: Gang, ref: GangRef) -> Gang:
    """The gang of this project's labels: that of the group, if it has as many pods with the labels as these say.

    Otherwise one template for all groups would start parts of each of them.
    """
    labeled = labeled_in_group(ref, JOB_LABEL, own.name)
    is_for_each_group = own.pods is not None and own.pods <= labeled
    return part_of(own, ref.instance) if is_for_each_group else own


def leader_worker_set_ref(
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
    own: Gang | None = None,
) -> GangRef | None:
    """What a pod says about its group; None if it is of none.

    `controller` is the kind of the pod's controller. `own` is the gang of this project's labels.
    """
    group = group_of(labels, annotations, controller)
    if group is None:
        return None
    return GangRef(
        ObjectKind.LEADER_WORKER_SET,
        group.set_name,
        Gang(GangSource.LEADER_WORKER_SET, group.name, None),
        role=group.role,
        instance=group.name,
        size=group.size,
        group_set=group.set_name,
        fallback=own,
    )


@dataclass(frozen=True, slots=True)
class LeaderWorkerSet:
    """A LeaderWorkerSet object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        leader_first: the workers of a group are created when its leader is ready, or has a node.
        leader: what its leaders are like, by the present template.
        worker: what its workers are like.
    """

    key: ObjectKey
    uid: str
    leader_first: bool
    leader: RolePods
    worker: RolePods

    @property
    def roles(self) -> dict[str, RolePods]:
        """By role, what its pods are like."""
        return {LEADER: self.leader, WORKER: self.worker}

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The group of a pod. Pods of the group that ask for no GPUs do not count, and those of other gangs.

        What its pods say counts before the templates, which may have changed since the group was made.
        """
        if ref.fallback:
            return self._gang_by_label(ref.fallback, ref)
        if ref.size is None:
            return None
        roles = self.roles | dict(ref.roles)
        leader_starts = ref.role == LEADER or roles[LEADER].together
        workers_start = ref.role == WORKER or roles[WORKER].together
        leader_counts = leader_starts and not self.leader_first
        if ref.role == LEADER and not leader_counts:
            return None
        workers = ref.size - 1 if workers_start else 0
        pods = workers + leader_counts
        return Gang(GangSource.LEADER_WORKER_SET, ref.instance, max(pods, 1))

    def _gang_by_label(self, own: Gang, ref: GangRef) -> Gang | None:
        return self.gang_after_leader(gang_by_label(own, ref), own, JOB_LABEL, ref)

    def gang_after_leader(self, gang: Gang, own: Gang, label: str, ref: GangRef) -> Gang | None:
        """The gang of a pod without those that are created only after its first ones have started.

        The workers are created after their leader. A leader that waited for them would wait for ever.

        Args:
            gang: of the pod, if all pods were created together.
            own: the same, if no template served several groups.
            label: that names the gang.
            ref: what the pod says.
        """
        if not self.leader_first or own.pods is None or ref.size is None:
            return gang
        has_both = labeled_in_group(ref, label, own.name) == ref.size
        is_of_group = gang != own
        if not is_of_group and not has_both:
            # The leaders of all groups, or the workers of all.
            return gang
        if ref.role == LEADER:
            return None
        workers = ref.size - 1
        minimum = None if own.minimum is None else min(own.minimum, workers)
        of_group = part_of(own, ref.instance)
        return replace(of_group, pods=min(own.pods, workers), minimum=minimum)


def read_leader_worker_set(found: Mapping[str, Any]) -> LeaderWorkerSet:
    """Read an object (decoded JSON)."""
    key, uid = identity(ObjectKind.LEADER_WORKER_SET, found)
    annotations = mapping_at(found, "metadata", "annotations")
    spec = mapping(found.get("spec"))
    templates = mapping(spec.get("leaderWorkerTemplate"))
    worker = mapping(templates.get("workerTemplate"))
    leader = mapping(templates.get("leaderTemplate")) or worker
    is_leader_ready = spec.get("startupPolicy") == "LeaderReady"
    return LeaderWorkerSet(
        key,
        uid,
        leader_first=is_leader_ready or EXCLUSIVE in annotations,
        leader=_pods_of(leader),
        worker=_pods_of(worker),
    )


def _pods_of(template: Mapping[str, Any]) -> RolePods:
    labels = mapping_at(template, "metadata", "labels")
    return role_pods(labels, together=starts_with_workload(template))
