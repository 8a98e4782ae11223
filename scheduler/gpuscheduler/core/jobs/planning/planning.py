"""Decides when a job is planned, and what becomes of its plan when kube-scheduler does not accept a place in it.

What enters is a job whose pods kube-scheduler has come to, in a call, in an event, or at a tick. A search looks for
places for all pods that have to start together (`placement_search`). If there are enough, they become the job's plan:
the GPUs of all are reserved (`start_plans`), and kube-scheduler is made to try each pod on its node (`nominations`).
Otherwise nothing is reserved. The job is planned again when something has changed (`replanning`).

When kube-scheduler comes to a pod and rejects its node, the pod gets another place, and the others keep theirs if
possible. If there is none, the pod may be accepted later, or in another order. Otherwise, the plan breaks.
"""

from collections.abc import Collection, Mapping, Sequence

from gpuscheduler.core.calls import Action
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.jobs.job import Job, Searched
from gpuscheduler.core.jobs.places.plan import Passed
from gpuscheduler.core.jobs.planning.named_nodes import NamedNodes, left_out, passed_with
from gpuscheduler.core.jobs.planning.nominations import Nominations
from gpuscheduler.core.jobs.planning.placement_search import Placement, PlacementSearch
from gpuscheduler.core.jobs.planning.replanning import Replanning
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S, StartPlans
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.jobs.start_plan import PlanStage, StartPlan
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations

UNSUITABLE_S = 60.0
"""How long a waiting job passes over nodes that kube-scheduler did not name. Then kube-scheduler has to ask again."""
MOST_AT_ONCE = 64
"""Pods of the largest job that is planned during a call: any author of pods may label thousands of them alike."""
MOST_DEFERRALS = 100
"""How often pods of one plan wait until kube-scheduler has placed others of it."""


