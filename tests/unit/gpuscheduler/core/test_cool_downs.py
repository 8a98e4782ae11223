"""What a tenant's pods have to wait for delays no pod of another tenant, also if its names are equal.

Owner references are the tenant's to write. So in these tests, the owners have one UID in both namespaces.
"""

import pytest

from gpuscheduler.core.calls import Nudge, Report
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.single_pods.fragmentation import ADVISE_AGAIN_S
from gpuscheduler.core.waiting.cool_downs import FIRST_COOL_DOWN_S, LONGEST_COOL_DOWN_S, CoolDowns
from gpuscheduler.core.waiting.hidden_reasons import KEPT_S
from gpuscheduler.core.waiting.wake_ups import CHECK_S, FIRST_S
from tests.unit.gpuscheduler.core.api_objects import pod, pod_object, shared_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster

NAMESPACES = ("one", "two")


def waiting(namespace, **given):
    """A pod with the same name and the same owner in each namespace."""
    return pod("p", namespace=namespace, owner="o", **({"mem": 6, "uid": f"{namespace}-p"} | given))


def short_of_units(namespace):
    """The same after kube-scheduler compared it with the node's total."""
    made = pod_object("p", namespace=namespace, uid=f"{namespace}-p", owner="o", mem=6)
    message = "Insufficient aliyun.com/gpu-mem"
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    return pod_facts(made)


def refuse(scheduling, node, namespace):
    """The node's agent refuses a pod of the same owner."""
    for phase in ("Pending", "Failed"):
        scheduling.pod_seen(waiting(namespace, uid=f"{namespace}-refused", on=node, phase=phase), 0.0)


def full_cluster():
    """One node, all of which one pod has."""
    scheduling = cluster(shared_node("n1", gpus=1))
    scheduling.pod_seen(pod("full", uid="full", mem=10, on="n1"), 0.0)
    return scheduling


def nudged(scheduling):
    return [action.uid for action in scheduling.actions() if isinstance(action, Nudge)]


def reported(scheduling, reason):
    actions = scheduling.actions()
    return [action.uid for action in actions if isinstance(action, Report) and action.reason == reason]


@pytest.mark.parametrize("first", NAMESPACES)
def test_a_node_that_refused_a_pod_wakes_the_pods_of_other_namespaces(first):
    scheduling = full_cluster()
    for namespace in sorted(NAMESPACES, key=lambda name: name != first):
        scheduling.pod_seen(waiting(namespace), 0.0)
        assert not scheduling.filter(waiting(namespace), ["n1"], 0.0).nodes
    refuse(scheduling, "n1", "one")
    scheduling.actions()
    scheduling.pod_gone("full", 1.0)
    at = max(FIRST_S, CHECK_S)
    scheduling.tick(at)
    assert nudged(scheduling) == ["two-p"]
    assert not scheduling.filter(waiting("one"), ["n1"], at).nodes
    assert scheduling.filter(waiting("two"), ["n1"], at).nodes == ("n1",)
    scheduling.pod_gone("two-p", at)
    scheduling.tick(FIRST_COOL_DOWN_S)
    assert nudged(scheduling) == ["one-p"]


@pytest.mark.parametrize("phase", ["Succeeded", "Refused before"])
def test_only_a_refusal_that_was_seen_lets_a_node_rest(phase):
    """After a restart, the refusals of before are no news."""
    scheduling = cluster(shared_node("n1"))
    if phase == "Succeeded":
        scheduling.pod_seen(waiting("one", uid="done", on="n1"), 0.0)
    scheduling.pod_seen(waiting("one", uid="done", on="n1", phase=phase.replace("Refused before", "Failed")), 0.0)
    assert not scheduling.refusals
    assert scheduling.filter(waiting("one"), ["n1"], 0.0).nodes == ("n1",)


