"""Jobs of one namespace that can never fit, and change often: how much of the scheduler's work others wait for."""

import pytest

from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.work_shares import MOST_AHEAD, MOST_NAMESPACES, TRIES_A_SECOND, WorkShares
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

NODES = 16
GPUS = 8
MEMBERS = 32
A_PLAN = 6000
"""Tries of a plan for a hostile job, about."""


class Tenants(JobUnderTest):
    """Nodes of which a part is in use, the jobs of a hostile tenant, and those of others."""

    def __init__(self, monkeypatch):
        super().__init__(*(whole_node(f"n{number}", gpus=GPUS) for number in range(NODES)))
        self.tries = 0
        spend = Tries.spend

        def counted(tries, count=1):
            self.tries += count
            return spend(tries, count)

        monkeypatch.setattr(Tries, "spend", counted)
        for number in range(NODES):
            name = f"r{number}"
            self.create(name, job=None, asked=False, whole=3)
            self.write(name, self.bind(name, self.filter(name, [f"n{number}"]).nodes[0]))

    def hostile_job(self, number, **given):
        """No plan for it is found, and the search for one is long."""
        for member in range(MEMBERS):
            self.hostile_pod(number, member, **given)
        # kube-scheduler was refused the first ones before the last one came.
        self.filter(f"h{number}-0")

    def hostile_pod(self, number, member, **given):
        name = f"h{number}-{member}"
        self.create(
            name,
            job=f"h{number}",
            replicas=MEMBERS,
            whole=1 + member % 8,
            namespace="hostile",
            **given,
        )

    def changes(self, number):
        """One of its pods is deleted and made again, so that another plan may succeed."""
        name = f"h{number}-0"
        self.scheduling.pod_gone(name, self.now)
        self.act()
        self.hostile_pod(number, 0)

    def job(self, name, **given):
        """Two pods that fit on a node each; whether they have a place when kube-scheduler has asked about both."""
        for member in range(2):
            self.create(f"{name}-{member}", job=name, namespace="other", **{"whole": 4, **given})
        return [bool(self.filter(f"{name}-{member}").nodes) for member in range(2)]

    def tick(self):
        self.scheduling.tick(self.now)
        self.act()


@pytest.fixture
def tenants(monkeypatch):
    return Tenants(monkeypatch)


@pytest.mark.parametrize("priority", [0, 1000])
def test_changes_of_jobs_that_never_fit_take_a_small_part_of_the_work_in_calls(tenants, priority):
    """Each of them would have a plan made, which takes up to a fifth of a second of the only thread."""
    for number in range(4):
        tenants.hostile_job(number, priority=priority)
    seconds = 20
    before = tenants.tries
    for turn in range(seconds * 10):
        tenants.now = turn / 10
        tenants.changes(turn % 4)
    most = MOST_AHEAD + seconds * TRIES_A_SECOND
    # The plan with which the limit is passed may take more than is left.
    assert tenants.tries - before < 1.3 * most
    assert 3 * most < seconds * 10 * A_PLAN, "without a limit, each change makes a plan"


def test_a_job_of_another_namespace_is_planned_at_once(tenants):
    for number in range(12):
        tenants.hostile_job(number)
    before = tenants.tries
    tenants.changes(0)
    assert tenants.tries - before < A_PLAN / 10, "the tenant has done too much, and has to wait"
    # The first pod is refused until kube-scheduler has asked about the second one.
    assert tenants.job("good")[1]
    assert tenants.tries - before < A_PLAN / 10


def test_a_job_of_another_namespace_waits_for_few_plans_when_there_is_room(tenants):
    """Namespaces take turns, so it does not wait for all jobs that were there before."""
    for number in range(12):
        tenants.hostile_job(number)
    assert tenants.job("good", whole=6, created="2026-01-02T00:00:00Z") == [False, False]
    while tenants.scheduling.next_due(tenants.now) == tenants.now:
        tenants.tick()
    tenants.done.clear()
    for number in range(2):
        tenants.scheduling.pod_gone(f"r{number}", tenants.now)
    tenants.act()
    before = tenants.tries
    while not any(isinstance(action, Nudge) and action.pod.namespace == "other" for action in tenants.done):
        tenants.tick()
    assert tenants.tries - before < 3 * A_PLAN, "it waits for one other job"


def test_a_job_whose_turn_comes_later_says_so_and_is_planned_then(tenants):
    for number in range(12):
        tenants.hostile_job(number)
    for member in range(2):
        name = f"late-{member}"
        tenants.create(name, job="late", whole=1, namespace="hostile")
    answer = tenants.filter("late-1")
    why = "its turn to be planned comes next, after jobs of other namespaces"
    assert set(answer.unresolvable.values()) == {f"node(s) not given to job late: {why}"}
    for _ in range(2 * 12):
        tenants.tick()
    assert tenants.filter("late-0").nodes
    assert tenants.filter("late-1").nodes


def test_work_is_forgiven():
    work = WorkShares()
    work.add(MOST_AHEAD + TRIES_A_SECOND)
    work.count("busy", 0.0)
    assert not work.may_go_ahead("busy", 0.0)
    assert not work.may_go_ahead("busy", 1.0)
    assert work.may_go_ahead("busy", 1.1)
    assert work.done("busy", 1000.0) == 0
    assert work.may_go_ahead("idle", 0.0)


def test_few_namespaces_are_kept():
    work = WorkShares()
    for number in range(MOST_NAMESPACES + 1):
        work.add(2 * MOST_AHEAD)
        work.count(f"ns-{number}", 0.0)
    assert work.may_go_ahead("ns-0", 0.0)
    assert not work.may_go_ahead("ns-1", 0.0)
