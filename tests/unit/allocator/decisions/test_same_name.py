"""Pods that take the name of a deleted pod do not get the decision for that pod, nor it theirs."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.domain.builders import (
    CORE,
    MEM,
    holding,
    pod_json,
    unit_ids,
    uuid,
)

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_pod_made_again_under_a_name_does_not_get_what_was_chosen_for_the_one_before():
    """A StatefulSet's: our watch shows the one before, which is being deleted, when kubelet asks for the new one."""
    old = decided("web-0", 0)
    kubelet = kubelet_with(old, decided("other", 2, second=1))
    serve(kubelet, "web-0")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    kubelet.pods(old, decided("other", 2, second=1))
    kubelet.end("web-0")
    new = decided("web-0", 3, second=31)
    new["metadata"]["uid"] = "uid-new"
    kubelet.unseen = [new]
    serve(kubelet, "web-0")
    assert at(kubelet, "web-0") == [3]


@pytest.mark.parametrize("of", ["the one before", "a file"])
def test_what_a_pod_of_the_same_name_still_holds_while_it_ends_is_not_the_new_ones(of):
    """Kubelet lists by name; the checkpoint has UIDs. A static pod has another one there all the time."""
    pod = decided("a", 1)
    if of == "a file":
        node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n", "controller": True}
        pod["metadata"]["ownerReferences"] = [node]
    kubelet = kubelet_with(pod, decided("b", 2, second=1))
    held = holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3))
    entry = CheckpointEntry("uid-before", "main", MEM, held.ids)
    kubelet.allocations.holdings = [held]
    kubelet.node.send(ev.HoldingsRead((held,), 1.0, 1.0, (entry,)))
    kubelet.publish()
    if of == "the one before":
        kubelet.allocations.holdings, kubelet.allocations.admitting = [], "a"
    else:
        kubelet.allocations.admitting = "b"
    chosen = kubelet.allocator.prefer(MEM, sorted(kubelet.node.ids(MEM) - held.ids), (), 4)
    assert {kubelet.snap.units[i] for i in chosen} == {uuid(1 if of == "the one before" else 2)}


def test_a_decided_pod_under_whose_name_kubelet_lists_another_is_refused():
    """It is the one that asks, or a pod that nothing shows: it may not get any other GPU than its own."""
    kubelet = kubelet_with(decided("served", 0), decided("a", 3, size=3, second=1))
    serve(kubelet, "served")
    kubelet.allocations.holdings.append(holding("a", unit_ids(1, Kind.MEMORY_SHARE, 0, 1)))
    refusal = kubelet.refusal(lambda: serve(kubelet, "a", 3))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "ml/a" in refusal.message
    assert "kubelet lists devices of another pod under that name" in refusal.message


def test_without_a_checkpoint_devices_of_another_size_are_not_the_new_pods():
    """The former pod has memory on GPU 1, where no compute is left for the new one."""
    kubelet = kubelet_with(
        pod_json("a", {MEM: 4, CORE: 30}), pod_json("busy", {MEM: 1, CORE: 80}), mode=Mode.CORE_MEM, gpus=2
    )
    kubelet.allocations.holdings = [
        holding("a", unit_ids(1, Kind.MEMORY_CORE_MEM, 0, 1)),
        holding("busy", unit_ids(1, Kind.MEMORY_CORE_MEM, 2)),
        holding("busy", unit_ids(1, Kind.CORE_CORE_MEM, *range(80)), CORE),
    ]
    kubelet.read_allocations()
    kubelet.allocations.admitting = "a"
    chosen = kubelet.prefer(CORE, 30)
    assert {kubelet.snap.units[i] for i in chosen} == {uuid(0)}


def again(pod, index, second):
    """A pod that takes the name of `pod`, as a StatefulSet makes it."""
    new = decided(pod["metadata"]["name"], index, second=second)
    new["metadata"]["uid"] += "-again"
    return new


