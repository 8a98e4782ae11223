"""Jobs: pods of one gang in a namespace, which start together or wait together.

A job is forming until as many pods are there as its labels or its object say. Then it waits, and holds nothing, until
all of its pods fit: the plan reserves the GPUs of all. Each pod's bind call waits until all pods are in bind. Then the
plan is written on one of them, and all are bound. Pods that replace members of a running job are planned near it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuscheduler.core.calls import BindRefused, BindWait, Evict, EvictOutcome, FilterAnswer, Nudge, Report, Ungate
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gangs.gang import GangSource
from gpuscheduler.core.gpu_request import Used
from gpuscheduler.core.jobs.barrier import entered
from gpuscheduler.core.jobs.broken_jobs import BrokenJobs
from gpuscheduler.core.jobs.due_jobs import DueJobs
from gpuscheduler.core.jobs.job import Job, JobKey, JobState, key_of
from gpuscheduler.core.jobs.planning.nominations import nudges
from gpuscheduler.core.jobs.planning.placement_search import Decisions
from gpuscheduler.core.jobs.planning.planning import MOST_AT_ONCE, Planning
from gpuscheduler.core.jobs.planning.start_plans import COMMITTED_S
from gpuscheduler.core.jobs.priority.evictions import Evictions
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.jobs.recovery import Recovery
from gpuscheduler.core.jobs.start_plan import PlanStage
from gpuscheduler.core.jobs.turns import EarlyCalls, EarlyVictimCalls
from gpuscheduler.core.jobs.why_waiting import why_waiting
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.waiting.other_schedulers import OtherSchedulers


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What the operator sets for jobs.

    Attributes:
        patience_s: how long a job waits before nodes are kept from later pods of its own priority; 0 for never.
        evict_broken_s: how long a job that has started may lack pods before the others are evicted; 0 for never.
    """

    patience_s: float = 0.0
    evict_broken_s: float = 0.0


NO_LIMITS = JobLimits()


