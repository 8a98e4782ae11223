"""Pods that another scheduler is to place. They are only shown, because that scheduler may not exist."""

from collections.abc import Set as AbstractSet

from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.scheduler_name import STOCK_SCHEDULER, untried
from gpuscheduler.core.gangs.gang import GangKey
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.waiting.scheduler_names import SchedulerNames

_NO_JOBS: frozenset[GangKey] = frozenset()


class OtherSchedulers:
    """Pods that have no node and name another scheduler: they ask for GPUs, or start together with others.

    Args:
        ours: which pods are placed here.

    Attributes:
        pods: by UID, those that ask for GPUs.
        kept: by UID, all of them.
    """

    def __init__(self, ours: SchedulerNames) -> None:
        self._ours = ours
        self.pods: dict[str, PodFacts] = {}
        self.kept: dict[str, PodFacts] = {}
        self._by_job: dict[GangKey, dict[str, PodFacts]] = {}

    def wait(self, pod: PodFacts) -> AbstractSet[GangKey]:
        """Take such a pod as it is now. Returns the jobs that begin or end to have such pods."""
        before = self.forget(pod.uid)
        self.kept[pod.uid] = pod
        if pod.request.kind is not RequestKind.NONE:
            self.pods[pod.uid] = pod
        key = _job_of(pod)
        if key is None:
            return before
        members = self._by_job.setdefault(key, {})
        is_first = not members
        members[pod.uid] = pod
        # A job whose only such pod has changed had one before, and has one now.
        return before ^ {key} if is_first else before

    def forget(self, uid: str) -> AbstractSet[GangKey]:
        """Take that a pod has a node, or is gone. Returns the jobs that end to have such pods."""
        self.pods.pop(uid, None)
        former = self.kept.pop(uid, None)
        key = _job_of(former) if former else None
        if key is None:
            return _NO_JOBS
        members = self._by_job[key]
        del members[uid]
        if members:
            return _NO_JOBS
        del self._by_job[key]
        return frozenset([key])

    def why(self, pod: PodFacts) -> str:
        """Why a pod waits, in the words of its scheduler; that it has not tried the pod if it has said nothing.

        Of a pod that is placed here, it is empty before kube-scheduler has said anything.
        """
        if pod.unscheduled or pod.uid not in self.pods:
            return pod.unscheduled
        return untried(pod.scheduler or STOCK_SCHEDULER, self._ours.names)

    def in_job(self, key: GangKey, scheduler: str) -> str:
        """How many pods of a job wait for another scheduler, and what to do; empty if none do.

        Args:
            key: of the job.
            scheduler: `spec.schedulerName` of a pod of the job that is placed here.
        """
        members = self._by_job.get(key)
        if not members:
            return ""
        first = next(iter(members.values()))
        other = words.shown(first.scheduler or STOCK_SCHEDULER)
        remedy = f"set spec.schedulerName to {words.shown(scheduler)} in"
        if len(members) == 1:
            return f"1 names another scheduler, {other}: {remedy} its template"
        return f"{len(members)} name another scheduler, such as {other}: {remedy} their template"


def _job_of(pod: PodFacts) -> GangKey | None:
    """The job that the pod would be a member of; None if it is in none, or is being deleted."""
    if pod.job is None or pod.deleting:
        return None
    return pod.job.key_in(pod.name.namespace)
