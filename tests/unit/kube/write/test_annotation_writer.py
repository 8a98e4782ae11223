"""Pods get the annotations they need, whatever others and the server do; each write against the version it follows from."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.reconcile.pod_annotations import PodWrite
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.kube.watch.node_watch import Watcher
from gpuagent.kube.write.annotation_writer import AnnotationWriter
from gpuagent.kube.write.keyed_reconciler import Delays
from gpuagent.system.backoff import Backoff
from standin.api.objects import Json
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

KEY = "ALIYUN_COM_GPU_MEM_IDX"
PATCH = "patch pods"


class WriterUnderTest:
    """What a core would do that wants GPU 1 named on every pod: pods in by a watch, writes out."""

    def __init__(self, client: Client, quick: Callable[[], Backoff], **named: Any) -> None:
        self.problems: list[str | None] = []
        self.updated = threading.Event()
        delays = Delays(**{"backoff": quick, "pace": quick, **named})
        self.writer = AnnotationWriter(client, self.problems.append, wall_ns=lambda: 17, delays=delays)
        self.watcher = Watcher(client, "n1", self.post, burst_s=0.01, backoff=quick)
        self.conflicts = 0

    def post(self, event: NodeSeen | PodsSeen | ApiUnavailable) -> None:
        if isinstance(event, PodsSeen):
            self.writer.desire([write(pod) for pod in event.pods if pod.annotations.get(KEY) != "1"])
            self.updated.set()
        elif isinstance(event, NodeSeen):
            self.writer.nudge()


class SilentWatchServer:
    """A server that takes every write, and a watch that shows none of them."""

    def __init__(self) -> None:
        self.writes = 0
        self.written = threading.Condition()

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        with self.written:
            self.writes += 1
            self.written.notify_all()
        return {}


def test_a_write_that_the_watch_does_not_show_is_tried_again() -> None:
    server = SilentWatchServer()
    writer = AnnotationWriter(server, wall_ns=lambda: 17, delays=Delays(recheck_s=0.05))
    writer.desire([PodWrite(PodName("ml", "a"), "uid-a", "1", {KEY: "1"})])
    writer.start()
    try:
        with server.written:
            assert server.written.wait_for(lambda: server.writes > 1, PATIENCE_S)
    finally:
        writer.stop()


def test_an_author_who_edits_a_pod_again_and_again_causes_few_writes_and_events() -> None:
    """The delay doubles with each write, so their number grows with the logarithm of the time."""
    server, reported = SilentWatchServer(), list[PodWrite]()
    writer = AnnotationWriter(server, on_corrected=reported.append)
    writer.start()
    began = time.monotonic()
    try:
        for version in range(500):
            texts = (f"annotation says {version}",)
            writer.desire([PodWrite(PodName("ml", "a"), "uid-a", str(version), {KEY: "1"}, corrections=texts)])
            with server.written:
                server.written.wait(0.002)
            if version % 2:
                writer.desire([])  # the watch shows a correction
    finally:
        writer.stop()
    most = math.log2((time.monotonic() - began) / 0.0375 + 1) + 2
    assert 1 <= server.writes <= most
    assert len(reported) == server.writes


def write(pod: Pod | Json, text: str = "1", *, stamped: bool = False) -> PodWrite:
    pod = pod if isinstance(pod, Pod) else parse_pod(pod)
    return PodWrite(pod.name, pod.uid, pod.version, {KEY: text}, stamped)


def annotation(pod: Json) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(KEY)
    return found


def right(server: ApiServer) -> bool:
    return all(annotation(pod) == "1" for pod in server.pods())


@pytest.fixture
def make(client: Client, quick: Callable[[], Backoff]) -> Iterator[Callable[..., WriterUnderTest]]:
    """Makes and starts; ends with the test."""
    made: list[WriterUnderTest] = []

    def make(api: Any = client, *, first: Iterable[PodWrite] = (), **named: Any) -> WriterUnderTest:
        made.append(WriterUnderTest(api, quick, **named))
        made[-1].writer.desire(first)  # of an older view than any that the watch brings
        made[-1].writer.start()
        made[-1].watcher.start()
        return made[-1]

    yield make
    for tested in made:
        tested.watcher.stop()
        tested.writer.stop()


def test_every_pod_is_written_once(server: ApiServer, make: Callable[..., WriterUnderTest]) -> None:
    for n in range(5):
        server.create_pod(f"p{n}", annotations={"theirs": "x"})
    tested = make()
    assert server.wait(lambda: right(server))
    assert tested.writer.flush(PATIENCE_S)
    for n in range(5):  # each change of each pod comes back by the watch
        server.patch_pod(f"p{n}", {"metadata": {"labels": {"a": "b"}}})
    assert tested.writer.flush(PATIENCE_S)
    assert server.requests[PATCH] == 5
    assert all(pod["metadata"]["annotations"]["theirs"] == "x" for pod in server.pods())
    assert tested.problems == []


def test_the_time_of_the_write_is_stamped(server: ApiServer, client: Client, quick: Callable[[], Backoff]) -> None:
    writer = AnnotationWriter(client, wall_ns=lambda: 17, delays=Delays(quick, quick))
    writer.start()
    try:
        writer.desire([write(server.create_pod("p"), stamped=True)])
        stamped = {KEY: "1", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "17"}
        assert server.wait(lambda: server.pods()[0]["metadata"]["annotations"] == stamped)
    finally:
        writer.stop()


def test_a_write_that_somebody_outran_is_worked_out_anew(
    server: ApiServer, make: Callable[..., WriterUnderTest]
) -> None:
    pod = server.create_pod("p")
    server.patch_pod("p", {"metadata": {"annotations": {KEY: "2"}}})
    tested = make(first=[write(pod, "of an old pod")])
    assert server.wait(lambda: right(server))
    assert tested.problems == []


def test_an_old_view_of_a_pod_changes_nothing(server: ApiServer, client: Client, quick: Callable[[], Backoff]) -> None:
    old = server.create_pod("p")
    server.patch_pod("p", {"metadata": {"labels": {"a": "b"}}})
    now = server.pods()[0]
    writer = AnnotationWriter(client, delays=Delays(quick, quick))
    writer.start()
    try:
        writer.desire([write(old)])
        assert server.wait(lambda: server.requests[PATCH])
        writer.desire([write(old)])
        assert server.pods()[0] == now
        writer.desire([write(now)])  # as the watch brings it
        assert server.wait(lambda: right(server))
        assert server.requests[PATCH] == 2
    finally:
        writer.stop()


def test_a_storm_of_other_writes_is_outlived(server: ApiServer, make: Callable[..., WriterUnderTest]) -> None:
    names = [f"p{n}" for n in range(4)]
    for name in names:
        server.create_pod(name)
    over = threading.Event()

    def storm() -> None:
        n = 0
        while not over.wait(0.02):
            n += 1
            server.patch_pod(names[n % 4], {"metadata": {"labels": {"n": str(n)}}})

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        tested = make()
        assert server.wait(lambda: right(server))
    finally:
        over.set()
        thread.join()
    assert tested.writer.flush(PATIENCE_S)
    assert tested.problems == []


def test_somebody_who_writes_otherwise_again_and_again_is_answered_ever_more_slowly(
    server: ApiServer, make: Callable[..., WriterUnderTest]
) -> None:
    server.create_pod("p")
    make(pace=lambda: Backoff(first_s=0.01, limit_s=60.0, spread=lambda: 0.5))
    for _ in range(4):
        assert server.wait(lambda: right(server))
        server.patch_pod("p", {"metadata": {"annotations": {KEY: "2"}}})
    assert server.wait(lambda: right(server))
    # Each answer waited twice as long as the one before: 10, 20, 40 and 80 ms of the five.
    assert server.requests[PATCH] == 5


def test_a_server_that_was_away_gets_every_write(server: ApiServer, make: Callable[..., WriterUnderTest]) -> None:
    pods = [server.create_pod(f"p{n}") for n in range(20)]
    server.stop()
    tested = make(backoff=lambda: Backoff(first_s=0.02, limit_s=600.0))
    tested.writer.desire([write(pod) for pod in pods])
    assert server.wait(lambda: tested.problems)
    server.start()
    assert server.wait(lambda: right(server))
    assert tested.writer.flush(PATIENCE_S)
    assert server.wait(lambda: tested.problems[-1] is None)
    assert "annotations of pod default/p" in str(tested.problems[0])


def test_a_refused_write_is_reported_with_the_right_it_needs_and_holds_up_no_other(
    server: ApiServer, make: Callable[..., WriterUnderTest]
) -> None:
    server.deny("patch", "pods")
    for n in range(3):
        server.create_pod(f"p{n}")
    tested = make()
    assert server.wait(lambda: server.requests[PATCH] > 6)
    server.allow("patch", "pods")
    assert server.wait(lambda: right(server))
    assert tested.writer.flush(PATIENCE_S)
    assert server.wait(lambda: tested.problems[-1:] == [None])
    assert len(tested.problems) <= 4  # one pod's refusal, as long as it stands
    assert 'allow verb "patch" on resource "pods"' in str(tested.problems[0])


def test_a_pod_that_went_is_nothing_to_report(server: ApiServer, client: Client, quick: Callable[[], Backoff]) -> None:
    gone = server.create_pod("gone")
    server.delete_pod("gone")
    there = server.create_pod("there")
    problems: list[str | None] = []
    writer = AnnotationWriter(client, problems.append, delays=Delays(quick, quick))
    writer.start()
    try:
        writer.desire([write(gone), write(there)])
        assert server.wait(lambda: right(server))
        writer.desire([])
        assert writer.flush(PATIENCE_S)
        assert problems == []
        assert server.requests[PATCH] == 2
    finally:
        writer.stop()


def test_a_pod_made_again_is_not_written_for_the_one_before(
    server: ApiServer, client: Client, quick: Callable[[], Backoff]
) -> None:
    before = server.create_pod("p")
    server.delete_pod("p")
    server.create_pod("p")
    writer = AnnotationWriter(client, delays=Delays(quick, quick))
    writer.start()
    try:
        writer.desire([write(before)])
        assert server.wait(lambda: server.requests[PATCH])
        assert annotation(server.pods()[0]) is None
    finally:
        writer.stop()


def test_a_bug_does_not_end_the_thread(server: ApiServer, client: Client, quick: Callable[[], Backoff]) -> None:
    class Broken:
        fail = True

        def patch(self, path: str, body: Json) -> Json:
            if self.fail:
                self.fail = False
                raise RuntimeError("a bug")
            return client.patch(path, body)

    pod = server.create_pod("p")
    problems: list[str | None] = []
    writer = AnnotationWriter(Broken(), problems.append, delays=Delays(quick, quick))
    writer.start()
    try:
        writer.desire([write(pod)])
        assert server.wait(lambda: right(server))
        assert "RuntimeError: a bug" in str(problems[0])
    finally:
        writer.stop()


def test_it_stops_at_once_before_its_start_and_under_a_silent_server(server: ApiServer, tmp_path: Path) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "k")), Timeouts(connect_s=PATIENCE_S, call_s=PATIENCE_S))
    AnnotationWriter(client).stop()
    pod = server.create_pod("p")
    server.pause()
    writer = AnnotationWriter(client)
    writer.start()
    writer.desire([write(pod)])
    writer.stop(0.1)
    server.resume()
    client.close()
