"""LeaderWorkerSet: each group, a leader and its workers, is a gang.

Its controller creates the workers of a group later if they depend on the leader: with `startupPolicy: LeaderReady` when
the leader is ready, with exclusive topology when the leader has a node. A leader that waited for them would wait for
ever, so it starts alone there, and the workers start together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mapping_at, text
from gpuagent.domain.pods.pod import count_of
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import GangRef, ObjectKey, identity, template_asks_for_gpus
from gpuscheduler.core.gangs.kinds import ObjectKind

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
    """A group of a LeaderWorkerSet. Its size is None if that is not a number."""

    name: str
    size: int | None

    def has(self, pods: int | None) -> bool:
        """Whether it has so many pods: then a number in the template of all groups is meant for each of them.

        The number may be smaller than the group, for example if only the workers count.
        """
        return pods is not None and self.size is not None and pods <= self.size


NO_GROUP = Group("", None)


def group_of(labels: Mapping[str, str], annotations: Mapping[str, Any]) -> Group | None:
    """The group that a pod is of; None if it is of none."""
    name = labels.get(NAME)
    index = labels.get(GROUP_INDEX, "")
    if not name or not index.isdecimal():
        return None
    size = count_of(text(annotations.get(SIZE)))
    return Group(f"{name}-{index}", size)


def leader_worker_set_ref(
    labels: Mapping[str, str],
    annotations: Mapping[str, Any],
    controller: str,
) -> GangRef | None:
    """What a pod says about its group; None if it is of none. `controller` is the kind of the pod's controller."""
    group = group_of(labels, annotations)
    if group is None or controller != CONTROLLER:
        return None
    is_leader = labels.get(WORKER_INDEX) == "0"
    return GangRef(
        ObjectKind.LEADER_WORKER_SET,
        labels[NAME],
        Gang(GangSource.LEADER_WORKER_SET, group.name, None),
        role=LEADER if is_leader else WORKER,
        instance=group.name,
        size=group.size,
    )


@dataclass(frozen=True, slots=True)
class LeaderWorkerSet:
    """A LeaderWorkerSet object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        leader_first: the workers of a group are created when its leader is ready, or has a node.
        leader_asks: whether the leader asks for GPUs.
        workers_ask: whether the workers do.
    """

    key: ObjectKey
    uid: str
    leader_first: bool
    leader_asks: bool
    workers_ask: bool

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The group of a pod that asks for GPUs. Pods of the group that ask for none do not count.

        What its pods ask for counts before the templates, which may have changed since the group was made.
        """
        if ref.size is None:
            return None
        asking = {LEADER: self.leader_asks, WORKER: self.workers_ask, **dict(ref.asking), ref.role: True}
        leader_counts = asking[LEADER] and not self.leader_first
        if ref.role == LEADER and not leader_counts:
            return None
        workers = ref.size - 1 if asking[WORKER] else 0
        pods = workers + leader_counts
        return Gang(GangSource.LEADER_WORKER_SET, ref.instance, max(pods, 1))


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
        leader_asks=template_asks_for_gpus(leader),
        workers_ask=template_asks_for_gpus(worker),
    )
