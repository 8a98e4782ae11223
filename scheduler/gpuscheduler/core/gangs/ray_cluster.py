"""RayCluster: each replica of a worker group with several hosts is a gang, because its pods are of use only together.

KubeRay (1.6, or 1.5 with the feature gate `RayMultiHostIndexing`) writes the name of the replica on the pods of such a
group, and deletes all of them if one is lost. The RayCluster says how many hosts a replica has. Workers of other groups
start alone, because Ray works with any number of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import GangRef, ObjectKey, identity
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.labels import part_of

CLUSTER = "ray.io/cluster"
GROUP = "ray.io/group"
REPLICA = "ray.io/worker-group-replica-name"
CONTROLLER = "RayCluster"
"""Kind of the controller of each pod of a RayCluster."""


def ray_cluster_ref(
    labels: Mapping[str, str],
    controller: str,
    own: Gang | None = None,
) -> GangRef | None:
    """What a pod says about its replica; None if it is of none that has several hosts.

    `controller` is the kind of the pod's controller. `own` is the gang of this project's labels.
    """
    cluster = labels.get(CLUSTER)
    replica = labels.get(REPLICA)
    if not cluster or not replica or controller != CONTROLLER:
        return None
    return GangRef(
        ObjectKind.RAY_CLUSTER,
        cluster,
        Gang(GangSource.RAY_REPLICA, f"{cluster}/{replica}", None),
        role=labels.get(GROUP, ""),
        instance=replica,
        fallback=own,
    )


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A RayCluster object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        hosts: worker group to how many pods each of its replicas has.
    """

    key: ObjectKey
    uid: str
    hosts: Mapping[str, int]

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The gang of a pod of a replica."""
        hosts = self.hosts.get(ref.role, 1)
        own = ref.fallback
        if own is None:
            return Gang(GangSource.RAY_REPLICA, ref.provisional.name, hosts)
        # All replicas have one template, so a number of pods that one of them has is meant for each.
        is_for_each_replica = own.pods is not None and own.pods <= hosts
        return part_of(own, ref.instance) if is_for_each_replica else own


def read_ray_cluster(found: Mapping[str, Any]) -> RayCluster:
    """Read an object (decoded JSON)."""
    key, uid = identity(ObjectKind.RAY_CLUSTER, found)
    hosts: dict[str, int] = {}
    for group in mappings(mapping(found.get("spec")).get("workerGroupSpecs")):
        name = text(group.get("groupName"))
        hosts[name] = number(group.get("numOfHosts")) or 1
    return RayCluster(key, uid, hosts)
