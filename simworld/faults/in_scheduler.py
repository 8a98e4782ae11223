"""Faults in what gpuscheduler makes of kube-scheduler's calls and of what its watches show."""

from dataclasses import replace
from typing import Any

from gpuscheduler.core import bindings
from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.calls import BindOutcome
from gpuscheduler.core.gangs.gang import GangKey
from gpuscheduler.core.jobs import jobs
from gpuscheduler.core.jobs.job import Job, key_of
from gpuscheduler.core.jobs.planning import planning, start_plans
from gpuscheduler.core.jobs.planning.nominations import Nominations
from gpuscheduler.core.jobs.pods.members import Members
from gpuscheduler.core.jobs.pods.start import Start
from gpuscheduler.core.jobs.recovery import Recovery
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods import ahead, single_pods
from gpuscheduler.core.waiting.cool_downs import CoolDowns
from gpuscheduler.core.waiting.trial_nominations import TrialNominations
from simworld.faults.replacing import put


def j4_members_that_have_succeeded_are_missed() -> None:
    """As it was: only living pods count as there, so a worker that comes again waits for those that are done."""
    put(Members, "ended_before", lambda _self, **_: 0)


def jobs_of_all_namespaces_are_one() -> None:
    """A mutant that unit tests missed (A8)."""

    def without_namespace(pod: PodFacts) -> GangKey:
        return key_of(pod)._replace(namespace="")

    put(jobs, "key_of", without_namespace)


def a_bound_pod_loses_its_gpus_with_its_reservation() -> None:
    """A mutant that unit tests missed."""

    def release(self: Any, uid: str, but: Any = ()) -> None:  # noqa: ANN401 (reservations, and names)
        usage = self._usage
        for name in list(usage.nodes_of(uid)):
            if name not in but:
                usage.release(uid, name)

    put(Reservations, "_release", release)


def a_pod_that_comes_again_is_new_to_its_job() -> None:
    """A mutant that unit tests missed: which pods come in the place of others."""
    put(Start, "has", lambda self, pod: pod.uid in self.uids)


def every_pod_that_ends_keeps_its_owner_from_the_node() -> None:
    """A mutant that unit tests missed: only a refusal lets a node rest."""
    ended = Scheduling._pod_ended  # noqa: SLF001 (the decision that is taken away)

    def avoided(self: Any, pod: PodFacts, now: float) -> None:  # noqa: ANN401 (the scheduler)
        if pod.uid in self.pods:
            self._single_pods.node_refused(pod, now)
        ended(self, pod, now)

    put(Scheduling, "_pod_ended", avoided)


def a_deleted_pod_keeps_its_reservation() -> None:
    """What was reserved for a pod that is deleted before it is bound is free only when the reservation lapses."""
    forget = Scheduling._forget  # noqa: SLF001 (the decision that is taken away)

    def keeping(self: Any, uid: str, now: float) -> None:  # noqa: ANN401 (the scheduler)
        reservation = self.reservations.get(uid)
        forget(self, uid, now)
        if reservation and not reservation.sent:
            self.reservations.keep(reservation.pod, reservation.choices, reservation.until)

    put(Scheduling, "_forget", keeping)


def a_job_begins_with_half_of_its_pods() -> None:
    """A job counts as complete when half of its pods are there."""

    def is_complete(self: Job) -> bool:
        if self.members.any_bound:
            return True
        wanted = next(iter(self.members.replicas), None)
        return wanted is not None and 2 * self.there >= wanted

    put(Job, "is_complete", property(is_complete))


def a_written_plan_is_not_read_back() -> None:
    """A scheduler that starts again plans the rest of a job anew, if there is room."""
    put(Recovery, "reserve_written", lambda *_: None)


def a_binding_on_its_way_reserves_nothing() -> None:
    """GPUs of a Binding on its way are given back as if it could not come through."""
    keep = Reservations.keep

    def unsent(self: Reservations, pod: Any, choices: Any, until: float, **_: bool) -> Any:  # noqa: ANN401
        return keep(self, pod, choices, until)

    put(Reservations, "keep", unsent)


def a_binding_is_confirmed_in_a_moment() -> None:
    """What was bound is free again before the watch shows it."""
    put(bindings, "CONFIRMED_S", 0.05)


def a_refused_binding_is_bound() -> None:
    """A pod that the API server did not bind is taken for bound, with what was reserved for it."""
    answered = bindings.Bindings.answered

    def as_bound(self: Any, uid: str, pod: Any, _outcome: object) -> None:  # noqa: ANN401
        answered(self, uid, pod, BindOutcome.BOUND)

    put(bindings.Bindings, "answered", as_bound)


def pods_that_have_ended_count() -> None:
    """The units of a pod that has succeeded or failed are taken until it is deleted."""
    put(Scheduling, "_pod_ended", lambda *_: None)


def a_member_that_is_gone_counts() -> None:
    """A job plans with a pod that was deleted."""
    put(Members, "remove", lambda *_: None)


def a_plan_outlives_its_end() -> None:
    """A plan whose pods do not all come into bind in time keeps its GPUs."""
    put(planning, "BARRIER_S", 1e6)


def a_reservation_outlives_its_end() -> None:
    """The GPUs of a pod that kube-scheduler has asked about once, and does not come back to, stay reserved."""
    put(Reservations, "lapse", lambda *_: None)


def a_written_plan_is_believed() -> None:
    """What a tenant has written as the plan of its job counts, also if it gives a pod more than the pod asks for."""
    put(start_plans, "serves", lambda *_: True)


