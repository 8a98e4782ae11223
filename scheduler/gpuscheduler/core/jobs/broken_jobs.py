"""Jobs that have started and lack pods: an Event says so, and the other pods are evicted if the operator wants it.

The other pods hold GPUs, and most can do nothing alone. Once they are evicted, their controllers create them again, and
the job starts as a whole.
"""

from gpuscheduler.core.calls import Action, Evict, EvictOutcome, Report
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.jobs.losses import RETRY_FIRST_S, RETRY_LIMIT_S, Losses
from gpuscheduler.core.pod_facts import PodFacts

BROKEN_S = 60.0
"""How long a job that has started may lack pods before an Event says so. Controllers make new ones within seconds."""
CAUSE = "broken-job"
"""Of evictions, in the metric."""
_NEVER = float("inf")


class BrokenJobs:
    """Watches the losses of all jobs. Call `watch` after each change of a job.

    Args:
        actions: to carry out.
        evict_s: how long a job may lack pods before the others are evicted; 0 for never.
    """

    def __init__(self, actions: list[Action], evict_s: float) -> None:
        self._actions = actions
        self._evict_s = evict_s

    def begin(self, job: Job) -> None:
        """Take a job as it is when this scheduler begins. What it lacks by now was not seen to be lost."""
        job.losses = Losses(unwitnessed=job.lost, are_unknown=bool(job.members.unknown))

    def watch(self, job: Job, now: float) -> None:
        """Note which pods are lost."""
        if job.losses.are_unknown:
            self.begin(job)
        if job.losses.are_unknown:
            # Its object has not been seen.
            return
        is_starting = job.plan is not None and job.plan.is_written
        if is_starting:
            job.losses = job.losses.starting()
            return
        # There may be thousands of pods, and few jobs have evictions.
        left = {pod.uid for pod in self._left(job)} if job.losses.evictions else set[str]()
        job.losses = job.losses.seen(job.lost, left, now)

    def due_at(self, job: Job) -> float:
        """When something is due for the job; infinite if nothing is."""
        losses = job.losses
        if job.plan or losses.since == _NEVER:
            # Pods that are planned come in the place of lost ones.
            return _NEVER
        say_at = _NEVER if losses.is_said else losses.since + BROKEN_S
        return min(say_at, self._evict_at(job))

    def take_due(self, job: Job, now: float) -> None:
        """Say that a job is broken, and evict its pods, if that is due."""
        if self.due_at(job) > now:
            return
        if job.losses.since + BROKEN_S <= now and not job.losses.is_said:
            self._say(job)
        if self._evict_at(job) <= now:
            self._evict(job, now)

    def is_wanted(self, job: Job, uid: str) -> bool:
        """Whether a pod is still to be evicted: its job may have become whole, or be about to."""
        return job.plan is None and uid in job.losses.evictions and self._may_be_evicted(job)

    def answered(
        self,
        job: Job,
        action: Evict,
        outcome: EvictOutcome,
        why: str,
        now: float,
    ) -> None:
        """Take the result of an eviction. It is empty in `why` if the API server was not asked."""
        eviction = job.losses.evictions.get(action.uid)
        if eviction is None:
            return
        is_refusal = outcome in (EvictOutcome.LATER, EvictOutcome.REFUSED)
        if not is_refusal:
            # The watch shows soon that it is gone.
            after = eviction.again_at(now + RETRY_LIMIT_S)
        elif not why:
            after = eviction.again_at(now + RETRY_FIRST_S)
        else:
            after = eviction.blocked(now)
            if not eviction.is_said:
                self._say_blocked(action, why)
        job.losses = job.losses.tried(action.uid, after)

    def _say_blocked(self, action: Evict, why: str) -> None:
        reason = action.reason[0].upper() + action.reason[1:]
        text = f"{reason}. But this pod cannot be evicted now, and is tried again: {why}"
        self._actions.append(Report(action.pod, action.uid, "EvictionBlocked", text))

    def _evict_at(self, job: Job) -> float:
        """When pods of the job are evicted next; infinite if none are."""
        if not self._evict_s or not self._may_be_evicted(job):
            return _NEVER
        evictions = job.losses.evictions.values()
        if evictions:
            return min(eviction.at for eviction in evictions)
        return job.losses.since + self._evict_s

    def _may_be_evicted(self, job: Job) -> bool:
        """Whether it is certain that the job lacks pods that it has started with."""
        is_witnessed = job.lost > job.losses.unwitnessed
        # Of a job that was scaled, the pods name different numbers.
        is_numbered = job.members.labels.are_one and not job.problem()
        return is_witnessed and is_numbered and bool(self._left(job))

    def _left(self, job: Job) -> list[PodFacts]:
        """The pods on nodes that this scheduler has started."""
        start = job.members.start
        return [pod for pod in job.members.living.values() if pod.node and start.has(pod)]

    def _evict(self, job: Job, now: float) -> None:
        """Evict the pods whose turn it is; all of them at first."""
        in_order = sorted(self._left(job), key=_eviction_order)
        left = {pod.uid: pod for pod in in_order}
        if not job.losses.evictions:
            job.losses = job.losses.evicting(left, now)
        due = [uid for uid, eviction in job.losses.evictions.items() if eviction.at <= now]
        job.losses = job.losses.asked(due)
        reason = f"{job.title} has lacked {_lost(job)} for {self._evict_s:.0f} s or longer"
        for uid in due:
            if uid in left:
                pod = left[uid]
                self._actions.append(Evict(pod.name, uid, CAUSE, job.key, reason))

    def _say(self, job: Job) -> None:
        """Say on the oldest pod that is left that others of its job are lost: it holds its GPUs, and may do nothing."""
        job.losses = job.losses.said()
        left = job.members.bound()
        if not left:
            return
        oldest = min(left, key=lambda pod: (pod.created, pod.name))
        why = f"{job.title} {_loss(job)}"
        what = "keep their GPUs: delete them if they cannot go on alone"
        if self._evict_s and self._may_be_evicted(job):
            what = f"are evicted {self._evict_s:.0f} s after the loss, unless the job is whole by then"
        text = f"{why}. The other {len(left)} {what}."
        self._actions.append(Report(oldest.name, oldest.uid, "JobBroken", text))


def _eviction_order(pod: PodFacts) -> tuple[object, ...]:
    """Pods without GPUs go first: without its last pod with GPUs, the job no longer counts as started."""
    return pod.request.kind.gives_gpus, pod.created, pod.name


def _loss(job: Job) -> str:
    """What the job lacks, after its title, and how sure that is."""
    is_witnessed = job.lost > job.losses.unwitnessed
    if is_witnessed:
        return f"has lost {_lost(job)} {BROKEN_S:.0f} s ago or longer"
    why = "they were lost, or have succeeded and are deleted"
    is_number_older = bool(job.members.start.size) or not job.key.source.is_numbered_by_object
    if not is_number_older:
        # An object's number may have been raised while no scheduler looked.
        why = f"{why}, or the number of its pods was raised after its start"
    return f"lacks {_lost(job)} since this scheduler began or longer: {why}"


def _lost(job: Job) -> str:
    members = job.members
    # The number may have been raised since the job started with fewer pods.
    had = min(members.wanted, members.start.size or members.wanted)
    return f"{job.lost} of its {had} pods"
