"""Events arrive; one that repeats by the hundred is a few requests, and its last count arrives."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from gpuagent.kube.api.api_errors import refused
from gpuagent.kube.api.client import Client
from gpuagent.kube.write.event_sender import (
    COUNT_GAP_S,
    FORBIDDEN_GAP_S,
    FORBIDDEN_TRIES,
    MESSAGE_CHARS,
    EventSender,
    Involved,
)
from gpuagent.system.backoff import Backoff
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

NODE = Involved.node("n1")
POD = Involved.pod("default", "p", "uid-1")


class Server:
    """Takes everything but what it `forbids`, and keeps the counts in the order in which they came."""

    def __init__(self) -> None:
        self.forbids = ""
        self.forbidden = 0
        self.created: list[str] = []
        self.counts: list[int] = []
        self.came = threading.Condition()

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with self.came:
            self.came.notify_all()
            if body["message"] == self.forbids:
                self.forbidden += 1
                raise refused("create", "events", "", "not yet")
            self.created.append(body["message"])
        return {}

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with self.came:
            self.counts.append(body["count"])
            self.came.notify_all()
        return {}

    def wait(self, so: Callable[[], bool]) -> bool:
        with self.came:
            return self.came.wait_for(so, PATIENCE_S)


class Clock:
    """Monotonic seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[EventSender, Server]]]:
    running: list[EventSender] = []

    def make(**options: Any) -> tuple[EventSender, Server]:
        server = Server()
        running.append(EventSender(server, "n1", backoff=Backoff(0.01, 0.02), **options))
        running[-1].start()
        return running[-1], server

    yield make
    for log in running:
        log.stop(PATIENCE_S)


def storm(log: EventSender, times: int = 500) -> None:
    for _ in range(times):
        log.add(NODE, "Warning", "ApplicationXID", "XID 31")


def test_a_storm_is_one_count_in_ten_seconds(begin: Callable[..., tuple[EventSender, Server]]) -> None:
    clock = Clock()
    log, server = begin(clock=clock)
    storm(log, 1)
    assert server.wait(lambda: bool(server.created))
    assert log.flush(PATIENCE_S)
    storm(log)
    log.add(NODE, "Warning", "GPUUnhealthy", "another")
    assert server.wait(lambda: len(server.created) == 2), "others do not wait for it"
    assert log.flush(PATIENCE_S)
    assert server.counts == []
    clock.now = COUNT_GAP_S
    storm(log, 1)
    assert server.wait(lambda: bool(server.counts))
    assert log.flush(PATIENCE_S)
    storm(log)
    assert log.flush(PATIENCE_S)
    assert (server.created, server.counts) == (["XID 31", "another"], [502])


def test_the_last_count_of_a_storm_is_sent_although_nothing_follows(
    begin: Callable[..., tuple[EventSender, Server]],
) -> None:
    log, server = begin(count_gap_s=0.05)
    storm(log, 1)
    assert server.wait(lambda: bool(server.created))
    storm(log)
    assert server.wait(lambda: server.counts[-1:] == [501])


def test_what_a_server_forbids_when_it_has_just_started_is_sent_later(
    begin: Callable[..., tuple[EventSender, Server]],
) -> None:
    clock = Clock()
    log, server = begin(clock=clock)
    server.forbids = "XID 31"
    storm(log, 1)
    assert server.wait(lambda: server.forbidden == 1)
    log.add(NODE, "Warning", "GPUUnhealthy", "another")
    assert server.wait(lambda: server.created == ["another"]), "others do not wait for it"
    server.forbids = ""
    clock.now = FORBIDDEN_GAP_S
    storm(log, 1)
    assert server.wait(lambda: server.created == ["another", "XID 31"])


def test_a_message_is_cut_and_cannot_steer_a_terminal(begin: Callable[..., tuple[EventSender, Server]]) -> None:
    log, server = begin()
    log.add(NODE, "Warning", "AnnotationCorrected", "annotation says \x1b]0;owned\x07\u202e" + "\n" * 10_000)
    assert log.flush(PATIENCE_S)
    (message,) = server.created
    assert message.isprintable()
    assert len(message) == MESSAGE_CHARS
    assert message.startswith("annotation says \N{REPLACEMENT CHARACTER}]0;owned")


