"""Nodes are kept also for a job about which kube-scheduler does not ask, because no node has as much free in all.

Nothing happens to such a job: it is not planned, and its pods do not change.
"""

import pytest

from gpuscheduler.core.jobs.priority.precedence import NODES_AGAIN_S
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.test_precedence import LATER, PATIENCE_S, SHORT, half_full_cluster, kept, unasked_job


@pytest.fixture
def cluster():
    """With an operator's patience."""
    made = half_full_cluster()
    made.scheduling.jobs.precedence.patience_s = PATIENCE_S
    return made


def second_unasked_job(cluster, **given):
    for name in ("c", "d"):
        made = cluster.create(name, job="k", whole=4, asked=False, created=LATER, **given)
        made["status"]["conditions"] = SHORT
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.at(cluster.now)


def keeper(cluster):
    """The first job that keeps nodes; empty if there is none."""
    claim = cluster.scheduling.jobs.precedence.claim
    return claim.key.name if claim else ""


def test_a_job_that_has_waited_for_too_long_keeps_its_nodes_from_later_pods(cluster):
    unasked_job(cluster)
    cluster.at(PATIENCE_S - 1)
    assert not kept(cluster)
    cluster.at(PATIENCE_S)
    assert len(kept(cluster)) == 2


def test_it_keeps_them_again_after_each_pause(cluster):
    unasked_job(cluster)
    kept_at = []
    for minute in range(10, 160, 5):
        cluster.at(minute * 60.0)
        if kept(cluster):
            kept_at.append(minute)
    assert kept_at == [*range(10, 20, 5), *range(40, 60, 5), *range(100, 140, 5)]


def test_a_job_of_high_priority_keeps_its_nodes_however_long_it_waits(cluster):
    unasked_job(cluster, priority=1000)
    for minute in range(0, 160, 5):
        cluster.at(minute * 60.0)
        assert kept(cluster), minute


def test_the_next_job_has_its_turn_while_the_first_pauses(cluster):
    unasked_job(cluster)
    cluster.at(PATIENCE_S)
    assert keeper(cluster) == "j"
    cluster.at(PATIENCE_S * 1.9)
    second_unasked_job(cluster)
    cluster.at(PATIENCE_S * 2)
    cluster.at(PATIENCE_S * 2.95)
    assert not kept(cluster), "other pods have their turn first"
    cluster.at(PATIENCE_S * 3)
    assert keeper(cluster) == "k"


def test_a_job_gets_the_nodes_of_one_before_it_that_is_deleted(cluster):
    unasked_job(cluster, priority=1000)
    second_unasked_job(cluster, priority=900)
    assert keeper(cluster) == "j"
    assert len(cluster.scheduling.jobs.precedence.claims) == 1, "the third node is of no use for the second job"
    cluster.ends("a")
    cluster.ends("b")
    cluster.at(cluster.now + 1)
    assert keeper(cluster) == "k"


def test_nodes_are_chosen_when_pods_of_a_higher_priority_have_ended(cluster):
    for number in range(2):
        name = f"urgent{number}"
        cluster.create(name, job=None, asked=False, whole=1, priority=5000)
        assert cluster.filter(name, [f"n{number}"]).nodes
        cluster.write(name, cluster.bind(name, f"n{number}"))
    unasked_job(cluster, priority=1000)
    assert not kept(cluster)
    cluster.at(cluster.now + 2 * NODES_AGAIN_S)
    cluster.ends("urgent0")
    cluster.at(cluster.now + 1)
    assert kept(cluster) == {"n0", "n2"}