class Planning:
    """Plans jobs.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        precedence: keeps nodes for the first jobs that wait.
        work: of all namespaces.

    Attributes:
        precedence: as above.
        work: as above.
        actions: to carry out; others may add to them.
        nominations: has kube-scheduler try pods of plans.
        replanning: whether jobs that wait are planned at the next tick.
        plans: what the plans of all jobs hold.
        search: for places.
        ready: whether plans may be made.
    """

    def __init__(  # noqa: PLR0913 (what plans are made of)
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        links: Links,
        pods: Mapping[str, PodFacts],
        precedence: Precedence,
        work: WorkShares,
    ) -> None:
        self.precedence = precedence
        self.work = work
        self.actions: list[Action] = []
        self.nominations = Nominations(self.actions, usage.is_large)
        self.replanning = Replanning(usage)
        self.plans = StartPlans(
            usage.nodes,
            reservations,
            pods,
            self.actions,
            self.nominations,
            self.replanning,
        )
        self.search = PlacementSearch(usage, links, pods, precedence, work)
        self.ready = False
        self._usage = usage
        self._reservations = reservations

    # -- a call about a pod ----------------------------------------------------------------------------------------

    def place(
        self,
        job: Job,
        pod: PodFacts,
        names: Collection[str],
        now: float,
    ) -> tuple[str, Choice] | None:
        """Node and GPUs of a pod in the job's plan, which is made here if there is none that kube-scheduler accepts.

        `names` are of the nodes that kube-scheduler accepts for the pod.
        """
        named = NamedNodes(pod, names, self._usage.nodes, self._usage.min_feasible)
        place = job.place_of(pod.uid)
        if place is None:
            if job.plan is None:
                self._note_named(job, named)
                self._first_plan(job, pod, now)
            return job.place_of(pod.uid)
        if job.plan and job.plan.is_too_early(pod.uid):
            # kube-scheduler may name other nodes once it has placed the pods before this one.
            return place
        planned_node, _ = place
        if named.rejects(planned_node) and job.plan and job.plan.stage is PlanStage.GATHERING:
            self._move(job, job.plan, pod, _to_pass_over(job, named, planned_node), now)
        return job.place_of(pod.uid)

    def _note_named(self, job: Job, named: NamedNodes) -> None:
        """Note which nodes kube-scheduler accepts for a pod while it has placed no other pod of the job."""
        pod = named.pod
        if named.are_all:
            job.rejected.passes_over(pod.uid, left_out(pod, named.others(), self._usage.nodes))
        if pod.requests.others:
            job.rejected.checks_all_but(pod, named.unchecked())

    def _first_plan(self, job: Job, pod: PodFacts, now: float) -> None:
        if self.may_plan_now(job, now):
            self.try_plan(job, now, calling=pod.uid)
        elif job.tried != self._made_of(job):
            job.is_postponed = True
            self.replanning.request()

    def may_plan_now(self, job: Job, now: float) -> bool:
        """Whether a job may be planned in a call or an event, which others wait for. `tick` has the time otherwise."""
        is_small = len(job.members) <= MOST_AT_ONCE
        return is_small and self.work.may_go_ahead(job.key.namespace, now)

    # -- a new plan ------------------------------------------------------------------------------------------------

    def try_plan(self, job: Job, now: float, calling: str = "") -> None:
        """Plan the job's pending pods and reserve their GPUs; `calling` is the UID of a pod in a filter call."""
        if not self.ready or job.plan or job.retry_at > now:
            return
        # A plan over thousands of nodes takes tens of milliseconds, so the same one is not tried twice.
        if job.tried == self._made_of(job):
            job.retry_at = float("-inf")
            return
        pending = job.to_plan()
        if not pending:
            return
        may_plan_at = self._may_plan_at(job, pending, now)
        if may_plan_at > now:
            job.retry_at = may_plan_at
            return
        job.retry_at = float("-inf")
        job.is_postponed = False
        job.ask_at = float("inf")
        # What they had reserved one by one counts as free for the plan.
        self._reservations.end(pod.uid for pod in pending)
        placement = self.search.to_start(job, pending)
        _note_result(job, placement)
        has_enough = len(placement.places) >= job.needed
        if not has_enough:
            # Nothing is held while a job waits, but nodes may be kept for it.
            self.precedence.wanted(job, pending, now)
        self.work.count(job.key.namespace, now)
        if has_enough:
            self._begin(job, pending, placement, now, calling)
        else:
            self._note_failure(job, pending, now)

    def _may_plan_at(self, job: Job, pending: Collection[PodFacts], now: float) -> float:
        """When the job may be planned, as far as that is not its own doing."""
        paused_until = self.plans.lapses.until(job.key.namespace)
        job.is_paused = paused_until > now
        # A pod that may be bound needs the GPUs that are reserved for it, until the watch decides.
        certain_at = max(self._reservations.may_be_bound(pod.uid) or now for pod in pending)
        return max(paused_until, certain_at)

    def _begin(
        self,
        job: Job,
        pending: Collection[PodFacts],
        placement: Placement,
        now: float,
        calling: str,
    ) -> None:
        """Begin the start of a job: its plan gathers its pods from now on."""
        places = placement.places
        unasked = job.unasked(places)
        plan = StartPlan(places, now + BARRIER_S, attached=unasked, in_order=job.starts_in_order)
        job.plan = plan
        job.starts_in_order = False
        self.plans.keep(job, plan)
        asked = [pod for pod in pending if pod.uid in places and pod.uid not in unasked]
        self.nominations.wake(job, plan, asked, calling)

    def _note_failure(self, job: Job, pending: Collection[PodFacts], now: float) -> None:
        """Note that there is no room for a job, so that the same plan is not tried again."""
        job.tried = self._made_of(job)
        if any(job.unsuitable().values()):
            job.ask_at = now + UNSUITABLE_S
        if len(pending) > MOST_AT_ONCE or job.searched.gave_up:
            # To plan it takes long, and others wait meanwhile.
            job.delay(now)

    def _made_of(self, job: Job) -> object:
        """What a plan depends on: one that failed fails again as long as this is equal."""
        return self._usage.frees, job.members.version, job.rejected.version, job.alone

    # -- a place that kube-scheduler rejects -----------------------------------------------------------------------

    def _move(
        self,
        job: Job,
        plan: StartPlan,
        pod: PodFacts,
        to_pass_over: Sequence[Passed],
        now: float,
    ) -> None:
        """Give a pod another place in the plan, as kube-scheduler has rejected its own. The others stay if possible.

        `to_pass_over` has the nodes that the pod must not get: the best guess first.
        """
        self.plans.release(plan)
        for passed in to_pass_over:
            placement = self.search.elsewhere(job, plan, pod.uid, passed)
            _note_result(job, placement)
            if len(placement.places) == len(plan.places):
                self._take_moved(job, plan.moved(placement.places, {**plan.refused, pod.uid: passed}), plan, pod)
                return
        self._cannot_move(job, plan, pod, to_pass_over[-1], now)

    def _take_moved(self, job: Job, plan: StartPlan, former: StartPlan, pod: PodFacts) -> None:
        """Go on with a plan in which pods have other places. `pod` is the one about which kube-scheduler is asking."""
        job.plan = plan
        self.plans.keep(job, plan)
        moved = [job.members[uid] for uid, place in plan.places.items() if place != former.places[uid]]
        self.nominations.wake(job, plan, moved, calling=pod.uid)

    def _cannot_move(
        self,
        job: Job,
        plan: StartPlan,
        pod: PodFacts,
        passed: Passed,
        now: float,
    ) -> None:
        """Keep the plan if the pod's place may be accepted later. Otherwise, break it."""
        if _may_wait_for_others(pod, plan):
            job.plan = plan.defers(pod.uid)
            self.plans.keep(job, job.plan)
            return
        self.plans.break_plan(job, now)
        if _may_start_in_order(pod, plan):
            # The same plan is made again: nothing speaks against its places yet.
            job.starts_in_order = True
            return
        # Until kube-scheduler asks again: the next plan would be the same one.
        for uid, nodes in {**plan.refused, pod.uid: passed}.items():
            job.rejected.passes_over(uid, left_out(job.members[uid], nodes, self._usage.nodes))
        job.ask_at = now + UNSUITABLE_S


