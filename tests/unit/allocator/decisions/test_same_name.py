"""Pods that take the name of a deleted pod do not get the decision for that pod, nor it theirs."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Kind
from tests.unit.allocator.decisions.decided_pods import at, decided, desk_of, serve
from tests.unit.domain.builders import (
    MEM,
    holding,
    unit_ids,
    uuid,
)

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_pod_made_anew_under_a_name_does_not_get_what_was_chosen_for_the_one_before():
    """A StatefulSet's: our watch shows the one before, which is being deleted, when kubelet asks for the new one."""
    old = decided("web-0", 0)
    desk = desk_of(old, decided("other", 2, second=1))
    serve(desk, "web-0")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    desk.pods(old, decided("other", 2, second=1))
    desk.end("web-0")
    new = decided("web-0", 3, second=31)
    new["metadata"]["uid"] = "uid-new"
    desk.unseen = [new]
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]


@pytest.mark.parametrize("of", ["the one before", "a file"])
def test_what_a_pod_of_the_same_name_still_holds_while_it_ends_is_not_the_new_ones(of):
    """Kubelet lists by name; the checkpoint has UIDs. A static pod has another one there all the time."""
    pod = decided("a", 1)
    if of == "a file":
        node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n", "controller": True}
        pod["metadata"]["ownerReferences"] = [node]
    desk = desk_of(pod, decided("b", 2, second=1))
    held = holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3))
    entry = CheckpointEntry("uid-before", "main", MEM, held.ids)
    desk.book.holdings = [held]
    desk.node.tell(ev.HoldingsRead((held,), 1.0, 1.0, (entry,)))
    desk.publish()
    if of == "the one before":
        desk.book.holdings, desk.book.asking = [], "a"
    else:
        desk.book.asking = "b"
    chosen = desk.allocator.prefer(MEM, sorted(desk.node.ids(MEM) - held.ids), (), 4)
    assert {desk.snap.units[i] for i in chosen} == {uuid(1 if of == "the one before" else 2)}


def again(pod, index, second):
    """A pod that takes the name of `pod`, as a StatefulSet makes it."""
    new = decided(pod["metadata"]["name"], index, second=second)
    new["metadata"]["uid"] += "-again"
    return new


def test_a_deleted_pod_that_kubelet_still_asks_for_does_not_get_what_was_chosen_for_the_next_of_its_name():
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    new = again(old, 3, second=2)
    desk = desk_of(other, old).pods(other).pods(other, new)
    refusal = desk.refusal(lambda: serve(desk, "web-0"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "pod ml/web-0 was deleted a moment ago, and kubelet lists no UIDs" in refusal.message
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]


def test_names_of_equal_pods_are_used_again_while_kubelet_lists_the_deleted_ones():
    """As seen on kubelets 1.30 and 1.36: a deleted pod that was refused stays in the list until kubelet removes it."""
    old = [decided(f"p{n}", n) for n in range(4)]
    new = [again(old[n], 7 - n, second=1) for n in (0, 2)]
    desk = desk_of(*old, gpus=8).pods(old[1], old[3], *new)
    for deleted, other in (("p0", "p1"), ("p2", "p3")):
        assert desk.refusal(lambda name=deleted: serve(desk, name)).reason is Reason.UNKNOWN_POD
        desk.book.rejected.add(deleted)
        serve(desk, other)
    for name in ("p0", "p2"):
        serve(desk, name)
    assert [at(desk, f"p{n}") for n in range(4)] == [[7], [1], [5], [3]]


def test_pods_that_are_gone_are_not_remembered_as_refused():
    desk = desk_of(gpus=1)
    for n in range(10):
        desk.pods(decided(f"p{n}", 0))
        serve(desk, f"p{n}")
        desk.read_book()
        desk.book.holdings.clear()
        desk.node.now += 31
    assert len(desk.allocator.view().tracker.refused) <= 1


def test_a_pod_that_took_a_deleted_pods_name_is_read_from_the_api_server():
    """What is in doubt is refused: kubelet may still be asking for the one before."""
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    desk = desk_of(other, old).pods(other)
    desk.unseen = [again(old, 3, second=2)]
    assert desk.refusal(lambda: serve(desk, "web-0")).reason is Reason.UNKNOWN_POD


@pytest.mark.parametrize("how", ["by kubelet", "by the agent"])
def test_a_rejected_pod_does_not_hide_the_next_of_its_name(how):
    old, other = decided("web-0", 9 if how == "by the agent" else 0), decided("other", 1, second=1)
    desk = desk_of(old, other)
    if how == "by the agent":
        assert desk.refusal(lambda: serve(desk, "web-0")).reason is Reason.GPU_DECISION
    else:
        desk.pods(old | {"status": {"phase": "Failed"}}, other)
    desk.unseen = [again(old, 3, second=2)]
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]
