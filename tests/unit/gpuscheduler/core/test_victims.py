"""Which pods have to go for one that waits: of lower priority, by GPU, the fewest and the youngest."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gpu_request import WHOLE, Amounts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.single_pods.victims import alone, victims
from tests.unit.gpuscheduler.core.api_objects import container, pod, pod_object, shared_node, whole_node

MORNING, NOON = "2026-01-01T06:00:00Z", "2026-01-01T12:00:00Z"


def bound(uid, units, **given):
    return pod(uid, uid=uid, mem=units, on="n1", **given)


def chosen(wanted, *on, priority=5, proposed=(), ending=alone):
    """UIDs of the victims on a node with two GPUs of 10; `on` are pods, each with the number of its GPU."""
    node = NodeUsage(shared_node("n1"))
    for user, minor in on:
        node.use(user.uid, ((minor, Amounts(user.request.need.memory, 0)),))
    pods = {user.uid: user for user, _ in on}
    return victims(pod(mem=wanted, priority=priority), node, pods, proposed, ending)


@pytest.mark.parametrize(("priority", "expected"), [(4, {"a"}), (5, None), (6, None)])
def test_only_pods_of_lower_priority_go(priority, expected):
    assert chosen(8, (bound("a", 6, priority=priority), 0), (bound("b", 6, priority=9), 1)) == expected


def test_a_pod_that_is_being_deleted_is_no_victim():
    made = pod_object("a", uid="a", mem=6, on="n1")
    made["metadata"]["deletionTimestamp"] = NOON
    assert chosen(8, (pod_facts(made), 0), (bound("b", 6, priority=9), 1)) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([("a", 6, {"priority": 2})], [("b", 3, {"priority": 1}), ("c", 3, {"priority": 1})]),
        ([("a", 3, {}), ("b", 3, {})], [("c", 6, {})]),
        ([("a", 6, {"created": MORNING})], [("b", 6, {"created": NOON})]),
        ([("a", 6, {"created": "?"})], [("b", 6, {"created": MORNING})]),
    ],
    ids=["lower priority", "fewer", "younger", "a time that is known"],
)
@pytest.mark.parametrize("minors", [(0, 1), (1, 0)])
def test_the_pods_of_the_second_gpu_go(first, second, minors):
    on = [
        (bound(uid, units, **given), minor)
        for minor, users in zip(minors, (first, second), strict=True)
        for uid, units, given in users
    ]
    expected = {uid for uid, _, _ in second}
    assert chosen(9, *on) == expected


def test_of_one_gpu_the_lower_priority_goes_and_then_the_youngest():
    full = (bound("full", 10, priority=9), 1)
    low, high = ((bound(uid, 5, priority=priority), 0) for uid, priority in (("a-low", 1), ("b-high", 2)))
    assert chosen(5, full, high, low) == chosen(5, full, low, high) == {"a-low"}
    old, young = ((bound(uid, 5, created=created), 0) for uid, created in (("b-old", MORNING), ("a-young", NOON)))
    assert chosen(5, full, old, young) == chosen(5, full, young, old) == {"a-young"}


@pytest.mark.parametrize(
    "asked",
    [
        pod_object(mem=16, gpu_count=2, priority=5),
        pod_object(None, container("a", mem=8), container("b", mem=8), priority=5),
    ],
    ids=["over two GPUs", "two containers"],
)
def test_a_pod_that_needs_two_gpus_gets_victims_of_both(asked):
    node = NodeUsage(shared_node("n1"))
    pods = {uid: bound(uid, 6) for uid in ("a", "b")}
    for minor, uid in enumerate(pods):
        node.use(uid, ((minor, Amounts(6, 0)),))
    assert victims(pod_facts(asked), node, pods) == {"a", "b"}


def test_a_pod_that_needs_two_whole_gpus_gets_victims_of_both():
    node = NodeUsage(whole_node("n1", 2))
    pods = {uid: pod(uid, uid=uid, whole=1, on="n1") for uid in ("a", "b")}
    for minor, uid in enumerate(pods):
        node.use(uid, ((minor, WHOLE),))
    assert victims(pod(whole=2, priority=5), node, pods) == {"a", "b"}
    assert victims(pod(whole=1, priority=5), node, pods) in ({"a"}, {"b"})


def test_what_is_proposed_goes_where_it_is_enough():
    on = [(bound(uid, 5), minor) for uid, minor in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
    assert chosen(10, *on, proposed=["a", "b"]) == {"a", "b"}
    assert chosen(10, *on, proposed=["a"]) in ({"a", "b"}, {"c", "d"})


def test_a_job_counts_once_with_all_of_its_pods_and_equal_names_are_two_jobs():
    job = {"labels": {JOB_LABEL: "j", REPLICAS_LABEL: "2"}}

    def on_first(*namespaces):
        return [(bound(f"m{n}", 3, namespace=name, **job), 0) for n, name in enumerate(namespaces)]

    singles = [(bound(uid, 2), 1) for uid in ("s1", "s2", "s3")]

    def ending(user, evicted):
        return 2 if user.job else evicted

    assert chosen(10, *on_first("one", "one"), *singles, ending=ending) == {"m0", "m1"}
    assert chosen(10, *on_first("one", "two"), *singles, ending=ending) == {"s1", "s2", "s3"}
