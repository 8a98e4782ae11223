"""A pod whose memory limit does not hold: one Event on the pod, and a problem of the node until it holds."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import CheckpointEntry, PodName
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import MEM, NodeUnderTest, holding, in_force, pod_json, unit_ids, uuid

WHY = "it uses 5120 MiB of GPU memory, and its limit is to be 4096 MiB"
REASON = "GPUMemoryUnlimited"
HASH = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def node() -> NodeUnderTest:
    return in_force(Mode.CGPU).pods(pod_json("a", {MEM: 4}), pod_json("b", {MEM: 4}))


def report(node: NodeUnderTest, **unlimited: str) -> None:
    """The driver reports these pods, and why each has no limit."""
    by_uid = {f"uid-{name}": why for name, why in unlimited.items()}
    left_out = {uuid(0): "a pod may use more than its share"} if unlimited else {}
    layer = replace(node.state.isolation.layers["all"], unlimited=by_uid, left_out=left_out)
    node.send(ev.LayerSeen(layer, node.now))


def events(node: NodeUnderTest) -> list[tuple[PodName, ...]]:
    """The pods of the Events since the last look."""
    found = [announcement for announcement in node.announcements if announcement.reason == REASON and announcement.pods]
    node.announcements.clear()
    assert all(announcement.warning for announcement in found)
    return [announcement.pods for announcement in found]


def texts(node: NodeUnderTest) -> list[str]:
    return [problem.message for problem in problems(node.state) if problem.reason == REASON]


def test_the_pod_gets_one_event_that_says_why_and_what_to_do(node):
    report(node, a=WHY)
    (announcement,) = [one for one in node.announcements if one.reason == REASON and one.pods]
    assert announcement.message == f"the pod may use more GPU memory than its share: {WHY}. Delete the pod"
    assert events(node) == [(PodName("ml", "a"),)]


def test_an_event_is_sent_once_although_the_text_changes(node):
    report(node, a=WHY)
    assert len(events(node)) == 1
    report(node, a="it uses 6144 MiB")
    node.pods(pod_json("a", {MEM: 4}, phase="Running"), pod_json("b", {MEM: 4}))
    node.wait(60)
    assert events(node) == []
    report(node, a=WHY, b=WHY)
    assert events(node) == [(PodName("ml", "b"),)]


def test_a_pod_that_loses_its_limit_again_gets_another_event(node):
    report(node, a=WHY)
    report(node)
    events(node)
    report(node, a=WHY)
    assert events(node) == [(PodName("ml", "a"),)]


def test_a_pod_that_the_agent_sees_later_gets_its_event_then():
    """The first audit may end before the pods of the node were read."""
    node = in_force(Mode.CGPU)
    report(node, a=WHY)
    assert events(node) == []
    node.pods(pod_json("a", {MEM: 4}))
    assert events(node) == [(PodName("ml", "a"),)]
    node.pods(pod_json("a", {MEM: 4}), pod_json("b", {MEM: 4}))
    assert events(node) == []


def static_node() -> NodeUnderTest:
    """A node with a static pod: kubelet has the hash of its file as its UID, and the API server has a mirror of it."""
    node = in_force(Mode.CGPU)
    mirror = pod_json("static", {MEM: 4}, annotations={"kubernetes.io/config.mirror": "anything"})
    mirror["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "n", "controller": True}]
    node.pods(mirror, pod_json("a", {MEM: 4}))
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    node.send(
        ev.HoldingsRead((holding("static", ids),), node.now, node.now, (CheckpointEntry(HASH, "main", MEM, ids),))
    )
    return node


def test_a_static_pod_gets_its_event_and_is_named():
    node = static_node()
    layer = replace(node.state.isolation.layers["all"], unlimited={HASH: WHY})
    node.send(ev.LayerSeen(layer, node.now))
    (announcement,) = [one for one in node.announcements if one.reason == REASON and one.pods]
    assert announcement.pods == (PodName("ml", "static"),)
    assert announcement.message.endswith("Move its file on the node away, and back")
    assert texts(node) == [
        f"pod ml/static may use more GPU memory than its share: {WHY}. Its GPU takes no new pods until the pod is deleted"
    ]
    node.wait(60)
    assert len(events(node)) == 1


def test_a_pod_that_calls_itself_static_is_not_taken_for_another():
    """Whoever writes a pod can write such annotations. Kubelet alone says which UID belongs to which name."""
    node = static_node()
    forged = pod_json("forged", {MEM: 4}, annotations={"kubernetes.io/config.mirror": HASH})
    node.pods(*[pod_json(name, {MEM: 4}) for name in ("a", "static")], forged)
    layer = replace(node.state.isolation.layers["all"], unlimited={HASH: WHY, "uid-a": WHY})
    node.send(ev.LayerSeen(layer, node.now))
    assert (PodName("ml", "forged"),) not in events(node)


def test_the_node_names_the_pods_until_their_limits_hold(node):
    report(node, a=WHY, c="the driver hangs")
    of_unseen = "pod with UID uid-c may use more GPU memory than its share: the driver hangs"
    assert texts(node) == [
        f"pod ml/a may use more GPU memory than its share: {WHY}. Its GPU takes no new pods until the pod is deleted",
        f"{of_unseen}. Its GPU takes no new pods until the pod is deleted",
    ]
    report(node)
    assert texts(node) == []
