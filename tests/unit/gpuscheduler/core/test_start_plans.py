"""What plans hold: all of it or nothing until they are written, and then what each pod still needs."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.jobs.job import RETRY_FIRST_S, Job, key_of
from gpuscheduler.core.jobs.planning.nominations import Nominations
from gpuscheduler.core.jobs.planning.replanning import Replanning
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S, COMMITTED_S, StartPlans
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.reservations import Reservations
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node

LABELS = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
MEMBERS = {uid: pod(uid, uid=uid, labels=LABELS, mem=4) for uid in ("a", "b")}
FOUR = Amounts(4, 0)
FIRST, SECOND = (Choice(((minor, FOUR),), {0: {minor: FOUR}}) for minor in (0, 1))
PLACES = {"a": ("n1", FIRST), "b": ("n1", SECOND)}


class Held:
    """One node with a job of two pods, whose plans are kept and ended."""

    def __init__(self):
        self.usage = ClusterUsage()
        self.usage.node_seen(shared_node("n1"))
        self.actions = []
        self.replanning = Replanning(self.usage)
        self.replanning.begins()
        self.plans = StartPlans(
            self.usage.nodes,
            Reservations(self.usage, MEMBERS),
            MEMBERS,
            self.actions,
            Nominations(self.actions, self.usage.is_large),
            self.replanning,
        )
        self.job = Job(key_of(MEMBERS["a"]))
        for member in MEMBERS.values():
            self.job.members.put(member)

    def keep(self, plan):
        self.job.plan = plan
        self.plans.keep(self.job, plan)

    @property
    def free(self):
        return [amounts.memory for amounts in self.usage.nodes["n1"].free]


@pytest.fixture
def held():
    return Held()


def test_a_plan_that_is_not_written_breaks_as_a_whole(held):
    held.keep(StartPlan(PLACES, until=BARRIER_S))
    assert held.free == [6, 6]
    held.plans.drop(held.job, {"a"}, now=1.0)
    assert held.job.plan is None
    assert held.free == [10, 10]
    assert held.replanning.is_due
    assert held.job.retry_at == 1.0 + RETRY_FIRST_S


def test_a_written_plan_lets_go_of_single_pods(held):
    held.keep(StartPlan(PLACES, until=BARRIER_S).written(COMMITTED_S))
    held.plans.drop(held.job, {"a"}, now=1.0)
    assert held.job.plan.places.keys() == {"b"}
    assert held.free == [10, 6]
    held.plans.drop(held.job, {"b"}, now=1.0)
    assert held.job.plan is None
    assert held.free == [10, 10]


def test_pods_that_did_not_come_count_against_their_namespace(held):
    held.keep(StartPlan(PLACES, until=BARRIER_S).entered("a"))
    held.plans.expire(held.job, now=BARRIER_S)
    assert held.job.plan is None
    assert held.plans.lapses.until("default") > BARRIER_S
    assert held.job.turns.unasked == {"b"}
    assert [(action.uid, type(action).__name__) for action in held.actions] == [("b", "Nudge")]


def test_only_plans_that_are_not_written_are_forgotten(held):
    held.keep(StartPlan(PLACES, until=BARRIER_S).written(COMMITTED_S))
    held.plans.forget_unwritten(held.job)
    assert held.job.plan
    held.keep(StartPlan(PLACES, until=BARRIER_S))
    held.plans.forget_unwritten(held.job)
    assert held.job.plan is None
    assert held.free == [10, 10]


def test_written_plans_are_recovered_as_far_as_there_is_room(held):
    held.usage.use("other", "n1", ((1, Amounts(8, 0)),))
    held.plans.recover(held.job, [PLACES], now=1.0)
    assert held.job.plan == StartPlan({"a": ("n1", FIRST)}, 1.0 + COMMITTED_S).written(1.0 + COMMITTED_S)
    assert held.free == [6, 2]


def test_gpus_of_a_node_that_is_gone_no_longer_fit(held):
    held.keep(StartPlan(PLACES, until=BARRIER_S))
    assert held.plans.still_fit(held.job, PLACES)
    held.usage.node_gone("n1")
    assert not held.plans.still_fit(held.job, PLACES)


def test_waiting_jobs_are_planned_again_when_units_become_free(held):
    assert not held.replanning.is_due
    held.usage.use("other", "n1", ((1, Amounts(8, 0)),))
    assert not held.replanning.is_due
    held.usage.release("other")
    assert held.replanning.is_due
    held.replanning.begins()
    assert not held.replanning.is_due
