"""Jobs that have started and lose pods: an Event says so, and the other pods are evicted if the operator wants it."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.calls import Evict, EvictOutcome, Report
from gpuscheduler.core.jobs.broken_jobs import BROKEN_S
from gpuscheduler.core.jobs.job import JobState
from gpuscheduler.core.jobs.jobs import NO_LIMITS, JobLimits
from gpuscheduler.core.jobs.losses import RETRY_FIRST_S, RETRY_LIMIT_S
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

NAMES = ("a", "b", "c")
EVICT_S = 300.0
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


class RunningJob(JobUnderTest):
    """A job of three pods that runs."""

    def __init__(self, *nodes, limits=NO_LIMITS, replicas=3, names=NAMES, **given):
        super().__init__(*(nodes or (whole_node("n1", gpus=8), whole_node("n2", gpus=8))), limits=limits)
        for name in names:
            self.create(name, replicas=replicas, whole=2, **given)
        self.run(*names)
        self.done.clear()

    def tick(self, now):
        self.now = now
        while (due := self.scheduling.next_due(now)) is not None and due <= now:
            self.scheduling.tick(now)
            self.act()

    def lose(self, name, now):
        """The pod is deleted."""
        self.now = now
        self.pods.pop(name, None)
        self.scheduling.pod_gone(name, now)
        self.act()

    def end(self, name, now, phase):
        self.now = now
        self.pods[name]["status"]["phase"] = phase
        self.scheduling.pod_seen(pod_facts(self.pods[name]), now)
        self.act()

    def terminate(self, name, now):
        """The pod ends, and is deleted a while later."""
        self.now = now
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.scheduling.pod_seen(pod_facts(self.pods[name]), now)
        self.act()

    def answer(self, action, outcome, why=""):
        self.scheduling.jobs.evicted(action, outcome, why, self.now)
        self.act()

    def take(self, kind):
        """The actions of a kind since the last call of this."""
        taken = [action for action in self.done if isinstance(action, kind)]
        self.done = [action for action in self.done if not isinstance(action, kind)]
        return taken

    def evictions(self):
        return [action.pod.name for action in self.take(Evict)]

    def events(self):
        return [(report.pod.name, report.reason) for report in self.take(Report)]


def evicting(**given):
    return RunningJob(limits=JobLimits(evict_broken_s=EVICT_S), **given)


# -- an Event says so --------------------------------------------------------------------------------------------------


def test_a_job_that_lost_a_pod_is_said_once():
    job = RunningJob()
    job.lose("b", 5.0)
    job.tick(5.0 + BROKEN_S - 1)
    assert job.events() == []
    assert job.scheduling.jobs.states() == {JobState.BROKEN: 1}
    for now in (5.0 + BROKEN_S, 1000.0):
        job.tick(now)
    (report,) = job.take(Report)
    text = "job j has lost 1 of its 3 pods 60 s ago or longer. The other 2 keep their GPUs: delete them if they cannot"
    assert (report.pod.name, report.reason) == ("a", "JobBroken")
    assert report.message == f"{text} go on alone."


def test_a_job_that_will_be_evicted_says_when():
    job = evicting()
    job.lose("b", 5.0)
    job.tick(5.0 + BROKEN_S)
    (report,) = job.take(Report)
    assert report.message.endswith("The other 2 are evicted 300 s after the loss, unless the job is whole by then.")


def test_a_pod_that_comes_again_in_time_mends_its_job():
    job = RunningJob()
    job.lose("b", 5.0)
    job.create("b2", replicas=3, whole=2)
    job.run("b2")
    job.tick(5.0 + 2 * BROKEN_S)
    assert job.events() == []
    assert job.scheduling.jobs.states() == {JobState.RUNNING: 1}


def test_a_job_whose_lost_pod_is_planned_in_vain_is_broken_all_the_while():
    """A plan for the pod that comes again holds for seconds, and may be made again and again."""
    job = evicting()
    job.lose("b", 5.0)
    job.create("b2", replicas=3, whole=2)
    assert job.scheduling.jobs.states() == {JobState.PLANNED: 1}
    job.tick(5.0 + EVICT_S)
    assert job.scheduling.jobs.states() == {JobState.BROKEN: 1}
    assert ("a", "JobBroken") in job.events()
    assert sorted(job.evictions()) == ["a", "c"]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["there", "deleted"])
def test_pods_that_succeed_break_no_job(is_deleted):
    job = evicting()
    job.end("b", 5.0, "Succeeded")
    if is_deleted:
        job.lose("b", 6.0)
    job.tick(5.0 + 2 * EVICT_S)
    assert job.events() == []
    assert job.evictions() == []
    assert job.scheduling.jobs.states() == {JobState.RUNNING: 1}


def test_a_pod_that_fails_beside_one_that_has_succeeded_breaks_its_job():
    job = evicting()
    job.end("b", 5.0, "Succeeded")
    job.lose("b", 6.0)
    job.end("c", 10.0, "Failed")
    job.tick(10.0 + EVICT_S)
    assert job.evictions() == ["a"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pod_that_was_deleted_and_exits_with_0_is_lost(is_gone):
    """Training that is evicted saves its state and exits, so that kubelet says it has succeeded."""
    job = evicting()
    job.terminate("b", 5.0)
    job.end("b", 8.0, "Succeeded")
    job.terminate("b", 8.0)
    if is_gone:
        job.lose("b", 9.0)
    job.tick(5.0 + BROKEN_S)
    assert job.events() == [("a", "JobBroken")]
    job.tick(5.0 + EVICT_S)
    assert job.evictions() == ["a", "c"]


def test_a_job_of_kubernetes_counts_a_pod_that_was_deleted_and_exits_with_0():
    """It makes no other pod, so the others would wait for ever if they were made again."""
    job = RunningJob(limits=JobLimits(evict_broken_s=EVICT_S), kind="Job", owner="o")
    job.terminate("b", 5.0)
    job.end("b", 8.0, "Succeeded")
    job.lose("b", 9.0)
    job.tick(5.0 + 2 * EVICT_S)
    assert job.events() == []
    assert job.evictions() == []


def test_pods_that_come_again_do_not_start_alone_beside_those_that_were_deleted_and_exit_with_0():
    job = RunningJob(owner="o")
    for name in NAMES:
        job.terminate(name, 5.0)
        job.end(name, 8.0, "Succeeded")
    job.lose("a", 9.0)
    job.create("a2", replicas=3, whole=2, owner="o")
    assert not job.filter("a2").nodes
    assert job.reserved() == 0
    for name in ("b", "c"):
        job.lose(name, 10.0)
        job.create(f"{name}2", replicas=3, whole=2, owner="o")
    job.run("a2", "b2", "c2")


# -- the others are evicted --------------------------------------------------------------------------------------------


def test_nothing_is_evicted_by_default():
    job = RunningJob()
    job.lose("b", 5.0)
    job.tick(100_000.0)
    assert job.evictions() == []


def test_the_others_of_a_broken_job_are_evicted_after_a_time():
    job = evicting()
    job.lose("b", 5.0)
    job.tick(5.0 + EVICT_S - 1)
    assert job.evictions() == []
    job.tick(5.0 + EVICT_S)
    assert sorted(action.pod for action in job.done if isinstance(action, Evict)) == [
        PodName("default", "a"),
        PodName("default", "c"),
    ]
    for action in job.take(Evict):
        assert action.reason == "job j has lacked 1 of its 3 pods for 300 s or longer"
        assert job.scheduling.jobs.wants_evicted(action)
        job.answer(action, EvictOutcome.EVICTED)
        job.lose(action.uid, job.now)
    assert [event for event in job.events() if event[1] == "JobEvicted"] == [("a", "JobEvicted"), ("c", "JobEvicted")]
    job.tick(100_000.0)
    assert job.evictions() == []


def test_evicted_pods_that_come_again_start_as_a_whole():
    job = evicting()
    job.lose("b", 5.0)
    job.tick(5.0 + EVICT_S)
    for action in job.take(Evict):
        job.answer(action, EvictOutcome.EVICTED)
        job.terminate(action.uid, job.now)
    for name in ("a2", "c2"):
        job.create(name, replicas=3, whole=2)
        assert job.filter(name).nodes == ()
    job.create("b2", replicas=3, whole=2)
    assert len(job.run("a2", "b2", "c2")) == 3
    assert job.scheduling.jobs.states() == {JobState.RUNNING: 1}


def test_a_job_that_is_whole_again_is_left_alone():
    job = evicting()
    job.lose("b", 5.0)
    job.create("b2", replicas=3, whole=2)
    job.run("b2")
    job.tick(100_000.0)
    assert job.evictions() == []


def test_a_job_that_becomes_whole_while_a_budget_forbids_the_eviction_is_left_alone():
    job = evicting()
    job.lose("b", 5.0)
    job.tick(5.0 + EVICT_S)
    actions = job.take(Evict)
    for action in actions:
        job.answer(action, EvictOutcome.LATER, BUDGET)
    job.create("b2", replicas=3, whole=2)
    assert not any(map(job.scheduling.jobs.wants_evicted, actions)), "the pod that comes again is planned"
    job.run("b2")
    assert not any(map(job.scheduling.jobs.wants_evicted, actions))
    job.tick(100_000.0)
    assert job.evictions() == []


def test_what_a_budget_forbids_is_said_once_and_tried_again_ever_less_often():
    job = evicting()
    job.lose("b", 0.0)
    tried = []
    for now in range(int(EVICT_S), 3600):
        job.tick(float(now))
        for action in job.take(Evict):
            if action.pod.name == "a":
                tried.append(now - EVICT_S)
            job.answer(action, EvictOutcome.LATER, BUDGET)
    assert tried[:4] == [0.0, RETRY_FIRST_S, 3 * RETRY_FIRST_S, 7 * RETRY_FIRST_S]
    pauses = [later - earlier for earlier, later in zip(tried, tried[1:], strict=False)]
    assert max(pauses) == pauses[-1] == RETRY_LIMIT_S
    reports = [report for report in job.take(Report) if report.reason == "EvictionBlocked"]
    assert sorted(report.pod.name for report in reports) == ["a", "c"]
    text = (
        "Job j has lacked 1 of its 3 pods for 300 s or longer. But this pod cannot be evicted now, and is tried again"
    )
    assert {report.message for report in reports} == {f"{text}: {BUDGET}"}


def test_a_scheduler_that_does_not_lead_asks_again_and_says_nothing():
    job = evicting()
    job.lose("b", 0.0)
    for turn in range(100):
        job.tick(EVICT_S + turn * RETRY_FIRST_S)
        actions = job.take(Evict)
        assert len(actions) == 2
        for action in actions:
            job.answer(action, EvictOutcome.LATER)
    assert "EvictionBlocked" not in {reason for _, reason in job.events()}


@pytest.mark.parametrize("outcome", list(EvictOutcome))
def test_an_answer_about_a_job_that_is_gone_is_taken(outcome):
    job = evicting()
    job.lose("b", 0.0)
    job.tick(EVICT_S)
    actions = job.take(Evict)
    for action in actions:
        job.lose(action.uid, job.now)
    for action in actions:
        assert not job.scheduling.jobs.wants_evicted(action)
        job.answer(action, outcome, "why")
    job.tick(100_000.0)
    assert job.evictions() == []


def test_each_pod_that_comes_again_gives_the_job_its_time_anew():
    """The controller may be replacing one pod after the other."""
    job = evicting()
    job.lose("b", 0.0)
    job.lose("c", 0.0)
    job.now = EVICT_S - 1
    job.create("b2", replicas=3, whole=2)
    job.run("b2")
    job.tick(2 * EVICT_S - 2)
    assert job.evictions() == []
    job.tick(2 * EVICT_S - 1)
    assert sorted(job.evictions()) == ["a", "b2"]


def test_pods_without_gpus_are_evicted_first():
    """Without its last pod with GPUs, the job no longer counts as started."""
    job = JobUnderTest(whole_node("n1", gpus=8), limits=JobLimits(evict_broken_s=EVICT_S))
    job.create("z-launcher", replicas=3)
    for name in ("a", "b"):
        job.create(name, replicas=3, whole=2)
    job.run("a", "b")
    job.pods["z-launcher"]["spec"]["nodeName"] = "n1"
    job.scheduling.pod_seen(pod_facts(job.pods["z-launcher"]), 0.0)
    job.scheduling.pod_gone("b", 0.0)
    job.now = EVICT_S
    job.scheduling.tick(job.now)
    job.act()
    assert [action.pod.name for action in job.done if isinstance(action, Evict)] == ["z-launcher", "a"]


# -- jobs that are not this scheduler's to judge -----------------------------------------------------------------------


def test_a_job_above_its_minimum_may_lose_pods():
    job = evicting(replicas=2, names=("a", "b"))
    job.create("c", replicas=2, whole=2)
    job.run("c")
    job.lose("b", 5.0)
    job.tick(100_000.0)
    assert job.evictions() == []
    job.lose("c", 100_000.0)
    job.tick(100_000.0 + EVICT_S)
    assert job.evictions() == ["a"]


def test_a_job_that_another_scheduler_started_is_left_alone():
    job = JobUnderTest(whole_node("n1", gpus=8), limits=JobLimits(evict_broken_s=EVICT_S))
    for name in ("a", "b"):
        job.create(name, replicas=3, whole=2, on="n1", asked=False)
    job.now = 100_000.0
    job.scheduling.tick(job.now)
    job.act()
    assert not [action for action in job.done if isinstance(action, Evict)]


def test_a_job_whose_pods_name_different_numbers_was_scaled_and_is_left_alone():
    job = evicting()
    job.create("d", replicas=4, whole=2)
    job.run("d")
    for name in ("b", "c"):
        job.lose(name, 5.0)
    job.tick(100_000.0)
    assert job.evictions() == []


def test_what_was_lost_while_no_scheduler_ran_is_said_and_nothing_is_evicted_for_it():
    """The pod may have succeeded, and been deleted since."""
    job = evicting()
    job.pods.pop("b")
    job.start()
    job.tick(100_000.0)
    assert [reason for _, reason in job.events()] == ["JobBroken"]
    assert job.evictions() == []
    job.lose("c", 100_000.0)
    job.tick(100_000.0 + EVICT_S)
    assert job.evictions() == ["a"]


def test_a_scheduler_that_began_later_evicts_for_what_it_saw_to_be_lost():
    job = evicting()
    job.start()
    job.lose("b", 5.0)
    job.tick(5.0 + EVICT_S)
    assert sorted(job.evictions()) == ["a", "c"]