def labels_of_running_pods_count() -> None:
    """A pod that runs is one of the job that its label names now, so another job seems to have begun."""
    first_seen = BoundPods._as_first_seen  # noqa: SLF001 (the decision that is taken away)

    def as_labeled(self: Any, pod: PodFacts, former: PodFacts) -> PodFacts:  # noqa: ANN401 (the pods on nodes)
        return replace(first_seen(self, pod, former), job=pod.job, gang_ref=pod.gang_ref)

    put(BoundPods, "_as_first_seen", as_labeled)


def a_refused_binding_of_a_job_gives_its_place_away() -> None:
    """When the API server refuses the Binding of a pod of a job, others may get its GPUs before it is tried again."""
    answered = bindings.Bindings.answered

    def and_ended(self: Any, uid: str, pod: Any, outcome: BindOutcome) -> None:  # noqa: ANN401 (the product's)
        answered(self, uid, pod, outcome)
        if outcome is BindOutcome.REFUSED:
            self._reservations.end([uid])

    put(bindings.Bindings, "answered", and_ended)


def an_unseen_pod_joins_those_that_run() -> None:
    """As it was: a pod that the watch has not shown starts beside pods of its job that may be gone."""
    put(jobs.Jobs, "_not_shown", lambda *_: "")


def a_next_leader_does_not_go_on_with_jobs() -> None:
    """A scheduler that begins to lead reserves nothing for jobs that the former leader bound in part."""
    put(Scheduling, "caught_up", lambda *_: None)


def pods_that_are_being_deleted_count() -> None:
    """Pods of a former job that still end count for the next one of its name, which has begun then."""
    count = Members._count  # noqa: SLF001 (the decision that is taken away)

    def as_if_it_stayed(self: Any, pod: PodFacts) -> None:  # noqa: ANN401 (the pods of a job)
        count(self, replace(pod, deleting=False))

    put(Members, "_count", as_if_it_stayed)


def a_plan_that_failed_is_not_tried_again() -> None:
    """A job for which there was no room waits until its own pods change, whatever room there is."""
    put(planning.Planning, "_made_of", lambda _self, job: job.members.version)


def a_plan_is_not_checked_before_it_is_bound() -> None:
    """GPUs of a plan may have been taken by pods of other schedulers meanwhile."""
    put(start_plans.StartPlans, "still_fit", lambda *_: True)


def a_reserved_place_is_not_checked_before_it_is_bound() -> None:
    """The same for a pod that is in no job."""
    put(single_pods, "still_fits", lambda *_: True)


def bound_pods_stay_in_their_plan() -> None:
    """The written plan of a job goes on when all of its pods are bound, so that no other plan is made for it."""
    without = StartPlan.without

    def unless_written(self: StartPlan, uids: Any) -> StartPlan:  # noqa: ANN401 (UIDs)
        return self if self.is_written else without(self, uids)

    put(StartPlan, "without", unless_written)


def nobody_hears_that_a_node_rests_no_longer() -> None:
    """A pod whose owner passes over a node is not woken when the node may be used again."""
    put(CoolDowns, "end", lambda *_: 0)
    put(CoolDowns, "node_changed", lambda *_: None)


def gated_pods_are_decided_ahead() -> None:
    """In a large cluster, GPUs are reserved for a pod that others hold back, before kube-scheduler asks about it."""
    put(ahead, "_may_wait", lambda pod: not pod.node)


def a_decision_ahead_stays_nominated() -> None:
    """A pod that kube-scheduler does not place stays nominated for the node that was decided before."""
    put(ahead.Ahead, "withdraw", lambda self, pod: self.forget(pod.uid))


def nominations_of_a_plan_that_broke_stay() -> None:
    """Pods of a job stay nominated for the nodes of a plan that has ended."""
    put(Nominations, "end", lambda *_: None)


def pods_that_are_woken_in_vain_stay_nominated() -> None:
    """As it was: kube-scheduler alone took the nomination back by which a pod was woken."""
    put(TrialNominations, "begin", lambda *_: None)


FAULTS = (
    j4_members_that_have_succeeded_are_missed,
    jobs_of_all_namespaces_are_one,
    a_bound_pod_loses_its_gpus_with_its_reservation,
    a_pod_that_comes_again_is_new_to_its_job,
    every_pod_that_ends_keeps_its_owner_from_the_node,
    a_deleted_pod_keeps_its_reservation,
    a_job_begins_with_half_of_its_pods,
    a_written_plan_is_not_read_back,
    a_binding_on_its_way_reserves_nothing,
    a_binding_is_confirmed_in_a_moment,
    a_refused_binding_is_bound,
    pods_that_have_ended_count,
    a_member_that_is_gone_counts,
    a_plan_outlives_its_end,
    a_reservation_outlives_its_end,
    a_written_plan_is_believed,
    labels_of_running_pods_count,
    a_refused_binding_of_a_job_gives_its_place_away,
    an_unseen_pod_joins_those_that_run,
    a_next_leader_does_not_go_on_with_jobs,
    pods_that_are_being_deleted_count,
    a_plan_that_failed_is_not_tried_again,
    a_plan_is_not_checked_before_it_is_bound,
    a_reserved_place_is_not_checked_before_it_is_bound,
    bound_pods_stay_in_their_plan,
    nobody_hears_that_a_node_rests_no_longer,
    gated_pods_are_decided_ahead,
    a_decision_ahead_stays_nominated,
    nominations_of_a_plan_that_broke_stay,
    pods_that_are_woken_in_vain_stay_nominated,
)