def test_what_is_forbidden_for_good_is_given_up(begin: Callable[..., tuple[EventSender, Server]]) -> None:
    clock = Clock()
    log, server = begin(clock=clock)
    server.forbids = "XID 31"
    storm(log, 1)
    for tries in range(1, FORBIDDEN_TRIES + 1):
        assert server.wait(lambda tries=tries: server.forbidden == tries)
        assert log.flush(PATIENCE_S)
        clock.now += FORBIDDEN_GAP_S
        log.add(NODE, "Normal", "Other", f"wakes it {tries}")
    assert server.wait(lambda: server.forbidden == FORBIDDEN_TRIES + 1)
    assert log.flush(PATIENCE_S)
    assert log.counts().refused == 1


def test_events_that_are_refused_are_a_problem_until_one_is_taken_there(client: Client, server: ApiServer) -> None:
    problems: list[str | None] = []
    log = EventSender(client, "n1", on_problem=problems.append)
    log.start()

    def send(about: Involved, text: str) -> int:
        log.add(about, "Normal", "Test", text)
        assert log.flush(PATIENCE_S)
        return len(problems)

    server.fail("create", "events", 422, 422, 404)
    counts = [
        send(POD, "a"),
        send(POD, "the same words are one problem"),
        send(Involved.pod("gone", "p", "uid-2"), "its namespace is being deleted"),
        send(Involved.pod("other", "p", "uid-3"), "is taken in another namespace"),
        send(POD, "is taken"),
    ]
    log.stop()
    assert counts == [1, 1, 1, 1, 2]
    assert "the API server refuses Events in namespace default: the API server answers 422" in str(problems[0])
    assert problems[1] is None


def counts_are(server: ApiServer, counts: list[int]) -> bool:
    return [event["count"] for event in server.events()] == counts


def test_an_event_is_as_kubelet_writes_them(server: ApiServer, sender: EventSender) -> None:
    sender.add(Involved.node("n1"), "Normal", "ModeChanged", "share to cgpu")
    assert server.wait(server.events)
    event = server.events()[0]
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("n1.")
    assert event["source"] == {"component": "gpuagent", "host": "n1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "ModeChanged", "share to cgpu")
    assert (event["count"], event["firstTimestamp"]) == (1, "2027-01-15T08:00:00Z")
    pod = Involved.pod("team", "p", "u")
    sender.add(pod, "Warning", "Refused", "no")
    assert server.wait(lambda: len(server.events()) == 2)
    assert server.events()[1]["metadata"]["namespace"] == server.events()[1]["involvedObject"]["namespace"] == "team"


def test_a_repeat_is_counted_for_five_minutes(server: ApiServer, sender: EventSender, wall: Any) -> None:
    for count in (1, 2, 3):
        sender.add(POD, "Warning", "Refused", "no")
        assert server.wait(partial(counts_are, server, [count]))
        wall.now += 200
    assert server.events()[0]["lastTimestamp"] == "2027-01-15T08:06:40Z"
    assert server.events()[0]["firstTimestamp"] == "2027-01-15T08:00:00Z"
    wall.now += 200
    sender.add(POD, "Warning", "Refused", "no")
    assert server.wait(lambda: len(server.events()) == 2)
    sender.add(POD, "Warning", "Refused", "something else")
    assert server.wait(lambda: len(server.events()) == 3)


def test_a_repeat_of_an_event_that_the_server_forgot_is_sent_anew(server: ApiServer, sender: EventSender) -> None:
    sender.add(POD, "Warning", "Refused", "no")
    assert server.wait(server.events)
    assert sender.flush(PATIENCE_S)
    server.objects.delete(("events", "default", server.events()[0]["metadata"]["name"]))
    sender.add(POD, "Warning", "Refused", "no")
    assert server.wait(server.events)
    assert server.events()[0]["count"] == 2


def test_a_full_queue_drops_the_oldest_and_counts_repeats(server: ApiServer, sender: EventSender) -> None:
    server.pause()
    for number in range(300):
        sender.add(POD, "Warning", "Refused", f"no {number}")
        sender.add(POD, "Warning", "Refused", f"no {number}")
    server.resume()
    assert sender.flush(PATIENCE_S)
    dropped = sender.counts().dropped
    assert 40 <= dropped <= 45
    by_message = {event["message"]: event["count"] for event in server.events()}
    assert by_message["no 299"] == 2
    # The first may be on its way when its repeat is added, which then waits, and is dropped, by itself.
    was_sent_apart = by_message.get("no 0") == 1
    assert len(by_message) == 300 - dropped + was_sent_apart
