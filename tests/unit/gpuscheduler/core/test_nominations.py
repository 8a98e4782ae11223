"""How kube-scheduler is made to try the pods of a plan, each on its node."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.jobs.job import Job, key_of
from gpuscheduler.core.jobs.planning.nominations import Nominations
from gpuscheduler.core.jobs.start_plan import StartPlan
from tests.unit.gpuscheduler.core.api_objects import pod

LABELS = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
FIRST, SECOND = (pod(name, uid=name, labels=LABELS, whole=1) for name in ("first", "second"))
PLACES = {"first": ("n1", Choice((), {})), "second": ("n2", Choice((), {}))}
PLAN = StartPlan(PLACES, until=15.0)


@pytest.fixture
def job():
    made = Job(key_of(FIRST))
    for member in (FIRST, SECOND):
        made.members.put(member)
    return made


def among_few():
    return False


def among_many():
    return True


def woken(members):
    return [Nudge(member.name, member.uid) for member in members]


def nominated(member, node):
    return Nominate(member.name, member.uid, node)


def test_pods_are_woken_besides_the_one_of_the_call(job):
    actions = []
    Nominations(actions, among_few).wake(job, PLAN, [FIRST, SECOND], calling="second")
    assert actions == woken([FIRST])


def test_among_many_nodes_pods_are_nominated_and_that_is_taken_back(job):
    actions = []
    nominations = Nominations(actions, among_many)
    nominations.wake(job, PLAN, [FIRST, SECOND])
    assert actions == [nominated(FIRST, "n1"), nominated(SECOND, "n2"), *woken([FIRST, SECOND])]
    actions.clear()
    nominations.end(job)
    assert actions == [nominated(FIRST, ""), nominated(SECOND, "")]
    actions.clear()
    nominations.end(job)
    assert actions == []


def test_once_a_pod_is_nominated_it_is_nominated_anew_also_among_few_nodes(job):
    """Otherwise, it would count where it was nominated before."""
    actions = []
    nominations = Nominations(actions, among_few)
    nominations.nominate(job, FIRST, "n2")
    actions.clear()
    nominations.wake(job, PLAN, [FIRST])
    assert actions == [nominated(FIRST, "n1"), *woken([FIRST])]


def test_a_plan_in_order_wakes_only_the_next_pod(job):
    actions = []
    in_order = StartPlan(PLACES, until=15.0, in_order=True)
    Nominations(actions, among_few).wake(job, in_order, [FIRST, SECOND])
    assert actions == woken([FIRST])
    actions.clear()
    Nominations(actions, among_few).wake(job, in_order.entered("first"), [FIRST, SECOND])
    assert actions == woken([SECOND])


def test_deferred_pods_are_woken_once(job):
    actions = []
    job.plan = PLAN.defers("second")
    nominations = Nominations(actions, among_few)
    nominations.wake_deferred(job)
    assert actions == woken([SECOND])
    assert job.plan == StartPlan(PLACES, until=15.0, deferrals=1)
    actions.clear()
    nominations.wake_deferred(job)
    assert actions == []


def test_attached_pods_keep_their_nodes_until_kube_scheduler_comes_to_them(job):
    actions = []
    job.plan = StartPlan(PLACES, until=15.0, attached=frozenset(["second"]))
    Nominations(actions, among_few).wake_attached(job)
    assert actions == [nominated(SECOND, "n2"), *woken([SECOND])]
