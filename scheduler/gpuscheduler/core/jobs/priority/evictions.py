"""Has kube-scheduler evict pods for a job of which each pod fits alone.

kube-scheduler tries one pod at a time. It evicts nothing on a node that has enough for this pod, even if the whole job
does not fit there. So all pods of the job are nominated for their nodes for a while, because kube-scheduler counts
other pods where they are nominated. Then it finds no room for the pod that it tries, and looks for pods to evict.

kube-scheduler tries a pod as soon as it is nominated. If it comes to the first one before the nominations of the
others are written, that pod fits, is refused here, and loses its nomination. Therefore it is nominated again, and
kube-scheduler is woken only when all nominations are seen to stand.
"""

from collections.abc import Collection, Mapping

from gpuscheduler.core.calls import Action, Nominate
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.jobs.planning.named_nodes import has_in_sum
from gpuscheduler.core.jobs.planning.nominations import Nominations, nudges
from gpuscheduler.core.jobs.planning.planning import MOST_AT_ONCE
from gpuscheduler.core.jobs.priority.joint_attempt import JointAttempt
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

BY_ITSELF_S = 2.0
"""How long kube-scheduler has to ask by itself which pods to evict, after a plan has failed."""
ATTEMPT_S = 60.0
"""How long pods stay nominated. Pods that are evicted usually end within 30 s."""
AGAIN_S = 300.0
"""Time between the beginnings of two attempts for a job, as they keep room from other pods."""
LOOK_AGAIN_S = 30.0
"""Time after which evictions are considered again for a job that they did not help, or for which some have begun."""
_NEVER = float("inf")


class Evictions:
    """The attempts of all jobs: one job at a time, that for which nodes are kept. Call `watch` after each change.

    Args:
        precedence: the jobs that nodes are kept for.
        nominations: of all jobs.
        actions: to which writes are added.
        nodes: by name, with their users.
    """

    def __init__(
        self,
        precedence: Precedence,
        nominations: Nominations,
        actions: list[Action],
        nodes: Mapping[str, NodeUsage],
    ) -> None:
        self._precedence = precedence
        self._nominations = nominations
        self._actions = actions
        self._nodes = nodes

    def watch(self, job: Job, now: float, *, may_be_planned: bool) -> None:
        """Begin to wait for an attempt, go on with it, or end it, by what the watch shows of the job."""
        waits = may_be_planned and job.plan is None
        if job.attempt:
            if waits:
                self._go_on(job, job.attempt)
            else:
                self._end(job)
        is_one_by_one = 0 < job.searched.fitting < job.needed
        if not (waits and is_one_by_one and _may_evict(job)):
            job.attempt_at = _NEVER
        elif job.attempt is None and job.attempt_at == _NEVER:
            job.attempt_at = max(now + BY_ITSELF_S, job.next_attempt_at)

    def due_at(self, job: Job) -> float:
        """When something is due for the job; infinite if nothing is."""
        return job.attempt.until if job.attempt else job.attempt_at

    def take_due(self, job: Job, now: float) -> None:
        """Begin an attempt, or end it without success."""
        if self.due_at(job) > now:
            return
        job.attempt_at = _NEVER
        if job.attempt:
            self._end(job)
        else:
            self._begin(job, now)

    def nodes(self, job: Job, pod: PodFacts) -> frozenset[str]:
        """The nodes where pods may be evicted for a pod while an attempt for its job goes on."""
        if job.attempt is None or pod.uid not in job.attempt.places:
            return frozenset()
        nodes = frozenset(job.attempt.places.values())
        if not self._precedence.places_after_evictions(job, nodes):
            # The cluster has changed since, so the job would not start.
            return frozenset()
        return frozenset([job.attempt.places[pod.uid]])

    def asked(self, job: Job, now: float) -> None:
        """Take that kube-scheduler has asked which pods to evict for a pod, and some may end."""
        if job.attempt is None:
            job.attempt_at = _NEVER
            job.next_attempt_at = max(job.next_attempt_at, now + LOOK_AGAIN_S)

    def _begin(self, job: Job, now: float) -> None:
        """Nominate all pods of a job, if kube-scheduler evicts no pods for it by itself, and could."""
        job.next_attempt_at = now + LOOK_AGAIN_S
        places = self._precedence.places_after_evictions(job)
        callers = self._callers(job, places)
        if not callers:
            return
        job.next_attempt_at = now + AGAIN_S
        job.attempt = JointAttempt(places, callers, now + ATTEMPT_S)
        self._nominate(job, job.attempt, places)

    def _callers(self, job: Job, places: Mapping[str, str]) -> list[str]:
        """The pod of the lowest priority on each node that has room for it, and not for all of the job there.

        kube-scheduler does not count nominated pods of a lower priority than that of the pod that it tries.
        """
        by_node: dict[str, list[PodFacts]] = {}
        for uid, name in places.items():
            on_node = by_node.setdefault(name, [])
            on_node.append(job.members[uid])
        callers: list[str] = []
        for name, pods in by_node.items():
            node = self._nodes[name]
            lowest = min(pods, key=lambda pod: pod.priority)
            if has_in_sum(node, [lowest]) and not has_in_sum(node, pods):
                callers.append(lowest.uid)
        return callers

    def _go_on(self, job: Job, attempt: JointAttempt) -> None:
        """Nominate pods again that have lost that, and wake kube-scheduler when all of them are nominated."""
        pending = job.members.pending
        nominated = {uid: pending[uid].nominated for uid in attempt.places if uid in pending}
        after = attempt.seen(nominated)
        lost = sorted(attempt.shown - after.shown)
        if lost and after.may_renew:
            self._nominate(job, after, lost)
            after = after.renewed(lost)
        elif after.is_ready:
            callers = [pending[uid] for uid in after.callers]
            self._actions += nudges(callers)
            after = after.woken()
        job.attempt = after

    def _nominate(self, job: Job, attempt: JointAttempt, uids: Collection[str]) -> None:
        for uid in uids:
            pod = job.members.pending.get(uid)
            if pod:
                self._nominations.nominate(job, pod, attempt.places[uid])

    def _end(self, job: Job) -> None:
        """End the attempt. Pods that are planned by now are nominated as the plan says."""
        attempt = job.attempt
        job.attempt = None
        if attempt is None or job.plan:
            return
        for uid, node in attempt.places.items():
            pod = job.members.pending.get(uid)
            # Another node is kube-scheduler's own choice, where pods may be ending for this one.
            if pod and pod.nominated in ("", node):
                self._actions.append(Nominate(pod.name, uid, ""))
        job.nominated.difference_update(attempt.places)


def _may_evict(job: Job) -> bool:
    """Whether kube-scheduler may evict pods for the pods of a job that wait, as far as these say."""
    if len(job.members) > MOST_AT_ONCE:
        # So many writes for one job would delay those for others.
        return False
    return all(pod.may_preempt and not pod.in_native_group for pod in job.to_plan())