def test_cores_of_a_pod_that_is_gone_are_free():
    made = pod_object("p", uid="u", mem=1, on="n1")
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "3"}
    scheduling = cluster(shared_node("n1"))
    scheduling.pod_seen(pod_facts(made), 0.0)
    assert scheduling.usage.nodes["n1"].used.cpu == 3000
    scheduling.pod_gone("u", 0.0)
    assert scheduling.usage.nodes["n1"].used.cpu == 0


def test_the_pods_of_each_namespace_hear_that_the_free_units_are_fragmented():
    scheduling = cluster(shared_node("n1"))
    for minor in (0, 1):
        used = {"scheduler.framework.gpushare.allocation": f'{{"0":{{"{minor}":6}}}}'}
        scheduling.pod_seen(pod(mem=6, on="n1", annotations=used), 0.0)
    for now, expected in ((0.0, True), (ADVISE_AGAIN_S - 1, False), (ADVISE_AGAIN_S, True)):
        for namespace in NAMESPACES:
            scheduling.filter(waiting(namespace), ["n1"], now)
            assert reported(scheduling, "GPUsFragmented") == [f"{namespace}-p"] * expected, now


def test_a_reason_is_not_that_of_a_pod_that_passes_over_other_nodes():
    scheduling = cluster(shared_node("n1", gpus=1))
    refuse(scheduling, "n1", "one")
    for namespace in NAMESPACES:
        scheduling.actions()
        scheduling.pod_seen(short_of_units(namespace), KEPT_S / 2)
        assert reported(scheduling, "WaitingForGPUs") == ["one-p"] * (namespace == "one")


def test_each_refusal_doubles_the_rest_up_to_a_limit_and_a_quiet_time_ends_that():
    cool_downs = CoolDowns()
    of_one, of_two = (waiting(namespace, on="n1") for namespace in NAMESPACES)
    now, lengths = 0.0, []
    for _ in range(7):
        lengths.append(cool_downs.refused(of_one, now))
        assert cool_downs.next_end() == now + lengths[-1]
        assert cool_downs.of(of_one, now + lengths[-1] - 0.1) == {"n1"}
        assert cool_downs.of(of_one, now + lengths[-1]) == cool_downs.of(of_two, now) == frozenset()
        now += lengths[-1]
        assert [cool_downs.end(now), cool_downs.end(now)] == [1, 0]
        assert cool_downs.next_end() is None
    assert lengths == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert cool_downs.refused(of_two, now) == FIRST_COOL_DOWN_S
    cool_downs.end(now + LONGEST_COOL_DOWN_S - 0.1)
    assert cool_downs.refused(of_one, now + LONGEST_COOL_DOWN_S - 0.1) == LONGEST_COOL_DOWN_S
    cool_downs.end(now + 3 * LONGEST_COOL_DOWN_S)
    assert cool_downs.refused(of_one, now + 3 * LONGEST_COOL_DOWN_S) == FIRST_COOL_DOWN_S


def test_a_node_that_changed_is_used_again_by_all_and_no_other_node_is():
    cool_downs = CoolDowns()
    for namespace in NAMESPACES:
        for node in ("n1", "n2"):
            cool_downs.refused(waiting(namespace, on=node), 0.0)
    cool_downs.node_changed("n1")
    assert [cool_downs.of(waiting(namespace), 0.0) for namespace in NAMESPACES] == [{"n2"}, {"n2"}]
    cool_downs.end(0.0)
    assert cool_downs.refused(waiting("one", on="n1"), 0.0) == FIRST_COOL_DOWN_S


def test_a_pod_goes_to_the_next_node_where_the_best_one_rests():
    scheduling = cluster(shared_node("n1", gpus=1), shared_node("n2", gpus=2))
    refuse(scheduling, "n1", "one")
    assert scheduling.filter(waiting("two"), ["n1", "n2"], 0.0).nodes == ("n1",)
    assert scheduling.filter(waiting("one"), ["n1", "n2"], 0.0).nodes == ("n2",)
