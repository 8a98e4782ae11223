"""The node is kept right, whatever others and the server do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from gpuagent.kube.api.client import Client
from gpuagent.kube.watch.node_watch import Watcher
from gpuagent.kube.write.event_sender import EventSender, Involved
from gpuagent.kube.write.keyed_reconciler import Delays
from gpuagent.kube.write.node_writer import NodeWriter
from gpuagent.system.backoff import Backoff
from standin.api.objects import Json
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

COUNT = {"aliyun.com/gpu-count": "8"}
LABELS = {"aliyun.accelerator/nvidia_count": "8"}
GOOD = {"type": "GpusReady", "status": "True", "reason": "Serving", "message": "8 GPUs"}
BAD = {**GOOD, "status": "False", "reason": "DriverGone", "message": "no driver"}
POD = Involved.pod("default", "p", "uid-1")


@pytest.fixture
def writer(client: Client, wall: Any, quick: Callable[[], Backoff]) -> Iterator[NodeWriter]:
    """Start a writer that observes through a watch, as in the agent."""
    made = NodeWriter(client, "n1", wall=wall, delays=Delays(quick, lambda: Backoff(0.01, 0.01)))

    def post(event: NodeSeen | PodsSeen | ApiUnavailable) -> None:
        if isinstance(event, NodeSeen):
            made.observe(event.node)

    watcher = Watcher(client, "n1", post, backoff=quick)
    made.start()
    watcher.start()
    yield made
    watcher.stop()
    made.stop()


def is_right(server: ApiServer) -> bool:
    node = server.node()
    return bool(
        LABELS.items() <= node["metadata"]["labels"].items()
        and COUNT.items() <= node["status"]["capacity"].items()
        and COUNT.items() <= node["status"]["allocatable"].items()
    )


def condition(server: ApiServer) -> Json:
    found = [entry for entry in server.node()["status"]["conditions"] if entry["type"] == "GpusReady"]
    return found[0] if found else {}


def test_writes_once_and_then_leaves_it_alone(server: ApiServer, writer: NodeWriter) -> None:
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: is_right(server) and condition(server))
    server.label_node({"other": "change"})
    assert writer.flush(PATIENCE_S)
    assert condition(server)["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert (server.requests["patch nodes"], server.requests["patch nodes/status"]) == (1, 1)
    assert [entry["type"] for entry in server.node()["status"]["conditions"]] == ["Ready", "GpusReady"]


def test_a_taint_goes_and_one_that_another_sets_at_the_same_time_stays(server: ApiServer, writer: NodeWriter) -> None:
    mine, other = {"key": "k", "effect": "NoSchedule"}, {"key": "o", "effect": "NoSchedule"}
    node = ("nodes", "", "n1")
    server.objects.patch(node, "", {"spec": {"taints": [mine]}}, strategic=False)
    writer.set_desired(LABELS, COUNT, GOOD, "k")
    assert server.wait(lambda: "taints" not in server.node()["spec"] and is_right(server))
    with server.objects.updated:  # the writer cannot see the first of these before the second is there
        server.objects.patch(node, "", {"spec": {"taints": [mine]}}, strategic=False)
        server.objects.patch(node, "", {"spec": {"taints": [mine, other]}}, strategic=False)
    assert server.wait(lambda: server.node()["spec"].get("taints") == [other])


def test_nothing_is_written_before_the_first_observation(server: ApiServer, client: Client) -> None:
    writer = NodeWriter(client, "n1")
    writer.start()
    writer.set_desired(LABELS, COUNT, GOOD)
    assert not writer.flush(0.05)
    assert server.requests["patch nodes"] == 0
    writer.observe(server.node())
    assert writer.flush(PATIENCE_S)
    assert is_right(server)
    writer.stop()


def test_drift_is_repaired_each_time(server: ApiServer, writer: NodeWriter) -> None:
    writer.set_desired(LABELS, COUNT, None)
    assert server.wait(lambda: is_right(server))
    for _ in range(3):
        server.label_node({"aliyun.accelerator/nvidia_count": "1"})
        assert server.wait(lambda: is_right(server))
        server.patch_node_status({"capacity": {"aliyun.com/gpu-count": None}, "allocatable": None})
        assert server.wait(lambda: is_right(server))


def test_the_annotation_is_put_back_and_those_of_others_stay(server: ApiServer, writer: NodeWriter) -> None:
    def annotate(text: str | None) -> None:
        body = {"metadata": {"annotations": {NODE_GPUS_ANNOTATION: text, "theirs": "x"}}}
        server.objects.patch(("nodes", "", "n1"), "", body, strategic=False)

    writer.set_desired({}, {}, None, annotations={NODE_GPUS_ANNOTATION: "mine"})
    for text in (None, "forged", "mine"):
        annotate(text)
        wanted = {NODE_GPUS_ANNOTATION: "mine", "theirs": "x"}
        assert server.wait(lambda: server.node()["metadata"].get("annotations") == wanted)
    assert writer.flush(PATIENCE_S)
    assert server.requests["patch nodes"] <= 3, "a right annotation is not written"


def test_an_annotation_that_changes_often_is_written_at_the_pace_of_the_writer(
    server: ApiServer, client: Client, quick: Callable[[], Backoff]
) -> None:
    """A GPU may fail and recover again and again. The pace here lets one write through; the last text is due then."""
    writer = NodeWriter(client, "n1", delays=Delays(quick, lambda: Backoff(3600, 3600)))
    writer.start()
    writer.observe(server.node())
    for n in range(100):
        writer.set_desired({}, {}, None, annotations={NODE_GPUS_ANNOTATION: str(n)})
        assert n or writer.flush(PATIENCE_S)
    assert not writer.flush(0)
    assert server.node()["metadata"]["annotations"] == {NODE_GPUS_ANNOTATION: "0"}
    assert server.requests["patch nodes"] == 1
    writer.stop()


def test_a_node_made_again_is_made_right(server: ApiServer, client: Client, writer: NodeWriter) -> None:
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: is_right(server))
    server.objects.delete(("nodes", "", "n1"))
    client.create(
        "/api/v1/nodes", {"metadata": {"name": "n1", "labels": {}}, "status": {"capacity": {}, "allocatable": {}}}
    )
    assert server.wait(lambda: is_right(server))


def test_a_label_can_be_taken_away(server: ApiServer, writer: NodeWriter) -> None:
    server.label_node(dict(LABELS))
    writer.set_desired(dict.fromkeys(LABELS), {}, None)
    assert server.wait(lambda: not LABELS.keys() & server.node()["metadata"]["labels"].keys())


def test_transition_time_moves_with_the_status_only(server: ApiServer, writer: NodeWriter, wall: Any) -> None:
    writer.set_desired({}, {}, GOOD)
    assert server.wait(lambda: condition(server))
    wall.now += 60
    writer.set_desired({}, {}, {**GOOD, "message": "7 GPUs"})
    assert server.wait(lambda: condition(server)["message"] == "7 GPUs")
    assert condition(server)["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert condition(server)["lastHeartbeatTime"] == "2027-01-15T08:01:00Z"
    wall.now += 60
    writer.set_desired({}, {}, BAD)
    assert server.wait(lambda: condition(server)["status"] == "False")
    assert condition(server)["lastTransitionTime"] == "2027-01-15T08:02:00Z"


def test_one_refusal_does_not_stop_the_others(
    server: ApiServer, writer: NodeWriter, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.kube.write.event_sender.FORBIDDEN_GAP_S", 0.01)
    server.deny("patch", "nodes")
    server.deny("create", "events")
    sender.add(POD, "Warning", "Refused", "no")
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: condition(server))
    assert server.wait(lambda: 'allow verb "patch" on resource "nodes"' in writer.problem)
    assert server.wait(lambda: sender.counts().refused == 1)
    server.allow("patch", "nodes")
    assert server.wait(lambda: is_right(server))
    assert writer.flush(PATIENCE_S)
    assert writer.problem == ""


def test_refused_events_do_not_stop_the_node(server: ApiServer, writer: NodeWriter, sender: EventSender) -> None:
    server.deny("create", "events")
    for number in range(10):
        sender.add(POD, "Warning", "Refused", f"no {number}")
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: is_right(server))


def test_pause_and_resume(server: ApiServer, writer: NodeWriter, sender: EventSender) -> None:
    server.pause()
    writer.set_desired(LABELS, COUNT, GOOD)
    sender.add(POD, "Warning", "Refused", "no")
    assert not writer.flush(0.4)
    assert not sender.flush(0.0)
    server.resume()
    assert server.wait(lambda: is_right(server) and server.events())


def test_stop_before_start_is_harmless(client: Client) -> None:
    NodeWriter(client, "n1").stop()
