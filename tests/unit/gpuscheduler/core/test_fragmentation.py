"""Enough is free in all, and no GPU has enough: the pod hears what would help, and a number shows how much it is."""

import pytest

from gpuscheduler.core.calls import Report
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.single_pods.fragmentation import ADVISE_AGAIN_S, HOUR_S
from tests.unit.gpuscheduler.core.api_objects import pod, pod_object, shared_node, whole_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster, place

BOTH = ("n1", "n2")
GIB = 2**30


def halves(**given):
    """Two nodes with two GPUs of 10 each; a pod has 6 on each GPU."""
    scheduling = cluster(shared_node("n1", **given), shared_node("n2", **given))
    for n in range(4):
        place(scheduling, pod_object(f"half-{n}", mem=6))
    return scheduling


def warnings(scheduling):
    return [one for one in scheduling.actions() if isinstance(one, Report)]


def test_a_pod_reports_how_much_is_free_and_which_pod_is_in_its_way():
    scheduling = halves()
    assert not scheduling.filter(pod(mem=8), BOTH, 0.0).nodes
    (warning,) = warnings(scheduling)
    assert warning.reason == "GPUsFragmented"
    assert warning.message.startswith(
        "8 GiB wanted on one GPU: 16 GiB are free on 4 GPUs of 2 nodes, "
        "at most 4 GiB on one. The pod fits on node n2 without default/half-"
    )
    for uid in [uid for uid, one in scheduling.pods.items() if str(one.name) in warning.message]:
        scheduling.pod_gone(uid, 1.0)
    assert scheduling.filter(pod(mem=8), BOTH, 1.0).nodes == ("n2",)


@pytest.mark.parametrize(
    ("own", "others", "words"),
    [
        (1, 0, "default/p0"),
        (3, 0, "default/p0, default/p1 and default/p2"),
        (5, 0, "default/p0, default/p1, default/p2 and 2 more"),
        (1, 1, "default/p0 and 1 pod of other namespaces"),
        (4, 2, "default/p0, default/p1, default/p2, 1 more and 2 pods of other namespaces"),
        (0, 3, "3 pods of other namespaces"),
    ],
)
def test_the_event_names_no_pod_of_another_namespace(own, others, words):
    """Everybody who may read Events of a namespace would read the names of others' pods."""
    size = own + others + 8
    scheduling = cluster(*(shared_node(name, gpus=1, memory=size) for name in BOTH))
    place(scheduling, pod_object("elsewhere", mem=size - 7), names=["n2"])
    for n in range(own):
        place(scheduling, pod_object(f"p{n}", mem=1), names=["n1"])
    for n in range(others):
        place(scheduling, pod_object(f"secret-{n}", mem=1, namespace="other"), names=["n1"])
    scheduling.filter(pod(mem=size), BOTH, 0.0)
    (warning,) = warnings(scheduling)
    assert warning.message.endswith(f"The pod fits on node n1 without {words}")


def test_a_pod_that_is_larger_than_all_that_is_free_gets_no_event():
    scheduling = halves()
    place(scheduling, pod_object(mem=4))
    place(scheduling, pod_object(mem=4))
    scheduling.filter(pod(mem=9), BOTH, 0.0)
    assert warnings(scheduling) == []


def test_the_pods_of_one_owner_get_the_event_once_in_a_while():
    scheduling = halves()
    for now, count in ((0.0, 1), (1.0, 0), (ADVISE_AGAIN_S, 1)):
        scheduling.filter(pod(mem=8, owner="r"), BOTH, now)
        assert len(warnings(scheduling)) == count, now
    scheduling.filter(pod(mem=9, owner="r"), BOTH, 2.0)
    assert len(warnings(scheduling)) == 1


def test_whole_gpus_on_two_nodes_are_not_enough_for_one_pod():
    scheduling = cluster(whole_node("n1", 4), whole_node("n2", 4))
    for _ in range(2):
        place(scheduling, pod_object(whole=3))
    scheduling.filter(pod(whole=8), BOTH, 0.0)
    assert warnings(scheduling) == [], "no node ever has eight"
    scheduling.filter(pod(whole=2), BOTH, 0.0)
    (warning,) = warnings(scheduling)
    assert warning.message.startswith("2 whole GPUs wanted on one node: 2 are unused on 2 nodes, at most 1 on one")
    place(scheduling, pod_object(whole=1))
    scheduling.filter(pod(whole=2), BOTH, ADVISE_AGAIN_S)
    assert warnings(scheduling) == []


def test_memory_that_no_pod_of_the_last_hour_could_use_is_counted():
    scheduling = halves()
    assert scheduling.fragmented_bytes(0.0) == 16 * GIB, "4 on each of 4 GPUs, and all pods asked for 6"
    scheduling.filter(pod(mem=4), BOTH, 10.0)
    assert scheduling.fragmented_bytes(10.0) == 0
    assert scheduling.fragmented_bytes(10.0 + HOUR_S) == 0, "nothing is asked for"
    scheduling.filter(pod(mem=7), BOTH, 20.0)
    assert scheduling.fragmented_bytes(19.0 + HOUR_S) == 12 * GIB, "the pod of 4 keeps its reservation until it lapses"


def test_compute_counts_where_pods_ask_for_both():
    scheduling = cluster(shared_node("n1", gpus=1, memory=10, core=100))
    place(scheduling, pod_object(mem=2, core=80), names=("n1",))
    assert scheduling.fragmented_bytes(0.0) == 8 * GIB, "8 units, and 20 percent of 80"
    scheduling.filter(pod_facts(pod_object(mem=1, core=10)), ("n1",), 0.0)
    assert scheduling.fragmented_bytes(0.0) == 0


def test_a_refusal_for_fragmentation_is_told_from_one_for_lack_of_room():
    scheduling = halves()
    assert scheduling.filter(pod(mem=6), BOTH, 0.0).cause == "fragmented"
    assert scheduling.filter(pod(mem=17, gpu_count=1), BOTH, 0.0).cause == ""
    assert cluster(whole_node("n1", gpus=2)).filter(pod(whole=3), ("n1",), 0.0).cause == ""


def test_memory_counts_in_bytes_whatever_a_unit_is():
    scheduling = cluster(shared_node("n1", gpus=1, memory=40, unit_mib=256))
    scheduling.filter(pod(mem=41), ("n1",), 0.0)
    assert scheduling.fragmented_bytes(0.0) == 10 * GIB
