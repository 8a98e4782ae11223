"""What the pods of each group of a LeaderWorkerSet are like, by role.

The object has the present templates only. Its other groups may be of former ones, and are started again with these.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuscheduler.core.gangs.gang_object import RolePods
from gpuscheduler.core.gangs.leader_worker_set import LEADER, WORKER
from gpuscheduler.core.pod_facts import PodFacts


class _Role(NamedTuple):
    namespace: str
    group: str
    name: str


class GroupRoles:
    """The pods that are there of each group, by role. All pods of a role are made from one template."""

    def __init__(self) -> None:
        self._pods: dict[_Role, dict[str, RolePods]] = {}
        self._role_of: dict[str, _Role] = {}

    def seen(self, pod: PodFacts) -> Collection[str]:
        """Take a pod as it is now. The UIDs of the pods of its group, if it says something new of the group."""
        said = pod.group_role
        if said is None or pod.deleting:
            # A pod that is being deleted may be of a former template, and the next one is not.
            self.forget(pod.uid)
            return ()
        role = _Role(pod.name.namespace, said.group, said.role)
        before = self._latest(role)
        self._role_of[pod.uid] = role
        pods = self._pods.setdefault(role, {})
        if pod.uid not in pods:
            # A pod does not change what it asks for, so the latest one is the last that came.
            pods[pod.uid] = said.pods
        if before == self._latest(role):
            return ()
        return [uid for name in (LEADER, WORKER) for uid in self._pods.get(role._replace(name=name), ())]

    def forget(self, uid: str) -> None:
        """Take that a pod is gone."""
        role = self._role_of.pop(uid, None)
        if role is None:
            return
        pods = self._pods[role]
        del pods[uid]
        if not pods:
            del self._pods[role]

    def of(self, namespace: str, group: str) -> Mapping[str, RolePods]:
        """By role, what the pods of a group are like. Roles of which no pod is there are left out."""
        roles: dict[str, RolePods] = {}
        for name in (LEADER, WORKER):
            latest = self._latest(_Role(namespace, group, name))
            if latest:
                roles[name] = latest
        return roles

    def _latest(self, role: _Role) -> RolePods | None:
        pods = self._pods.get(role)
        return next(reversed(pods.values())) if pods else None