def test_a_deleted_pod_that_kubelet_still_asks_for_does_not_get_what_was_chosen_for_the_next_of_its_name():
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    new = again(old, 3, second=2)
    kubelet = kubelet_with(other, old).pods(other).pods(other, new)
    refusal = kubelet.refusal(lambda: serve(kubelet, "web-0"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "pod ml/web-0 was deleted a moment ago, and kubelet lists no UIDs" in refusal.message
    serve(kubelet, "web-0")
    assert at(kubelet, "web-0") == [3]


def larger_again(pod, index):
    """A pod that takes the name of `pod`, and asks for more."""
    new = decided(pod["metadata"]["name"], index, size=8, second=31)
    new["metadata"]["uid"] += "-again"
    return new


def test_a_pod_under_the_name_of_one_that_waits_gets_what_was_chosen_for_it():
    """The watch does not show yet that the former pod was deleted, before kubelet came to it."""
    other, old = decided("other", 1), decided("web-0", 0, second=1)
    kubelet = kubelet_with(other, old)
    serve(kubelet, "other")
    kubelet.unseen = [larger_again(old, 3)]
    serve(kubelet, "web-0", 8)
    assert at(kubelet, "web-0") == [3]


def test_a_pod_under_the_name_of_one_that_waits_is_refused_while_the_api_server_does_not_answer():
    other, old = decided("other", 1), decided("web-0", 0, second=1)
    kubelet = kubelet_with(other, old)
    serve(kubelet, "other")
    kubelet.unseen = None
    refusal = kubelet.refusal(lambda: serve(kubelet, "web-0", 8))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "the API server did not show the node's pods in time" in refusal.message


def test_a_pod_under_a_known_name_is_looked_for_after_one_under_a_new_name():
    """Kubelet lists a pod of a file, too, which asks for no GPU, and which the API server does not know."""
    other, old = decided("other", 1), decided("web-0", 0, second=1)
    kubelet = kubelet_with(other, old)
    serve(kubelet, "other")
    kubelet.allocations.rejected.add("of-a-file")
    kubelet.unseen = [larger_again(old, 3)]
    serve(kubelet, "web-0", 8)
    assert at(kubelet, "web-0") == [3]


def test_a_pod_that_the_api_server_does_not_know_gets_any_gpu_beside_one_that_waits():
    kubelet = kubelet_with(decided("other", 1), decided("web-0", 0, second=1))
    serve(kubelet, "other")
    kubelet.allocations.rejected.add("web-0")
    serve(kubelet, "of-a-file", 8)
    assert len(at(kubelet, "of-a-file")) == 1


def test_before_the_list_of_pods_a_pod_of_a_file_gets_a_gpu_beside_pods_that_ask_for_none():
    """The API server shows those pods again, and they do not ask for this."""
    without_gpu = pod_json("without-gpu", {})
    kubelet = kubelet_with(decided("other", 1), without_gpu)
    serve(kubelet, "other")
    kubelet.node.state = replace(kubelet.node.state, pods=replace(kubelet.node.state.pods, known=False))
    kubelet.publish()
    kubelet.allocations.rejected.add("without-gpu")
    kubelet.unseen = [without_gpu]
    serve(kubelet, "of-a-file", 8)
    assert len(at(kubelet, "of-a-file")) == 1


def test_names_of_equal_pods_are_used_again_while_kubelet_lists_the_deleted_ones():
    """As seen on kubelets 1.30 and 1.36: a deleted pod that was refused stays in the list until kubelet removes it."""
    old = [decided(f"p{n}", n) for n in range(4)]
    new = [again(old[n], 7 - n, second=1) for n in (0, 2)]
    kubelet = kubelet_with(*old, gpus=8).pods(old[1], old[3], *new)
    for deleted, other in (("p0", "p1"), ("p2", "p3")):
        assert kubelet.refusal(lambda name=deleted: serve(kubelet, name)).reason is Reason.UNKNOWN_POD
        kubelet.allocations.rejected.add(deleted)
        serve(kubelet, other)
    for name in ("p0", "p2"):
        serve(kubelet, name)
    assert [at(kubelet, f"p{n}") for n in range(4)] == [[7], [1], [5], [3]]


def test_a_kubelet_that_was_restarted_does_not_ask_for_deleted_pods_that_the_former_one_rejected():
    """As seen when kubelet 1.30 took the place of 1.36: pods under their names were refused one after another."""
    other = decided("other", 1)
    kubelet = kubelet_with(other, gpus=8)
    kubelet.allocator.serving((1, 1, 1))
    lives = [decided("web-0", gpu, second=gpu) for gpu in (2, 3, 4)]
    for number, pod in enumerate(lives):
        pod["metadata"]["uid"] = f"uid-{number}"
        kubelet.pods(other, pod)
        if number:
            # Kubelet asks for the one before.
            assert kubelet.refusal(lambda: serve(kubelet, "web-0")).reason is Reason.UNKNOWN_POD
    kubelet.allocator.serving((1, 2, 2))
    serve(kubelet, "web-0")
    assert at(kubelet, "web-0") == [4]


def test_pods_that_are_gone_are_not_remembered_as_refused():
    kubelet = kubelet_with(gpus=1)
    for n in range(10):
        kubelet.pods(decided(f"p{n}", 0))
        serve(kubelet, f"p{n}")
        kubelet.read_allocations()
        kubelet.allocations.holdings.clear()
        kubelet.node.now += 31
    assert len(kubelet.allocator.occupancy().tracker.refused) <= 1


def test_a_pod_that_took_a_deleted_pods_name_is_read_from_the_api_server():
    """What is in doubt is refused: kubelet may still be asking for the one before."""
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    kubelet = kubelet_with(other, old).pods(other)
    kubelet.unseen = [again(old, 3, second=2)]
    assert kubelet.refusal(lambda: serve(kubelet, "web-0")).reason is Reason.UNKNOWN_POD


@pytest.mark.parametrize("how", ["by kubelet", "by the agent"])
def test_a_rejected_pod_does_not_hide_the_next_of_its_name(how):
    old, other = decided("web-0", 9 if how == "by the agent" else 0), decided("other", 1, second=1)
    kubelet = kubelet_with(old, other)
    if how == "by the agent":
        assert kubelet.refusal(lambda: serve(kubelet, "web-0")).reason is Reason.GPU_DECISION
    else:
        kubelet.pods(old | {"status": {"phase": "Failed"}}, other)
    kubelet.unseen = [again(old, 3, second=2)]
    serve(kubelet, "web-0")
    assert at(kubelet, "web-0") == [3]
