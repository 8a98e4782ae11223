"""Plans that lapse hold GPUs for nothing. They count against the namespace, and not against others."""

import pytest

from gpuscheduler.core.jobs.job import RETRY_LIMIT_S
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest


class Tenants(JobUnderTest):
    """Two nodes, and jobs of two pods that need both, in several namespaces."""

    def __init__(self):
        super().__init__(whole_node("n1", gpus=8), whole_node("n2", gpus=8))

    def job(self, name, namespace, whole=8):
        for number in range(2):
            self.create(f"{name}-{number}", job=name, whole=whole, namespace=namespace)

    def ask(self, name):
        return [bool(self.filter(f"{name}-{number}").nodes) for number in range(2)]

    def delete(self, name):
        for number in range(2):
            pod = f"{name}-{number}"
            del self.pods[pod]
            self.scheduling.pod_gone(pod, self.now)
        self.act()

    def at(self, now):
        self.now = now
        while (due := self.scheduling.next_due(now)) is not None and due <= now:
            self.scheduling.tick(now)
            self.act()


@pytest.mark.parametrize("lives_s", [5, 20], ids=["deleted before its plan lapses", "deleted after it"])
def test_jobs_that_never_come_hold_gpus_for_a_small_part_of_the_time(lives_s):
    """Each of them is new, so that none was delayed before. kube-scheduler asks about both pods, and binds none."""
    cluster = Tenants()
    held_s = 0
    for second in range(1200):
        cluster.at(float(second))
        turn, age = divmod(second, lives_s + 1)
        if age == 0:
            if turn:
                cluster.delete(f"j{turn - 1}")
            cluster.job(f"j{turn}", "spammer")
        cluster.ask(f"j{turn}")
        held_s += bool(cluster.reserved())
    assert held_s < 0.3 * 1200


def test_jobs_of_other_namespaces_are_planned_at_once():
    cluster = Tenants()
    for turn in range(8):
        cluster.job(f"j{turn}", "spammer")
        cluster.at(cluster.now + BARRIER_S + RETRY_LIMIT_S)
        cluster.delete(f"j{turn}")
        cluster.at(cluster.now)
    cluster.job("good", "other")
    assert cluster.ask("good") == [True, True]


def test_plans_that_were_made_at_one_time_count_once():
    """For example, kube-scheduler starts again."""
    cluster = Tenants()
    for name in ("a", "b", "c", "d"):
        cluster.job(name, "team", whole=2)
    assert cluster.reserved() == 8
    cluster.at(BARRIER_S)
    assert cluster.reserved() == 0
    cluster.at(BARRIER_S + 1)
    for name in ("a", "b", "c", "d"):
        # The first pod is refused until kube-scheduler has asked about the last one.
        cluster.ask(name)
        assert cluster.ask(name) == [True, True]


def test_a_job_that_waits_for_the_pause_of_its_namespace_says_so():
    cluster = Tenants()
    cluster.job("bad", "team")
    cluster.at(BARRIER_S)
    cluster.job("good", "team")
    answer = cluster.filter("good-1")
    why = "pods of its namespace did not come to their GPUs, and it is planned within 60 s"
    assert set(answer.unresolvable.values()) == {f"node(s) not given to job good: {why}"}
    cluster.at(BARRIER_S + 1)
    cluster.delete("bad")
    assert cluster.ask("good") == [True, True]


def test_pods_that_were_bound_do_not_count():
    cluster = Tenants()
    for turn in range(4):
        cluster.job(f"j{turn}", "team")
        assert cluster.ask(f"j{turn}") == [True, True]
        cluster.run(f"j{turn}-0", f"j{turn}-1")
        cluster.delete(f"j{turn}")