def _note_result(job: Job, placement: Placement) -> None:
    """Keep what the last search found out, for the reason why the job waits."""
    job.searched = Searched(placement.fitting, placement.gave_up, placement.shortage)


def _to_pass_over(job: Job, named: NamedNodes, planned_node: str) -> list[Passed]:
    """The nodes that a pod must not be moved to, as its planned one was rejected: the best guess first."""
    # The named nodes are certain to be accepted. There may be others, if kube-scheduler has not named all.
    guesses = [named.others()]
    if not named.are_all:
        passed_before = job.unsuitable().get(named.pod.uid)
        guesses.append(passed_with(passed_before, frozenset([planned_node])))
    return guesses


def _may_wait_for_others(pod: PodFacts, plan: StartPlan) -> bool:
    """Whether kube-scheduler may accept the pod's place later: it counts only those pods that it has placed.

    The plan keeps the rules of its pods once all of them are on their nodes.
    """
    # Each time, another place is searched before, which takes long for a large job.
    is_cheap = len(plan.places) <= MOST_AT_ONCE and plan.deferrals < MOST_DEFERRALS
    if plan.in_order or not is_cheap:
        return False
    return pod.rules.depend_on_pods and plan.comes_after_others(pod.uid)


def _may_start_in_order(pod: PodFacts, plan: StartPlan) -> bool:
    """Whether kube-scheduler may accept the pod's place if it comes to the pods in the order of the plan.

    For example, a pod that is to be near others may be the first one anywhere, and no longer once another is placed.
    """
    if plan.in_order or len(plan.places) > MOST_AT_ONCE:
        return False
    # kube-scheduler places all pods of its own groups in one cycle, which ends with the first that is refused.
    is_one_by_one = not pod.in_native_group
    any_before = bool(plan.in_bind - {pod.uid})
    return is_one_by_one and any_before and pod.rules.depend_on_pods
