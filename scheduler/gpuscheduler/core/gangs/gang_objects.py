"""The objects that say which pods belong together, and the gangs of the pods that refer to them."""

from collections.abc import Mapping
from dataclasses import replace

from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gangs.gang_object import POD_GROUP_LABEL, GangObject, GangRef, ObjectKey
from gpuscheduler.core.gangs.group_roles import GroupRoles
from gpuscheduler.core.gangs.job_set import JobSet
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.leader_worker_set import LeaderWorkerSet, gang_by_label
from gpuscheduler.core.gangs.pod_group import PodGroup
from gpuscheduler.core.pod_facts import PodFacts

UNSEEN = "its object has not been seen"


class GangObjects:
    """The objects that the API server shows.

    Args:
        pods: by UID, those that are kept.
    """

    def __init__(self, pods: Mapping[str, PodFacts]) -> None:
        self._pods = pods
        self._objects: dict[ObjectKey, GangObject] = {}
        self._unreadable: dict[ObjectKind, str] = {}
        self._referring: dict[ObjectKey, dict[str, None]] = {}
        self._outdated: dict[str, None] = {}
        self._roles = GroupRoles()

    def seen_beside(self, pod: PodFacts) -> None:
        """Take a pod as it is now, also one without GPUs: it may say what others of its group wait for."""
        self._outdated.update(dict.fromkeys(self._roles.seen(pod)))

    def gone_beside(self, uid: str) -> None:
        """Forget what a pod says of others of its group."""
        self._roles.forget(uid)

    def resolved(self, pod: PodFacts) -> PodFacts:
        """The pod with its gang, by the object that it refers to."""
        ref = pod.gang_ref
        if ref is None:
            return pod
        gang = self._gang(ref, pod.name.namespace)
        return pod if gang == pod.job else replace(pod, job=gang)

    def keep(self, pod: PodFacts, former: PodFacts | None = None) -> None:
        """Know that the pod refers to an object. `former` is the pod as it was kept before."""
        if former and former.gang_ref != pod.gang_ref:
            # Its labels were edited.
            self.forget(former)
        if pod.gang_ref:
            for key in pod.gang_ref.keys_in(pod.name.namespace):
                self._referring.setdefault(key, {})[pod.uid] = None

    def forget(self, pod: PodFacts) -> None:
        """Take that the pod is gone."""
        self._outdated.pop(pod.uid, None)
        if pod.gang_ref is None:
            return
        for key in pod.gang_ref.keys_in(pod.name.namespace):
            uids = self._referring.get(key, {})
            uids.pop(pod.uid, None)
            if not uids:
                self._referring.pop(key, None)

    def seen(self, found: GangObject) -> None:
        """Take an object as it is now."""
        if self._objects.get(found.key) != found:
            self._objects[found.key] = found
            self._outdate(found.key)

    def gone(self, key: ObjectKey, uid: str) -> None:
        """Forget an object, unless another one has its name by now."""
        known = self._objects.get(key)
        if known and known.uid == uid:
            del self._objects[key]
            self._outdate(key)

    def readable(self, kind: ObjectKind, problem: str) -> None:
        """Take why no objects of a kind can be seen; empty if they can."""
        if self._unreadable.get(kind, "") == problem:
            return
        self._unreadable[kind] = problem
        for key in self._referring:
            if key.kind is kind:
                self._outdate(key)

    def is_referred_to(self, kind: ObjectKind) -> bool:
        """Whether pods refer to objects of a kind."""
        return any(key.kind is kind for key in self._referring)

    @property
    def are_outdated(self) -> bool:
        """Whether pods have to be taken again, because their object has changed."""
        return bool(self._outdated)

    def take_outdated(self) -> PodFacts | None:
        """The next pod that has to be taken again; None if there is none. An object may have any number of pods."""
        while self._outdated:
            uid = next(iter(self._outdated))
            del self._outdated[uid]
            if uid in self._pods:
                return self._pods[uid]
        return None

    def _gang(self, ref: GangRef, namespace: str) -> Gang | None:
        known = self._objects.get(ref.key_in(namespace))
        if known is None:
            return self._gang_without_object(ref)
        if ref.job_set:
            return self._gang_in_job_set(known.gang_of(ref), ref, namespace)
        if not ref.group_set:
            return known.gang_of(ref)
        group_set = self._objects.get(ObjectKey(ObjectKind.LEADER_WORKER_SET, namespace, ref.group_set))
        can_be_seen = not self._unreadable.get(ObjectKind.LEADER_WORKER_SET)
        if group_set is None and can_be_seen:
            # Whether one group has as many pods with the label as the PodGroup says, its templates say.
            return replace(ref.provisional, unknown=UNSEEN)
        of_templates = group_set.roles if isinstance(group_set, LeaderWorkerSet) else {}
        of_pods = self._roles.of(namespace, ref.instance)
        own = of_pods.get(ref.role)
        if own and ref.role in of_templates and own.labels != of_templates[ref.role].labels:
            # The group is of other templates, or something else has written the labels: the other role has them, too.
            of_templates = {role: pods._replace(labels=own.labels) for role, pods in of_templates.items()}
        roles = tuple({**of_templates, **of_pods}.items())
        with_roles = replace(ref, roles=roles)
        gang = known.gang_of(with_roles)
        if gang and isinstance(known, PodGroup) and isinstance(group_set, LeaderWorkerSet):
            return group_set.gang_after_leader(gang, known.gang, POD_GROUP_LABEL, with_roles)
        return gang

    def _gang_in_job_set(
        self,
        group: Gang | None,
        ref: GangRef,
        namespace: str,
    ) -> Gang | None:
        """The gang of a pod of a PodGroup, `group`, whose label may stand in a template that serves several Jobs."""
        job_set = self._objects.get(ObjectKey(ObjectKind.JOB_SET, namespace, ref.job_set))
        if group and isinstance(job_set, JobSet):
            return job_set.gang_by_pod_group(group, ref)
        can_be_seen = not self._unreadable.get(ObjectKind.JOB_SET)
        return replace(ref.provisional, unknown=UNSEEN) if can_be_seen else group

    def _gang_without_object(self, ref: GangRef) -> Gang:
        problem = self._unreadable.get(ref.kind, "")
        if problem and ref.fallback:
            return gang_by_label(ref.fallback, ref) if ref.group_set else ref.fallback
        return replace(ref.provisional, unknown=problem or UNSEEN)

    def _outdate(self, key: ObjectKey) -> None:
        """Have the pods that refer to an object taken again."""
        for uid in self._referring.get(key, ()):
            self._outdated[uid] = None
