"""Pods that are being deleted make room without an eviction, so a job that waits has no others evicted meanwhile."""

import pytest

from gpuscheduler.core.jobs.priority.endings import ENDING_S
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.test_precedence import half_full_cluster, kept, waiting_job


@pytest.fixture
def cluster():
    return half_full_cluster()


def is_being_deleted(cluster, name):
    """As after an eviction, for as long as the grace period of the pod."""
    cluster.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    cluster.scheduling.pod_seen(pod_facts(cluster.pods[name]), cluster.now)
    cluster.act()


def evicted(cluster, name, *numbers):
    """Node name to the pods that kube-scheduler evicts for a pod, where it could on these nodes."""
    proposed = {f"n{number}": [f"r{number}"] for number in numbers}
    return cluster.scheduling.preempt(pod_facts(cluster.pods[name]), proposed, cluster.now)


def two_are_evicted_for_a_job(cluster):
    """For a job of two pods that each want a whole node. The first victim has ended, the second one has not."""
    waiting_job(cluster, priority=1000)
    is_being_deleted(cluster, "r0")
    is_being_deleted(cluster, "r1")
    cluster.ends("r0")


def test_no_more_pods_are_evicted_than_a_job_needs_if_they_end_one_after_another(cluster):
    two_are_evicted_for_a_job(cluster)
    assert not cluster.filter("a", ["n0"]).nodes, "the job does not fit yet"
    assert evicted(cluster, "a", 2) == {}
    cluster.ends("r1")
    assert {write.node for write in cluster.run("a", "b").values()} == {"n0", "n1"}


def test_room_beside_other_pods_counts_with_that_of_pods_that_end(cluster):
    """kube-scheduler would evict nothing on the node that has room, and so does not propose it."""
    cluster.create("a", whole=4, priority=1000)
    cluster.create("b", whole=2, priority=1000)
    is_being_deleted(cluster, "r1")
    assert evicted(cluster, "b", 2) == {}


def test_pods_are_evicted_beside_those_that_end_if_these_are_not_enough(cluster):
    waiting_job(cluster, priority=1000)
    is_being_deleted(cluster, "r2")
    assert evicted(cluster, "a", 0) == {"n0": ["r0"]}
    assert evicted(cluster, "a", 0, 1, 2).keys() < {"n0", "n1", "n2"}, "one node has its room already"


def test_a_pod_that_ends_for_its_author_is_not_evicted_in_vain(cluster):
    waiting_job(cluster, priority=1000)
    is_being_deleted(cluster, "r1")
    is_being_deleted(cluster, "r2")
    assert evicted(cluster, "a", 0) == {}
    cluster.create("c", job=None, asked=False, whole=4, priority=1000)
    assert evicted(cluster, "c", 0) == {"n0": ["r0"]}, "a pod of no job is kube-scheduler's own matter"


def test_pods_are_evicted_elsewhere_for_one_that_hangs(cluster):
    """A GPU that hangs keeps its pod from ending for ever."""
    two_are_evicted_for_a_job(cluster)
    cluster.at(cluster.now + ENDING_S)
    assert evicted(cluster, "a", 2) == {"n2": ["r2"]}


def test_nodes_are_kept_where_pods_end_anyway(cluster):
    is_being_deleted(cluster, "r2")
    waiting_job(cluster, priority=1000)
    assert "n2" in kept(cluster)


def test_nodes_with_a_pod_that_hangs_are_not_kept(cluster):
    is_being_deleted(cluster, "r0")
    cluster.at(ENDING_S)
    waiting_job(cluster, priority=1000)
    assert kept(cluster) == {"n1", "n2"}