class Jobs:
    """All jobs. The caller drains `actions` after each call.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        limits: of the operator.
        others: pods that another scheduler is to place, which may be of these jobs.

    Attributes:
        precedence: keeps nodes for the first jobs that wait.
    """

    def __init__(  # noqa: PLR0913 (each is another part of the scheduler)
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        links: Links,
        pods: Mapping[str, PodFacts],
        limits: JobLimits,
        others: OtherSchedulers,
    ) -> None:
        self._usage = usage
        self._pods = pods
        self._others = others
        self._work = WorkShares()
        self.precedence = Precedence(usage, links, pods, limits.patience_s, self._work)
        self._planning = Planning(usage, reservations, links, pods, self.precedence, self._work)
        self._jobs: dict[JobKey, Job] = {}
        self._broken_jobs = BrokenJobs(self._planning.actions, limits.evict_broken_s)
        self._evictions = Evictions(self.precedence, self._planning.nominations, self._planning.actions, usage.nodes)
        self._due_jobs = DueJobs(self._jobs, self._planning, self._broken_jobs, self._evictions)
        self._recovery = Recovery(self._jobs, self._planning, self._due_jobs, self._broken_jobs)
        self._ended: dict[str, JobKey] = {}
        self._early = EarlyCalls()
        self._not_shown_before = EarlyCalls()
        self._early_victim_calls = EarlyVictimCalls()
        self.actions = self._planning.actions

    def plan_over(self, decisions: Decisions) -> None:
        """Have decisions give way to plans."""
        self._planning.search.decisions = decisions

    def is_member(self, pod: PodFacts) -> bool:
        """Whether the pod belongs to a job of several pods."""
        return pod.job is not None and pod.job.pods != 1

    def ending(self, pod: PodFacts, evicted: int) -> int:
        """How many pods cannot go on once so many pods of this one's job, itself included, are evicted."""
        job = self._job_of(pod)
        if job is None or not job.breaks_without(evicted):
            return evicted
        # Those of a written plan are being bound, or are bound, which the watch may not have shown yet.
        to_be_bound = len(job.plan.places) if job.plan and job.plan.is_written else 0
        return max(job.members.running + to_be_bound, evicted)

    def size_of(self, pod: PodFacts) -> int:
        """How many pods the job of a pod has; 0 if it is in none."""
        job = self._job_of(pod)
        return len(job.members) if job else 0

    def is_running(self, pod: PodFacts) -> bool:
        """Whether pods of its job run, so that this one was added or replaces another."""
        job = self._job_of(pod)
        return job is not None and job.members.any_bound

    def why(self, pod: PodFacts) -> str:
        """Why a member waits; empty if its job starts, or it is no member."""
        job = self._job_of(pod)
        if job is None or pod.uid not in job.members:
            return ""
        is_planned = job.place_of(pod.uid) is not None
        if is_planned:
            return ""
        obstacle = job.problem() or self._missing(job, pod)
        if not obstacle:
            obstacle = why_waiting(job, self._usage.nodes, self._usage)
        return f"{job.title}: {obstacle}"

    def _missing(self, job: Job, pod: PodFacts) -> str:
        """How many pods are there, see `Job.missing`."""
        return job.missing(pod, self._others.in_job(job.key, pod.scheduler))

    def states(self) -> Counter[JobState]:
        """Number of jobs by state."""
        return Counter(job.state for job in self._jobs.values() if len(job.members))

    # -- what the watch shows --------------------------------------------------------------------------------------

    def pod_seen(self, pod: PodFacts, now: float) -> None:
        """Take a member as it is now; when the last one comes, plan the job."""
        job = self._job(key_of(pod))
        was_there = pod.uid in job.members.living
        was_pending = pod.uid in job.members.pending
        before = _outlook(job)
        unknown_before = job.members.unknown
        was_kept_off = pod.uid in job.members and job.members[pod.uid].is_kept_from_others
        job.members.put(pod)
        self._note_turn(job, pod.uid, was_pending=was_pending)
        # It may have been there before with a gate, which has held it back.
        is_new = not was_there and pod.uid in job.members.living
        if is_new:
            job.wait_for_failed()
        if job.plan and pod.node:
            job.plan = job.plan.without([pod.uid])
        self._planning.plans.review(job, now)
        if is_new:
            self._pod_came(job, pod, now)
        elif _outlook(job) != before:
            # Such as by the first of its pods that another scheduler binds.
            self._planning.replanning.request()
        if pod.is_kept_from_others and not was_kept_off:
            # It may be near others of the job, so that it can be planned with them.
            self._planning.replanning.request()
        is_other_reason = job.plan is None and _outlook(job) != before
        if is_new and self._planning.ready and is_other_reason:
            self.actions += _nudges_of(job, besides=pod.uid)
        waited_for_watch = not pod.gated and self._not_shown_before.take(pod.uid)
        if waited_for_watch and job.place_of(pod.uid) is None:
            # It waits for another reason now. A plan wakes its pods.
            self.actions += nudges([pod])
        if was_there and job.members.unknown != unknown_before and job.plan is None:
            # The object that has the number of pods came or went, so each pod has another reason.
            self.actions += _nudges_of(job)
        self._due_jobs.settle(job, now)

    def say_again(self, keys: Iterable[JobKey]) -> None:
        """Have kube-scheduler ask about the pods of jobs that begin or end to have pods of another scheduler."""
        for key in keys:
            job = self._jobs.get(key)
            is_forming = job is not None and job.plan is None and not job.is_complete
            if job and is_forming and self._planning.ready:
                self.actions += _nudges_of(job)

    def _note_turn(self, job: Job, uid: str, *, was_pending: bool) -> None:
        """Note that a pod begins or ends to wait."""
        is_pending = uid in job.members.pending
        is_new = is_pending and not was_pending
        was_asked_about = self._early.take(uid)
        if is_new and not was_asked_about:
            job.turns.came(uid)
            if self._early_victim_calls.take(uid):
                job.turns.wants_victims(uid)
        elif not is_pending:
            job.turns.forget(uid)

    def _pod_came(self, job: Job, pod: PodFacts, now: float) -> None:
        """Plan a job that is complete with a new pod."""
        if pod.node or not job.is_complete:
            return
        if job.let_in and pod.gated:
            self.actions.append(Ungate(pod.name, pod.uid))
        if self._planning.may_plan_now(job, now):
            self._planning.try_plan(job, now)
        else:
            self._planning.replanning.request()

    def pod_gone(self, pod: PodFacts, now: float) -> None:
        """Forget a member that was deleted or has ended."""
        job = self._jobs.get(key_of(pod))
        if job is None:
            return
        job.members.remove(pod.uid)
        job.turns.forget(pod.uid)
        job.nominated.discard(pod.uid)
        job.rejected.forget(pod.uid)
        # It may have kept the others from being planned.
        self._planning.replanning.request()
        self._planning.plans.review(job, now)
        self._due_jobs.settle(job, now)

    def pod_ended(self, pod: PodFacts, now: float) -> None:
        """Take that a member has ended on a node. It counts as there for those that come again."""
        job = self._job(key_of(pod))
        was_complete = job.is_complete
        job.members.end(pod)
        self._ended[pod.uid] = job.key
        if not was_complete and job.is_complete:
            self._due_jobs.completed(job)
        self._due_jobs.settle(job, now)

    def ended_gone(self, uid: str, now: float) -> None:
        """Forget a pod that has ended, if it is one."""
        key = self._ended.pop(uid, None)
        job = self._jobs.get(key) if key else None
        if job and job.members.forget_ended(uid) and job.is_gone:
            self._due_jobs.remove(job, now)

    # -- calls -----------------------------------------------------------------------------------------------------

    def filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """The planned node of a member, or why the job waits."""
        job = self._job(key_of(pod))
        job.members.put(pod)
        # kube-scheduler tries all pods of its own groups in one cycle, which ends with the first that is refused.
        asked = list(job.members.pending) if pod.in_native_group else [pod.uid]
        job.turns.asked(asked)
        answer = self._filter(job, pod, names, now)
        # A place may have been searched for one pod of a plan.
        self._work.count(job.key.namespace, now)
        is_seen = pod.uid in self._pods
        if not is_seen and job.place_of(pod.uid) is None:
            # It counts once the watch shows it, as it may be gone.
            job.members.remove(pod.uid)
            self._early.add(pod.uid)
        self._due_jobs.settle(job, now)
        return answer

    def _filter(
        self,
        job: Job,
        pod: PodFacts,
        names: Collection[str],
        now: float,
    ) -> FilterAnswer:
        why = job.problem() or self._missing(job, pod) or self._not_shown(job, pod)
        if why:
            return _refused(job, names, why)
        place = self._planning.place(job, pod, names, now)
        if place is None:
            return _refused(job, names, why_waiting(job, names, self._usage))
        node, _ = place
        is_too_early = job.plan is not None and job.plan.is_too_early(pod.uid)
        if node in names and not is_too_early:
            return FilterAnswer(nodes=(node,))
        if is_too_early or (job.plan and pod.uid in job.plan.deferred):
            return _refused(job, names, f"planned on node {node}, which suits the pod after other pods of the job")
        # kube-scheduler looks at a part of the nodes of a large cluster, and at a nominated one first.
        self._planning.nominations.nominate(job, pod, node)
        return _refused(job, names, f"planned on node {node}, which kube-scheduler tries next")

    def _not_shown(self, job: Job, pod: PodFacts) -> str:
        """Why a pod waits that would join pods that run, and that the watch has not shown; empty if it need not.

        These pods may be gone by now, as if Kueue had evicted the job and its pods came again. Then this pod would
        start alone. The watch shows that they are gone before it shows the pod.
        """
        shown = self._pods.get(pod.uid)
        # The watch may be behind by the moment in which Kueue has lifted the gate, too.
        is_shown = shown is not None and not shown.gated
        joins_others = job.has_started and job.place_of(pod.uid) is None
        if is_shown or not joins_others:
            return ""
        self._not_shown_before.add(pod.uid)
        return "the watch of gpuscheduler has not shown this pod yet, so those of the job that run may be gone"

    def bind(self, pod: PodFacts, node: str, now: float) -> Choice | BindWait | BindRefused:
        """The GPUs of a member whose job is complete in bind and written; otherwise it waits."""
        key = key_of(pod)
        job = self._jobs.get(key)
        if job is None:
            return BindRefused(f"{key.title} has no plan for this pod any more; kube-scheduler tries it again")
        answer = entered(job, pod, node, self._planning, now)
        # Its plan may have broken.
        self._due_jobs.settle(job, now)
        return answer

    def preemptable(self, pod: PodFacts, proposed: Collection[str], now: float) -> frozenset[str]:
        """The nodes where pods may be evicted for a member, see `Precedence.preemptable`."""
        job = self._job(key_of(pod))
        if pod.uid in self._pods:
            job.turns.wants_victims(pod.uid)
        else:
            self._early_victim_calls.add(pod, job.key, now)
        early = self._early_victim_calls.pods(job.key, now)
        unseen = [other for other in early if other.uid not in job.members]
        for other in unseen:
            job.members.put(other)
            job.turns.came(other.uid)
            job.turns.wants_victims(other.uid)
        nodes = self._preemptable(job, pod, proposed, now)
        if not nodes.isdisjoint(proposed):
            self._evictions.asked(job, now)
        self._due_jobs.settle_soon(job, now)
        for other in unseen:
            # It counts once the watch shows it, as it may be gone.
            job.members.remove(other.uid)
            job.turns.forget(other.uid)
        return nodes

    def _preemptable(
        self,
        job: Job,
        pod: PodFacts,
        proposed: Collection[str],
        now: float,
    ) -> frozenset[str]:
        if not self._work.may_go_ahead(job.key.namespace, now):
            # kube-scheduler asks again with the next try of the pod.
            return frozenset()
        nodes = self._evictions.nodes(job, pod) if job.attempt else self.precedence.preemptable(job, pod, proposed)
        self._work.count(job.key.namespace, now)
        return nodes

    def visible(self, pod: PodFacts, node: str) -> set[int]:
        """Minor numbers of the GPUs that pods of the job have on a node, and that the pod may see."""
        key = key_of(pod)
        if key.source is not GangSource.LABELS:
            # Agents know a job by its labels. One that trusts this refuses a pod that names GPUs of another job.
            return set()
        job = self._jobs.get(key)
        return _minors_on(node, job, self._pods) if job else set()

    def left_bind(self, pod: PodFacts) -> None:
        """A bind call ended without a Binding, so its pod no longer waits for the others."""
        job = self._jobs.get(key_of(pod))
        if job and job.plan:
            job.plan = job.plan.left(pod.uid)

    def committed(self, key: JobKey, now: float, *, written: bool) -> None:
        """Take the result of writing a job's plan."""
        job = self._jobs.get(key)
        if job is None or job.plan is None or job.plan.stage is PlanStage.GATHERING:
            return
        if written:
            job.plan = job.plan.written(now + COMMITTED_S)
            job.members.started(job.plan.places)
            self._planning.plans.keep(job, job.plan)
            self._planning.nominations.wake_attached(job)
        else:
            self._planning.plans.break_plan(job, now)
        self._due_jobs.settle(job, now)

    def wants_evicted(self, action: Evict) -> bool:
        """Whether a pod is still to be evicted."""
        job = self._jobs.get(action.job)
        return job is not None and self._broken_jobs.is_wanted(job, action.uid)

    def evicted(
        self,
        action: Evict,
        outcome: EvictOutcome,
        why: str,
        now: float,
    ) -> None:
        """Take the result of an eviction."""
        if outcome is EvictOutcome.EVICTED:
            self.actions.append(Report(action.pod, action.uid, "JobEvicted", f"Evicted: {action.reason}."))
        job = self._jobs.get(action.job)
        if job:
            self._broken_jobs.answered(job, action, outcome, why, now)
            self._due_jobs.settle(job, now)

    def recover(self, pods: Iterable[PodFacts], now: float) -> None:
        """Begin to plan, or lead, see `Recovery.begin`."""
        self._recovery.begin(pods, now)

    def _job(self, key: JobKey) -> Job:
        """The job of this name, or a new one."""
        job = self._jobs.get(key)
        if job is None:
            job = Job(key)
            self._jobs[key] = job
        return job

    def _job_of(self, pod: PodFacts) -> Job | None:
        """The job of a pod; None if it is not a member of a job."""
        return self._jobs.get(key_of(pod)) if self.is_member(pod) else None

    # -- what is due -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Break plans whose pods did not all come, and plan one of the jobs that wait, see `DueJobs.tick`."""
        self.precedence.endings.tick(now)
        self._due_jobs.tick(now)

    def next_due(self, now: float) -> Iterator[float]:
        """When `tick` has work, in monotonic seconds."""
        yield from self._due_jobs.next_due(now)


