"""Holds the GPUs of plans, and gives them back when plans end.

A plan reserves GPUs for all of its pods. Until it is written, it ends as a whole: if a pod of it goes, or does not come
into bind in time. A written plan outlives the scheduler, and only lets go of single pods: others are bound already.
"""

from collections.abc import Collection, Iterable, Mapping

from gpuscheduler.core.calls import Action
from gpuscheduler.core.choose_gpus import Choice, serves, still_fits
from gpuscheduler.core.jobs.job import RETRY_FIRST_S, Job
from gpuscheduler.core.jobs.lapses import Lapses
from gpuscheduler.core.jobs.places.plan import Places
from gpuscheduler.core.jobs.planning.nominations import Nominations, nudges
from gpuscheduler.core.jobs.planning.replanning import Replanning
from gpuscheduler.core.jobs.start_plan import PlanStage, StartPlan
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations

BARRIER_S = 15.0
"""How long a planned job holds GPUs until all of its pods are in bind."""
COMMITTED_S = 60.0
"""How long the GPUs of a written plan stay reserved."""


class StartPlans:
    """What the plans of all jobs hold.

    Args:
        nodes: by name, with their users.
        reservations: of all pods.
        pods: by UID, as the watch shows them.
        actions: to which writes are added.
        nominations: that end with a plan.
        replanning: asked for when a plan ends, because others may fit.

    Attributes:
        lapses: the namespaces whose plans lapsed.
    """

    def __init__(  # noqa: PLR0913 (what the end of a plan touches)
        self,
        nodes: Mapping[str, NodeUsage],
        reservations: Reservations,
        pods: Mapping[str, PodFacts],
        actions: list[Action],
        nominations: Nominations,
        replanning: Replanning,
    ) -> None:
        self._nodes = nodes
        self._reservations = reservations
        self._pods = pods
        self._actions = actions
        self._nominations = nominations
        self._replanning = replanning
        self.lapses = Lapses()

    def keep(self, job: Job, plan: StartPlan) -> None:
        """Reserve the GPUs of a plan until it ends."""
        for uid, (name, choice) in plan.places.items():
            self._reservations.keep(job.members[uid], {name: choice}, plan.until)

    def release(self, plan: StartPlan) -> None:
        """Give back all GPUs of a plan."""
        self._reservations.give_back(plan.places)

    def still_fit(self, job: Job, places: Mapping[str, tuple[str, Choice]]) -> bool:
        """Whether the GPUs that are reserved for pods of a job may still serve them."""
        for uid, (name, choice) in places.items():
            node = self._nodes.get(name)
            if node is None:
                return False
            request = job.members[uid].request
            if not still_fits(request, node, choice):
                return False
        return True

    def break_plan(self, job: Job, now: float) -> None:
        """Give back all GPUs of a plan, and plan again after a delay."""
        if job.plan is None:
            return
        self.release(job.plan)
        job.plan = None
        self._nominations.end(job)
        # kube-scheduler may have asked about a pod that was gone already.
        job.members.keep_only(self._pods.keys())
        job.tried = None
        self._replanning.request()
        job.delay(now)

    def drop(self, job: Job, uids: Collection[str], now: float) -> None:
        """Take pods out of a plan. A written plan goes on for the others; another one is broken as a whole."""
        if job.plan is None:
            return
        if uids and not job.plan.is_written:
            self.break_plan(job, now)
            return
        self._reservations.give_back(uids)
        job.plan = job.plan.without(uids)
        if not job.plan.places:
            job.plan = None
            # No pod of the plan is left to start, so the next failure is a first one again.
            job.delay_s = RETRY_FIRST_S
            if job.members.pending:
                # The others came after the plan was made, and are planned next.
                self._replanning.request()

    def review(self, job: Job, now: float) -> None:
        """Note that planned pods are bound, or will not come: the job may not even be complete without one."""
        if job.plan:
            pods = job.members.to_place() if job.plan.is_written else job.may_start()
            coming = {pod.uid for pod in pods}
            not_coming = job.plan.places.keys() - coming
            if not_coming:
                self.note_lapse(job, now)
            self.drop(job, not_coming, now)
        if job.plan and job.is_part(job.plan):
            self.break_plan(job, now)

    def expire(self, job: Job, now: float) -> None:
        """End a plan whose pods were not all in bind or bound in time."""
        self.note_absent(job)
        self.note_lapse(job, now)
        self.break_plan(job, now)

    def note_lapse(self, job: Job, now: float) -> None:
        """Count against the namespace that GPUs were held for pods that do not come into bind."""
        if job.plan and job.plan.stage is PlanStage.GATHERING:
            self.lapses.count(job.key.namespace, job.plan.until - BARRIER_S, now)

    def note_absent(self, job: Job) -> None:
        """Note which pods are not in bind, and have kube-scheduler come to them again, if it can place them."""
        plan = job.plan
        if plan is None or plan.is_written:
            return
        not_in_bind = plan.places.keys() - plan.in_bind
        absent = [pod for pod in job.members.to_place() if pod.uid in not_in_bind]
        job.turns.failed_to_come(pod.uid for pod in absent)
        self._actions += nudges(absent)

    def forget_unwritten(self, job: Job) -> None:
        """Give back the GPUs of a plan that was made while another scheduler led."""
        if job.plan and not job.plan.is_written:
            self.release(job.plan)
            job.plan = None
            self._nominations.end(job)

    def recover(self, job: Job, plans: Iterable[Places], now: float) -> None:
        """Reserve what written plans have for pods that are not bound yet."""
        if job.plan:
            return
        written: Places = {}
        for places in plans:
            written.update(places)
        pending = {pod.uid: pod for pod in job.members.to_place()}
        until = now + COMMITTED_S
        kept: Places = {}
        for uid, (name, choice) in written.items():
            pod = pending.get(uid)
            # Each is reserved before the next is looked at: the node may have less by now than all of them need.
            if pod and serves(pod.request, choice) and self._has_room(name, choice):
                kept[uid] = name, choice
                self._reservations.keep(pod, {name: choice}, until)
        if kept:
            job.plan = StartPlan(kept, until).written(until)

    def _has_room(self, name: str, choice: Choice) -> bool:
        node = self._nodes.get(name)
        return node is not None and node.has_room(choice.used)
