"""The node is kept right, and Events arrive, whatever others and the server do."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.kube.api.client import Client
from gpuagent.kube.watch.node_watch import Watcher
from gpuagent.kube.write.event_sender import Involved
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


class Wall:
    """A clock that tests set: seconds since the epoch."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def writer(client: Client, wall: Wall, quick: Callable[[], Backoff]) -> Iterator[NodeWriter]:
    """Start a writer that observes through a watch, as in the agent."""
    made = NodeWriter(client, "n1", wall=wall, gap_s=0.01, count_gap_s=0.01, backoff=quick)

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


def counts_are(server: ApiServer, counts: list[int]) -> bool:
    return [event["count"] for event in server.events()] == counts


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
    with server.objects.news:  # the writer cannot see the first of these before the second is there
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


def test_a_node_made_anew_is_made_right(server: ApiServer, client: Client, writer: NodeWriter) -> None:
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


def test_transition_time_moves_with_the_status_only(server: ApiServer, writer: NodeWriter, wall: Wall) -> None:
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
    server: ApiServer, writer: NodeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.kube.write.event_sender.FORBIDDEN_GAP_S", 0.01)
    server.deny("patch", "nodes")
    server.deny("create", "events")
    writer.event(POD, "Warning", "Refused", "no")
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: condition(server))
    assert server.wait(lambda: 'allow verb "patch" on resource "nodes"' in writer.counts().error)
    assert server.wait(lambda: writer.counts().events.refused == 1)
    server.allow("patch", "nodes")
    assert server.wait(lambda: is_right(server))
    assert writer.flush(PATIENCE_S)
    assert writer.counts().error == ""


def test_refused_events_do_not_stop_the_node(server: ApiServer, writer: NodeWriter) -> None:
    server.deny("create", "events")
    for number in range(10):
        writer.event(POD, "Warning", "Refused", f"no {number}")
    writer.set_desired(LABELS, COUNT, GOOD)
    assert server.wait(lambda: is_right(server))


def test_pause_and_resume(server: ApiServer, writer: NodeWriter) -> None:
    server.pause()
    writer.set_desired(LABELS, COUNT, GOOD)
    writer.event(POD, "Warning", "Refused", "no")
    assert not writer.flush(0.4)
    server.resume()
    assert server.wait(lambda: is_right(server) and server.events())


def test_an_event_is_as_kubelet_writes_them(server: ApiServer, writer: NodeWriter) -> None:
    writer.event(Involved.node("n1"), "Normal", "ModeChanged", "share to cgpu")
    assert server.wait(server.events)
    event = server.events()[0]
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("n1.")
    assert event["source"] == {"component": "gpuagent", "host": "n1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "ModeChanged", "share to cgpu")
    assert (event["count"], event["firstTimestamp"]) == (1, "2027-01-15T08:00:00Z")
    pod = Involved.pod("team", "p", "u")
    writer.event(pod, "Warning", "Refused", "no")
    assert server.wait(lambda: len(server.events()) == 2)
    assert server.events()[1]["metadata"]["namespace"] == server.events()[1]["involvedObject"]["namespace"] == "team"


def test_a_repeat_is_counted_for_five_minutes(server: ApiServer, writer: NodeWriter, wall: Wall) -> None:
    for count in (1, 2, 3):
        writer.event(POD, "Warning", "Refused", "no")
        assert server.wait(partial(counts_are, server, [count]))
        wall.now += 200
    assert server.events()[0]["lastTimestamp"] == "2027-01-15T08:06:40Z"
    assert server.events()[0]["firstTimestamp"] == "2027-01-15T08:00:00Z"
    wall.now += 200
    writer.event(POD, "Warning", "Refused", "no")
    assert server.wait(lambda: len(server.events()) == 2)
    writer.event(POD, "Warning", "Refused", "something else")
    assert server.wait(lambda: len(server.events()) == 3)


def test_a_repeat_of_an_event_that_the_server_forgot_is_sent_anew(server: ApiServer, writer: NodeWriter) -> None:
    writer.event(POD, "Warning", "Refused", "no")
    assert server.wait(server.events)
    assert writer.flush(PATIENCE_S)
    server.objects.delete(("events", "default", server.events()[0]["metadata"]["name"]))
    writer.event(POD, "Warning", "Refused", "no")
    assert server.wait(server.events)
    assert server.events()[0]["count"] == 2


def test_a_full_queue_drops_the_oldest_and_counts_repeats(server: ApiServer, writer: NodeWriter) -> None:
    server.pause()
    for number in range(300):
        writer.event(POD, "Warning", "Refused", f"no {number}")
        writer.event(POD, "Warning", "Refused", f"no {number}")
    server.resume()
    assert writer.flush(PATIENCE_S)
    dropped = writer.counts().events.dropped
    assert 40 <= dropped <= 45
    by_message = {event["message"]: event["count"] for event in server.events()}
    assert by_message["no 299"] == 2
    assert len(by_message) == 300 - dropped


def test_stop_before_start_is_harmless(client: Client) -> None:
    NodeWriter(client, "n1").stop()
