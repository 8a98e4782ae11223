"""Which pods of each group of a LeaderWorkerSet ask for GPUs.

The object has the present template only. Its other groups may be of a former one, and are started again with it.
"""

from collections.abc import Collection
from typing import NamedTuple

from gpuscheduler.core.gangs.leader_worker_set import GROUP_INDEX, LEADER, NAME, WORKER, WORKER_INDEX
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.pod_facts import PodFacts


class _Role(NamedTuple):
    namespace: str
    group: str
    name: str


class GroupRoles:
    """The pods that are there of each group, by role. All pods of a group are made from one template."""

    def __init__(self) -> None:
        self._asks: dict[_Role, dict[str, bool]] = {}
        self._role_of: dict[str, _Role] = {}

    def seen(self, pod: PodFacts) -> Collection[str]:
        """Take a pod as it is now. The UIDs of the pods of its group, if it says something new of the group."""
        role = _role_of(pod)
        if role is None:
            return ()
        before = self.asks(role.namespace, role.group, role.name)
        self._role_of[pod.uid] = role
        pods = self._asks.setdefault(role, {})
        # The latest pod counts, and comes last.
        pods.pop(pod.uid, None)
        pods[pod.uid] = pod.request.kind is not RequestKind.NONE
        if before == pods[pod.uid]:
            return ()
        return [uid for name in (LEADER, WORKER) for uid in self._asks.get(role._replace(name=name), ())]

    def forget(self, uid: str) -> None:
        """Take that a pod is gone."""
        role = self._role_of.pop(uid, None)
        if role is None:
            return
        pods = self._asks[role]
        del pods[uid]
        if not pods:
            del self._asks[role]

    def asks(self, namespace: str, group: str, name: str) -> bool | None:
        """Whether the pods of a role ask for GPUs; None if none of them is there."""
        pods = self._asks.get(_Role(namespace, group, name))
        return next(reversed(pods.values())) if pods else None


def _role_of(pod: PodFacts) -> _Role | None:
    """The role of a pod; None if it is of no group."""
    name = pod.labels.get(NAME)
    index = pod.labels.get(GROUP_INDEX)
    if not name or not index:
        return None
    is_leader = pod.labels.get(WORKER_INDEX) == "0"
    return _Role(pod.name.namespace, f"{name}-{index}", LEADER if is_leader else WORKER)
