"""What is due for jobs, and which of those that wait is planned next."""

from collections import deque
from collections.abc import Iterator

from gpuscheduler.core.calls import Nudge, Ungate
from gpuscheduler.core.jobs.agenda import Agenda
from gpuscheduler.core.jobs.job import Job, JobKey
from gpuscheduler.core.jobs.planning import MOST_AT_ONCE, Planning

FAILED_S = 600.0
"""How long pods that come again wait for members that failed. Controllers make new ones within 6 minutes, or never."""


class DueJobs:
    """The times of all jobs. Call `settle` after each change of a job.

    Args:
        jobs: by name; those without pods are removed here.
        planning: makes and breaks plans, and takes actions.
    """

    def __init__(self, jobs: dict[JobKey, Job], planning: Planning) -> None:
        self._jobs = jobs
        self._planning = planning
        self._agenda = Agenda()
        self._waiting: dict[JobKey, None] = {}
        self._turns: deque[JobKey] = deque()

    def tick(self, now: float) -> None:
        """Break plans whose pods did not all come. Plan one of the jobs that wait: each in turn, by priority and age.

        It is one, because a plan over thousands of nodes takes tens of milliseconds, and calls wait meanwhile.
        """
        while (key := self._agenda.pop_due(now)) is not None:
            job = self._jobs[key]
            self._take_due(job, now)
            self.settle(job, now)
        if not self._turns and self._planning.may_fit:
            ready = [key for key in self._waiting if self._jobs[key].retry_at <= now]
            self._planning.look_begins()
            self._turns = deque(sorted(ready, key=lambda key: self._jobs[key].age))
        if self._turns:
            self._plan_next(now)

    def next_due(self, now: float) -> Iterator[float]:
        """When `tick` has work, in monotonic seconds."""
        at = self._agenda.next_at()
        if at is not None:
            yield at
        if self._planning.may_fit or self._turns:
            yield now

    def settle(self, job: Job, now: float) -> None:
        """Note when something is due for a job, and whether it waits: there may be thousands of jobs."""
        if job.is_gone:
            self.remove(job)
            return
        waits = job.waits
        if waits:
            self._waiting[job.key] = None
        else:
            self._waiting.pop(job.key, None)
        self._let_in(job)
        self._wait_for_failed(job, now)
        due = min(job.ask_at, job.alone_at)
        if job.plan:
            due = min(due, job.plan.until)
        elif waits and job.retry_at > now:
            due = min(due, job.retry_at)
        self._agenda.put(job.key, due)

    def completed(self, job: Job) -> None:
        """Have a job planned that need not wait for more pods, although none has come."""
        self._planning.again = True
        pending = list(job.members.pending.values())
        self._planning.actions += [Nudge(pod.name, pod.uid) for pod in pending[:MOST_AT_ONCE] if not pod.gated]

    def remove(self, job: Job) -> None:
        """Forget a job that has no pods any more."""
        self._jobs.pop(job.key, None)
        self._waiting.pop(job.key, None)
        self._agenda.put(job.key, float("inf"))

    def _plan_next(self, now: float) -> None:
        """Plan the job whose turn it is, if it still waits."""
        job = self._jobs.get(self._turns.popleft())
        if job and job.waits:
            self._planning.try_plan(job, now)
            self.settle(job, now)

    def _take_due(self, job: Job, now: float) -> None:
        """Do what is due for a job."""
        if job.plan and job.plan.until <= now:
            self._planning.expire(job, now)
        if job.ask_at <= now:
            job.ask_at = float("inf")
            job.unnamed.clear()
            job.tried = None
            # kube-scheduler names the nodes for this pod again, which count for all of equal requests.
            for pod in job.members.to_place()[:1]:
                self._planning.actions.append(Nudge(pod.name, pod.uid))
        if job.alone_at <= now:
            job.alone_at = float("inf")
            job.alone = True
            self.completed(job)
        if float("-inf") < job.retry_at <= now:
            self._planning.again = True

    def _let_in(self, job: Job) -> None:
        """Take our scheduling gate off the pods of a job, once all of them are there."""
        is_complete = job.is_complete
        if is_complete and not job.let_in:
            for pod in job.members.pending.values():
                if pod.gated:
                    self._planning.actions.append(Ungate(pod.name, pod.uid))
        job.let_in = is_complete

    def _wait_for_failed(self, job: Job, now: float) -> None:
        """Bound how long pods that come again wait for members that failed."""
        may_come_again = bool(job.members.pending) and not job.alone and not job.is_complete
        if not may_come_again:
            job.alone_at = float("inf")
        elif job.alone_at == float("inf") and job.members.ended_before(failed=True):
            job.alone_at = now + FAILED_S