def _refused(job: Job, names: Collection[str], obstacle: str) -> FilterAnswer:
    # kube-scheduler writes the number of nodes before it.
    why = f"node(s) not given to {job.title}: {obstacle}"
    return FilterAnswer(unresolvable=dict.fromkeys(names, why), cause="job")


def _nudges_of(job: Job, besides: str = "") -> list[Nudge]:
    """Have kube-scheduler ask about the pods of a job besides one: it shows the former reason of each."""
    pending = job.members.pending.values()
    others = [pod for pod in pending if pod.uid != besides]
    return nudges(others)[:MOST_AT_ONCE]


def _minors_on(node: str, job: Job, pods: Mapping[str, PodFacts]) -> set[int]:
    """Minor numbers of the GPUs that pods of a job have on a node, by its plan or because they are bound."""
    minors = set[int]()
    planned = job.plan.places.values() if job.plan else ()
    for name, choice in planned:
        if name == node:
            minors |= _minors(choice.used)
    for member in job.members.bound():
        if member.node == node:
            # The watch may show by now what the pod holds, which the job's own copy lacks.
            bound = pods.get(member.uid, member)
            minors |= _minors(bound.used)
    return minors


def _minors(used: Used | None) -> set[int]:
    return {minor for minor, _ in used or ()}


def _outlook(job: Job) -> tuple[bool, bool]:
    """Whether the job can never start, and whether all of its pods are there."""
    return bool(job.problem()), job.is_complete
