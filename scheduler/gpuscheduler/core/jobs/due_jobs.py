"""What is due for jobs, and which of those that wait is planned next."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from heapq import nsmallest

from gpuscheduler.core.calls import Nudge, Ungate
from gpuscheduler.core.jobs.agenda import Agenda
from gpuscheduler.core.jobs.broken_jobs import BrokenJobs
from gpuscheduler.core.jobs.job import Job, JobKey
from gpuscheduler.core.jobs.planning.nominations import nudges
from gpuscheduler.core.jobs.planning.planning import MOST_AT_ONCE, Planning
from gpuscheduler.core.jobs.priority.evictions import Evictions
from gpuscheduler.core.jobs.priority.precedence import MOST_CLAIMS, NODES_AGAIN_S
from gpuscheduler.core.pod_facts import PodFacts

CALL_S = 2.0
"""How long kube-scheduler has to come to the pods of a complete job by itself, before it is woken for them."""
FAILED_S = 600.0
"""How long pods that come again wait for members that failed. Controllers make new ones within 6 minutes, or never."""


class DueJobs:
    """The times of all jobs. Call `settle` after each change of a job.

    Args:
        jobs: by name; those without pods are removed here.
        planning: makes and breaks plans, and takes actions.
        broken_jobs: watches which pods jobs lose.
        evictions: has kube-scheduler evict pods for jobs.
    """

    def __init__(
        self,
        jobs: dict[JobKey, Job],
        planning: Planning,
        broken_jobs: BrokenJobs,
        evictions: Evictions,
    ) -> None:
        self._jobs = jobs
        self._planning = planning
        self._broken_jobs = broken_jobs
        self._evictions = evictions
        self._agenda = Agenda()
        self._waiting: dict[JobKey, None] = {}
        self._turns: deque[JobKey] = deque()
        self._unasked: set[JobKey] = set()
        """Jobs that wait for room, and about which kube-scheduler does not ask because it sees none."""
        self._look_again_at = float("-inf")

    def tick(self, now: float) -> None:
        """Break plans whose pods did not all come. Plan one of the jobs that wait: each in turn, see `_in_turn`.

        It is one, because a plan over thousands of nodes takes tens of milliseconds, and calls wait meanwhile.
        """
        while (key := self._agenda.pop_due(now)) is not None:
            job = self._jobs[key]
            self._take_due(job, now)
            self.settle(job, now)
        if self._planning.precedence.take_vacancy():
            self._look_for_unasked()
        self._choose_nodes_again(now)
        if not self._turns and self._planning.replanning.is_due:
            self._begin_turns(now)
        if self._turns:
            self._plan_next(now)

    def _begin_turns(self, now: float) -> None:
        """Have each job that waits planned, one with every tick."""
        for key in list(self._planning.precedence.claims):
            if key not in self._waiting:
                # kube-scheduler does not ask about its pods, so that it is not planned. Its nodes may have changed.
                self.settle(self._jobs[key], now)
        if self._look_again_at <= now:
            self._look_again_at = now + NODES_AGAIN_S
            for job in self._look_for_unasked():
                job.room_wait.nodes_again_at = now
        waiting = [self._jobs[key] for key in self._waiting]
        ready = [job for job in waiting if job.retry_at <= now]
        ready.sort(key=lambda job: job.age)
        self._planning.replanning.begins()
        self._turns = deque(job.key for job in _in_turn(ready))

    def _look_for_unasked(self) -> list[Job]:
        """Have nodes chosen for the first jobs that keep none, and about which kube-scheduler does not ask.

        Otherwise they would have to wait until one of their own pods changes.
        """
        precedence = self._planning.precedence
        without_nodes = [self._jobs[key] for key in self._unasked if key not in precedence.claims]
        first = nsmallest(MOST_CLAIMS, without_nodes, key=lambda job: (job.age, job.key))
        precedence.outdated.update(job.key for job in first)
        return first

    def _choose_nodes_again(self, now: float) -> None:
        """Choose nodes for one of the jobs that need others: for the namespace that has taken the least work."""
        outdated = self._planning.precedence.outdated
        work = self._planning.work
        key = min(outdated, key=lambda key: (work.done(key.namespace, now), key), default=None)
        if key is None:
            return
        outdated.remove(key)
        job = self._jobs.get(key)
        if job is None:
            return
        if job.waits:
            # It is planned in vain, and then its nodes are chosen.
            job.tried = None
            self._planning.try_plan(job, now)
        else:
            self._want_nodes(job, job.wants_nodes(), now)
        self.settle(job, now)

    def next_due(self, now: float) -> Iterator[float]:
        """When `tick` has work, in monotonic seconds."""
        at = self._agenda.next_at()
        if at is not None:
            yield at
        if self._planning.replanning.is_due or self._turns or self._planning.precedence.outdated:
            yield now

    def settle(self, job: Job, now: float) -> None:
        """Note when something is due for a job, and whether it waits: there may be thousands of jobs."""
        if job.is_gone:
            self.remove(job, now)
            return
        waits = job.waits
        if waits:
            self._waiting[job.key] = None
        else:
            self._waiting.pop(job.key, None)
        # If this has changed, nodes are chosen next.
        self._note_overdue(job, now)
        self._note_wait(job, now, may_be_planned=waits)
        self._let_in(job)
        self._wait_for_failed(job, now)
        self._wait_for_turns(job, now)
        self._broken_jobs.watch(job, now)
        self._evictions.watch(job, now, may_be_planned=waits)
        due = min(job.ask_at, job.alone_at, job.call_at, self._broken_jobs.due_at(job), self._evictions.due_at(job))
        if job.plan:
            due = min(due, job.plan.until)
        elif waits and job.retry_at > now:
            due = min(due, job.retry_at)
        due = min(due, self._planning.precedence.overdue_changes_at(job, now))
        self._agenda.put(job.key, due)

    def settle_soon(self, job: Job, now: float) -> None:
        """Have a job settled with the next tick: to choose nodes for it takes long, and a call is to be answered."""
        self._agenda.put(job.key, now)

    def completed(self, job: Job) -> None:
        """Have a job planned that need not wait for more pods, although none has come."""
        self._planning.replanning.request()
        # kube-scheduler was told that it waits for more pods, and does not ask again by itself.
        pending = list(job.members.pending.values())
        self._planning.actions += nudges(pending[:MOST_AT_ONCE])

    def remove(self, job: Job, now: float) -> None:
        """Forget a job that has no pods any more."""
        self._jobs.pop(job.key, None)
        self._planning.precedence.ends(job, now)
        self._waiting.pop(job.key, None)
        self._unasked.discard(job.key)
        self._agenda.put(job.key, float("inf"))

    def _plan_next(self, now: float) -> None:
        """Plan the job whose turn it is, if it still waits."""
        # It may be gone, or planned by a filter call, since its turn was noted.
        job = self._jobs.get(self._turns.popleft())
        if job and job.waits:
            self._planning.try_plan(job, now)
            self.settle(job, now)

    def _take_due(self, job: Job, now: float) -> None:
        """Do what is due for a job."""
        if job.plan and job.plan.until <= now:
            self._planning.plans.expire(job, now)
        if job.ask_at <= now:
            job.ask_at = float("inf")
            job.rejected.forget_all()
            # kube-scheduler names the nodes for this pod again, which count for all of equal requests.
            for pod in job.members.to_place()[:1]:
                self._planning.actions.append(Nudge(pod.name, pod.uid))
        if job.call_at <= now:
            job.call_at = float("inf")
            self._call(job)
        self._broken_jobs.take_due(job, now)
        self._evictions.take_due(job, now)
        self._planning.work.count(job.key.namespace, now)
        if job.alone_at <= now:
            job.alone_at = float("inf")
            job.alone = True
            self.completed(job)
        if float("-inf") < job.retry_at <= now:
            self._planning.replanning.request()

    def _let_in(self, job: Job) -> None:
        """Take our scheduling gate off the pods of a job, once all of them are there."""
        is_complete = job.is_complete
        if is_complete and not job.let_in:
            # Also of those without GPUs, which kube-scheduler places.
            gated = [pod for pod in job.members.living.values() if pod.has_our_gate_only]
            for pod in gated:
                self._planning.actions.append(Ungate(pod.name, pod.uid))
        job.let_in = is_complete

    def _note_wait(self, job: Job, now: float, *, may_be_planned: bool) -> None:
        """Note since when a job waits for room, also while kube-scheduler sees none and does not ask about it."""
        precedence = self._planning.precedence
        self._unasked.discard(job.key)
        if job.plan:
            precedence.ends(job, now)
        elif not may_be_planned:
            hopeful = job.wants_nodes()
            if not hopeful:
                precedence.ends(job, now)
                job.room_wait.since = float("inf")
                return
            self._unasked.add(job.key)
            if self._planning.work.may_go_ahead(job.key.namespace, now):
                self._want_nodes(job, hopeful, now)
            else:
                precedence.outdated.add(job.key)
        job.room_wait.since = min(job.room_wait.since, now)

    def _want_nodes(self, job: Job, hopeful: Collection[PodFacts], now: float) -> None:
        """Have nodes kept for pods of a job that kube-scheduler does not ask about."""
        if hopeful and job.plan is None:
            self._planning.precedence.wanted(job, hopeful, now)
            self._planning.work.count(job.key.namespace, now)

    def _note_overdue(self, job: Job, now: float) -> None:
        """Begin or end to keep nodes for a job that has waited for too long."""
        precedence = self._planning.precedence
        is_overdue = precedence.is_overdue(job, now)
        if is_overdue == job.room_wait.is_overdue:
            return
        job.room_wait.is_overdue = is_overdue
        precedence.ends(job, now)
        # The next look chooses nodes for the job: after a plan that finds no places, or at once if kube-scheduler has
        # not asked about its pods. If it no longer keeps nodes, the next look chooses them for another job.
        job.room_wait.nodes_tried = None
        job.tried = None
        self._planning.replanning.request()

    def _wait_for_turns(self, job: Job, now: float) -> None:
        """Give kube-scheduler a while to come to all pods of a job by itself. It has, if this scheduler began later."""
        is_due = job.call_at < float("inf")
        if not job.turns.uncalled or job.plan or not job.is_complete:
            job.call_at = float("inf")
        elif not is_due:
            job.call_at = now + CALL_S

    def _call(self, job: Job) -> None:
        """Have kube-scheduler try the pods of a job that it has not come to."""
        uncalled = [pod for pod in job.to_come() if pod.uid in job.turns.uncalled]
        job.turns.called(pod.uid for pod in uncalled)
        self._planning.actions += nudges(uncalled)

    def _wait_for_failed(self, job: Job, now: float) -> None:
        """Bound how long pods that come again wait for members that failed."""
        has_pending = bool(job.members.pending)
        may_come_again = has_pending and not job.alone and not job.is_complete
        if not may_come_again:
            job.alone_at = float("inf")
            return
        is_bounded = job.alone_at < float("inf")
        if not is_bounded and job.members.ended_before(failed=True):
            job.alone_at = now + FAILED_S


def _in_turn(by_age: Iterable[Job]) -> list[Job]:
    """Jobs in the order in which they are planned: by priority, then from each namespace in turn, then by age.

    A namespace may have thousands of jobs that can never fit, and those of others do not wait for all of these.
    """
    earlier: Counter[tuple[str, int]] = Counter()
    ranks: dict[JobKey, tuple[int, int]] = {}
    jobs: list[Job] = []
    for job in by_age:
        negative_priority, _ = job.age
        namespace = job.key.namespace, negative_priority
        ranks[job.key] = negative_priority, earlier[namespace]
        earlier[namespace] += 1
        jobs.append(job)
    # Equal ranks stay in the order of their age.
    return sorted(jobs, key=lambda job: ranks[job.key])
