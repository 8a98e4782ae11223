"""Kubernetes' own pod groups: kube-scheduler waits only after an error."""

import pytest

from gpuscheduler.core.gangs.native_pod_group import read_native_pod_group
from gpuscheduler.core.single_pods.single_pods import TRIAL_S
from gpuscheduler.core.waiting.group_cycles import AGAIN, AT_ONCE_S
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.gangs.test_gang_objects import GangUnderTest
from tests.unit.gpuscheduler.core.gangs.workloads import native_pod_group

GANG = {"gang": {"minCount": 2}}
WAITS = "node(s) not given to PodGroup pg: its 2 pods do not fit together"


@pytest.fixture
def cluster():
    return GangUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def members(cluster, policy, *names, whole=4):
    cluster.show(read_native_pod_group(native_pod_group(policy)))
    for name in names:
        made = pod_object(name, uid=name, whole=whole)
        made["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
        cluster.see(made)


def test_a_gang_that_waits_gets_an_error_at_once_and_holds_nothing(cluster):
    cluster.create("other", job=None, whole=4)
    cluster.run("other")
    members(cluster, GANG, "a", "b")
    for _ in range(3):
        answer = cluster.filter("a")
        assert answer.error.startswith(WAITS)
        assert not answer.unresolvable
    assert cluster.reserved() == 0


def test_a_gang_that_fits_starts(cluster):
    members(cluster, GANG, "a", "b")
    assert len(cluster.run("a", "b")) == 2


def test_a_gang_that_kube_scheduler_refuses_itself_is_not_tried_without_a_pause(cluster):
    members(cluster, GANG, "a", "b")
    assert cluster.filter("a").nodes
    assert cluster.filter("a").error == AGAIN
    cluster.now += AT_ONCE_S
    assert cluster.filter("a").nodes


def test_pods_of_a_group_that_start_alone_get_an_error_only_if_they_are_asked_about_at_once(cluster):
    members(cluster, {"basic": {}}, "a", "b", "c")
    cluster.run("a")
    cluster.run("b")
    assert not cluster.filter("c").error
    assert cluster.filter("c").error
    cluster.now += AT_ONCE_S
    assert not cluster.filter("c").error


def test_a_trial_placement_of_a_pod_that_starts_alone_is_held_for_a_short_time(cluster):
    """kube-scheduler does not say that it dropped it."""
    members(cluster, {"basic": {}}, "a")
    assert cluster.filter("a").nodes
    assert cluster.reserved() == 1
    cluster.now += TRIAL_S
    cluster.scheduling.tick(cluster.now)
    assert cluster.reserved() == 0
    assert cluster.filter("a").nodes


def test_a_binding_after_that_time_is_still_made_if_the_gpus_are_free(cluster):
    members(cluster, {"basic": {}}, "a")
    (node,) = cluster.filter("a").nodes
    cluster.now += TRIAL_S
    cluster.scheduling.tick(cluster.now)
    cluster.write("a", cluster.bind("a", node))


def test_a_pod_that_is_added_to_a_running_gang_does_not_end_the_cycle_of_others(cluster):
    members(cluster, GANG, "a", "b")
    cluster.run("a", "b")
    members(cluster, GANG, "c")
    assert not cluster.filter("c").error
    assert cluster.filter("c").error


def test_other_pods_get_no_error(cluster):
    cluster.create("a", whole=8)
    for _ in range(2):
        assert not cluster.filter("a").error


def test_nothing_is_kept_of_pods_that_are_bound_or_gone(cluster):
    members(cluster, GANG, "a", "b")
    cluster.run("a", "b")
    members(cluster, GANG, "c")
    cluster.filter("c")
    cluster.scheduling.pod_gone("c", cluster.now)
    kept = vars(cluster.scheduling)["_group_cycles"]
    assert not vars(kept)["_asked_at"]
