"""The node and its pods are followed through everything the server can do."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.domain.pods.annotations import V1_GPU
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.kube.watch.follow import Follow
from gpuagent.kube.watch.node_watch import MOST_EARLIER, NodePods, Watcher
from gpuagent.kube.watch.stream import Watch
from gpuagent.system.backoff import Backoff
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.unit.kube.conftest import PostedEvents

Delays = Callable[[], Backoff]


@pytest.fixture
def watcher(client: Client, posted: "PostedEvents", quick: Delays) -> Iterator[Watcher]:
    """Not started."""
    made = Watcher(client, "n1", posted, resources=("aliyun.com/gpu-mem",), backoff=quick)
    yield made
    made.stop()


def labels(value: str | None) -> dict[str, str | None]:
    return {"ack.node.gpu.schedule": value}


def mode_is(value: str | None) -> Callable[[object], bool]:
    return lambda event: (
        isinstance(event, NodeSeen) and event.node["metadata"]["labels"].get("ack.node.gpu.schedule") == value
    )


def alive(watcher: Watcher) -> bool:
    return all(thread.is_alive() for thread in watcher.threads)


def test_first_look_then_every_change(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    watcher.start()
    assert posted.node().node["metadata"]["name"] == "n1"
    posted.pods(set())
    server.label_node(labels("cgpu"))
    posted.wait(mode_is("cgpu"))
    server.label_node(labels(None))
    posted.wait(mode_is(None), len(posted.events))


def test_pods_come_and_go_by_binding(
    server: ApiServer, client: Client, posted: "PostedEvents", watcher: Watcher
) -> None:
    server.create_pod("elsewhere", node="n2")
    watcher.start()
    posted.pods(set())
    server.create_pod("a", {"aliyun.com/gpu-mem": "4"}, labels={"app": "x"})
    pod = posted.pods({"a"}).pods[0]
    assert pod.containers[0].limits == {"aliyun.com/gpu-mem": 4}
    server.create_pod("b", node="")
    decided = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    binding = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "b", "annotations": decided}}
    client.create("/api/v1/namespaces/default/pods/b/binding", binding)
    bound = next(pod for pod in posted.pods({"a", "b"}).pods if pod.name.name == "b")
    assert bound.annotations == decided
    server.delete_pod("a")
    posted.pods({"b"})
    server.delete_pod("b", grace_s=None)
    posted.wait(lambda event: isinstance(event, PodsSeen) and any(pod.deleting for pod in event.pods))


def test_pods_of_a_list_come_by_age_and_later_ones_as_they_come() -> None:
    posted: list[PodsSeen] = []
    pods = NodePods("n", posted.append, lambda: 0.0, 0.0)  # type: ignore[arg-type]

    def pod(name: str, second: int, version: str = "") -> Pod:
        created = f"2026-01-01T00:00:{second:02}Z"
        meta = {"uid": name, "name": name, "creationTimestamp": created, "resourceVersion": version}
        return pods.read({"metadata": meta, "spec": {}, "status": {}})

    def order() -> tuple[str, set[str]]:
        """Names of the pods, and of those whose order is not certain."""
        seen = pods.seen()
        return "".join(pod.uid for pod in seen.pods), set(seen.unordered)

    pods.listed([pod("b", 2), pod("a", 3), pod("c", 1)])
    pods.changed("ADDED", pod("d", 0))
    pods.changed("MODIFIED", pod("a", 3))
    assert order() == ("cbad", {*"cba"})
    pods.listed([pod("a", 3), pod("d", 0), pod("f", 9)])
    assert order() == ("adf", {"a"}), "one that is alone came after those that the watch had shown"
    pods.listed([pod("a", 3), pod("d", 0), pod("f", 9), pod("h", 9), pod("g", 8)])
    assert order() == ("adfgh", {*"agh"})
    pods.listed([pod("h", 9, "100"), pod("i", 9, "99"), pod("g", 9, "9"), pod("j", 9, "x")])
    assert order() == ("ghji", {*"ghij"})


def test_a_pod_that_is_read_alone_has_no_place_before_the_watch_shows_it() -> None:
    pods = NodePods("n", lambda _: None, lambda: 0.0, 0.0)
    a, b, c, d = (pods.read({"metadata": {"uid": uid, "name": uid}, "spec": {}, "status": {}}) for uid in "abcd")

    def order() -> tuple[str, set[str]]:
        seen = pods.seen()
        return "".join(pod.uid for pod in seen.pods), set(seen.unordered)

    pods.fetched([c], 0)
    pods.listed([a, c])
    assert order() == ("ac", {*"ac"})
    pods.fetched([d], 1)
    pods.changed("ADDED", b)
    assert order() == ("acbd", {*"acd"})
    pods.changed("ADDED", d)
    assert order() == ("acbd", {*"ac"})
    pods.fetched([pods.read({"metadata": {"uid": "e"}})], 1)
    pods.changed("DELETED", a)
    pods.listed([b, c])
    assert order() == ("cb", {"c"})


@pytest.mark.parametrize(
    "how", ["deleted", "listed without it", "decided on again", "listed with another decision", "labeled", "refused"]
)
@pytest.mark.parametrize("first", ["shown", "read alone", "listed"])
def test_each_pod_is_posted_as_it_was_first_seen_also_if_it_is_gone_or_edited_at_once(first: str, how: str) -> None:
    """Kubelet may still admit the pod, and what a tenant writes later does not count as a decision."""
    pods = NodePods("n", lambda _: None, lambda: 0.0, 0.0)

    def pod(name: str, gpu: str, labels: dict[str, str] | None = None, phase: str = "Pending") -> Pod:
        meta = {"uid": f"uid-{name}", "name": name, "annotations": {V1_GPU: gpu}, "labels": labels or {}}
        return pods.read({"metadata": meta, "spec": {}, "status": {"phase": phase}})

    def posted() -> list[dict[str, str]]:
        events = [event for event in pods.take() if isinstance(event, PodsSeen)]
        return [{seen.name.name: seen.annotations.get(V1_GPU, "ended") for seen in event.pods} for event in events]

    pods.listed([pod("other", "0")])
    assert posted() == [{"other": "0"}]
    match first:
        case "shown":
            pods.changed("ADDED", pod("a", "1"))
        case "read alone":
            pods.fetched([pod("a", "1")], pods.lists)
        case "listed":
            pods.listed([pod("other", "0"), pod("a", "1")])
    match how:
        case "deleted":
            pods.changed("DELETED", pod("a", "1"))
        case "listed without it":
            pods.listed([pod("other", "0")])
        case "decided on again":
            pods.changed("MODIFIED", pod("a", "7"))
        case "listed with another decision":
            pods.listed([pod("other", "0"), pod("a", "7")])
        case "labeled":
            pods.changed("MODIFIED", pod("a", "7", {GPU_COUNT_LABEL: "2"}))
        case "refused":
            pods.changed("MODIFIED", pod("a", "7", phase="Failed"))
    now = {"other": "0", "a": "ended" if how == "refused" else "7"}
    if how in {"deleted", "listed without it"}:
        del now["a"]
    assert posted() == [{"other": "0", "a": "1"}, now]
    pods.changed("MODIFIED", pod("other", "5"))
    pods.changed("DELETED", pod("other", "5"))
    now.pop("other")
    assert posted() == [now], "what was posted once is not posted as it was"


def test_pods_that_come_and_go_cost_a_bounded_number_of_states() -> None:
    """A tenant may create and delete pods for this node in a loop."""
    pods = NodePods("n", lambda _: None, lambda: 0.0, 0.0)
    for number in range(10 * MOST_EARLIER):
        pod = pods.read({"metadata": {"uid": f"uid-{number}", "name": "a"}, "spec": {}, "status": {}})
        pods.changed("ADDED", pod)
        pods.changed("DELETED", pod)
    assert len(pods.take()) == MOST_EARLIER + 1


def test_a_pod_is_read_before_the_watch_shows_it(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    """Kubelet lists a pod that it heard of first."""
    watcher.start()
    posted.pods(set())
    shown = PodName("default", "shown")
    server.create_pod(shown.name, node="n1")
    posted.wait(lambda event: isinstance(event, PodsSeen) and [pod.name for pod in event.pods] == [shown])
    uid = server.pods()[0]["metadata"]["uid"]
    assert watcher.fetch([shown, PodName("default", "absent")]) == {uid}
    assert watcher.fetch(None) == {uid}
    server.deny("list", "pods")
    assert watcher.fetch([shown]) is None, "a static pod is only one that the API server does not have"


def test_a_pod_that_was_read_is_known_once_and_does_not_outlive_its_deletion() -> None:
    posted: list[PodsSeen] = []
    pods = NodePods("n", posted.append, lambda: 0.0, 0.0)  # type: ignore[arg-type]
    early, late = (pods.read({"metadata": {"uid": uid, "name": uid}, "spec": {}, "status": {}}) for uid in "ab")
    assert pods.fetched([early], 0) == {"a"}
    pods.changed("ADDED", early)
    assert list(pods.known) == ["a"]
    pods.changed("DELETED", late)
    assert pods.fetched([late], 0) == set()
    assert list(pods.known) == ["a"]


def test_pods_that_are_read_before_the_list_are_not_all_pods(
    server: ApiServer, posted: "PostedEvents", watcher: Watcher
) -> None:
    """Nor does a read show that the watch goes on again."""
    for name in ("early", "other"):
        server.create_pod(name, node="n1")
    server.hold_lists("pods")
    watcher.start()
    watcher.fetch([PodName("default", "early")])
    seen = posted.pods({"early"})
    assert not seen.complete
    assert not seen.followed
    server.resume()
    seen = posted.pods({"early", "other"})
    assert seen.complete
    assert seen.followed


def test_a_read_of_all_pods_before_the_list_is_complete() -> None:
    posted: list[PodsSeen] = []
    pods = NodePods("n", posted.append, lambda: 0.0, 0.0)  # type: ignore[arg-type]
    assert pods.fetched([], 0, complete=True) == set()
    threading.Thread(target=pods.run, daemon=True).start()
    while not posted:
        time.sleep(0.01)
    pods.stop()
    assert (posted[0].complete, posted[0].followed) == (True, False)


@pytest.mark.parametrize("there", [True, False])
def test_a_pod_that_was_read_before_a_list_and_arrives_after_it_is_read_again(
    server: ApiServer,
    client: Client,
    posted: "PostedEvents",
    watcher: Watcher,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
) -> None:
    """The list has it no more, and no watch from there on shows its deletion."""
    server.create_pod("a", node="n1")
    uid = server.pods()[0]["metadata"]["uid"]
    page = client.page

    def late(path: str, params: Any = None) -> Any:
        monkeypatch.undo()
        metadata, items = page(path, params)
        found = list(items)
        if not there:
            server.delete_pod("a")
        watcher.pods.listed([])
        return metadata, iter(found)

    monkeypatch.setattr(client, "page", late)
    assert watcher.fetch([PodName("default", "a")]) == ({uid} if there else set())
    assert set(watcher.pods.known) == ({uid} if there else set())


def test_a_burst_of_pods_is_few_posts_and_the_last_is_whole(
    server: ApiServer, client: Client, posted: "PostedEvents"
) -> None:
    burst_s = 0.2
    watcher = Watcher(client, "n1", posted, burst_s=burst_s)
    watcher.start()
    posted.pods(set())
    began = time.monotonic()
    names = {f"p{number}" for number in range(100)}
    for name in names:
        server.create_pod(name)
    posted.pods(names)
    assert sum(isinstance(event, PodsSeen) for event in posted.events) <= 3 + (time.monotonic() - began) / burst_s
    watcher.stop()


def test_a_broken_watch_is_taken_up_again(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    watcher.start()
    posted.node()
    posted.pods(set())
    assert server.wait(lambda: len(server.watches) == 2)
    mark = len(posted.events)
    server.drop_watches()
    posted.unavailable("watching node n1: the API server http://127.0.0.1", mark)
    posted.node(mark)
    server.label_node(labels("share"))
    posted.wait(mode_is("share"))


def test_an_expired_version_is_listed_again_without_alarm(
    server: ApiServer, tmp_path: Path, posted: "PostedEvents", quick: Delays
) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_s=1))
    watcher = Watcher(client, "n1", posted, backoff=quick)
    watcher.start()
    posted.node()
    assert server.wait(lambda: len(server.watches) == 2)
    mark = len(posted.events)
    server.expire()
    posted.node(mark)
    assert server.requests["list nodes"] == 2
    assert not [event for event in posted.events if isinstance(event, ApiUnavailable)]
    watcher.stop()


def test_a_watch_that_ends_goes_on_without_listing(
    server: ApiServer, tmp_path: Path, posted: "PostedEvents", quick: Delays
) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_s=0))
    watcher = Watcher(client, "n1", posted, backoff=quick)
    watcher.start()
    assert server.wait(lambda: server.requests["watch nodes"] >= 4)
    server.label_node(labels("mps"))
    posted.wait(mode_is("mps"))
    watcher.stop()
    assert server.requests["list nodes"] == 1


def test_a_silent_peer_surfaces_and_recovers(
    server: ApiServer, tmp_path: Path, posted: "PostedEvents", quick: Delays
) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_silence_s=0.2))
    watcher = Watcher(client, "n1", posted, backoff=quick)
    server.silence()
    watcher.start()
    posted.unavailable("watching node n1: ")
    server.label_node(labels("topology"))
    posted.wait(mode_is("topology"))  # by listing again, though the watches stay silent
    server.resume()
    watcher.stop()


def test_pause_and_resume_kill_no_thread(
    server: ApiServer, client: Client, posted: "PostedEvents", watcher: Watcher
) -> None:
    client.timeouts = Timeouts(call_s=0.3)
    server.pause()
    watcher.start()
    posted.unavailable("watching node n1: ")
    posted.unavailable("watching pods of node n1: ")
    assert alive(watcher)
    client.timeouts = Timeouts(call_s=PATIENCE_S)
    server.resume()
    posted.node()
    posted.pods(set())
    assert alive(watcher)


def test_a_reason_is_reported_once_until_recovery(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    server.stop()
    watcher.start()
    posted.unavailable("watching node n1: ")
    server.start()
    posted.node()
    found = [event for event in posted.events if isinstance(event, ApiUnavailable) and "watching node" in event.reason]
    assert len(found) == 1
    mark = len(posted.events)
    server.stop()
    posted.unavailable("watching node n1: ", mark)


def test_rbac_may_refuse_pods_alone(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    server.deny("list", "pods")
    watcher.start()
    posted.node()
    posted.unavailable('watching pods of node n1: RBAC refuses: allow verb "list" on resource "pods"')
    server.label_node(labels("cgpu"))
    posted.wait(mode_is("cgpu"))
    server.allow("list", "pods")
    posted.pods(set())


def test_a_missing_node_is_reported_and_noticed_when_it_comes(
    server: ApiServer, client: Client, posted: "PostedEvents", quick: Delays
) -> None:
    watcher = Watcher(client, "n9", posted, backoff=quick)
    watcher.start()
    posted.unavailable("node n9 does not exist at the API server; check --node-name")
    client.create("/api/v1/nodes", {"metadata": {"name": "n9"}})
    posted.node()
    mark = len(posted.events)
    server.objects.delete(("nodes", "", "n9"))
    posted.unavailable("node n9 does not exist", mark)
    watcher.stop()


def test_a_missing_configuration_is_reported_and_noticed_when_it_comes(
    server: ApiServer, tmp_path: Path, posted: "PostedEvents", quick: Delays
) -> None:
    watcher = Watcher(Client(str(tmp_path / "late")), "n1", posted, backoff=quick)
    watcher.start()
    posted.unavailable("late cannot be read")
    server.write_kubeconfig(tmp_path / "late")
    posted.node()
    watcher.stop()


def test_a_bug_behind_post_does_not_end_the_watch(
    server: ApiServer, client: Client, posted: "PostedEvents", quick: Delays
) -> None:
    failures = iter([ValueError("odd")])

    def post(event: NodeSeen | PodsSeen | ApiUnavailable) -> None:
        if isinstance(event, NodeSeen) and (failure := next(failures, None)):
            raise failure
        posted(event)

    watcher = Watcher(client, "n1", post, backoff=quick)
    watcher.start()
    posted.unavailable("unexpected: ValueError: odd")
    posted.node()
    watcher.stop()
    assert server.url


@pytest.mark.parametrize(
    ("kubelet", "listed"),
    [
        ("v1.36.3", {"runs"}),
        ("v1.34.0", {"runs"}),
        ("v1.33.9", {"runs", "failed", "done"}),  # it may list what they held
        ("", {"runs", "failed", "done"}),
    ],
)
def test_pods_that_ended_before_are_not_listed_and_those_that_end_later_are_reported(  # noqa: PLR0913
    server: ApiServer,
    client: Client,
    posted: "PostedEvents",
    quick: Delays,
    kubelet: str,
    listed: set[str],
) -> None:
    server.patch_node_status({"nodeInfo": {"kubeletVersion": kubelet}})

    def end(name: str, phase: str) -> None:
        server.patch_pod(name, {"status": {"phase": phase}}, subresource="status")

    for name in ("runs", "done", "failed"):
        server.create_pod(name)
    end("done", "Succeeded")
    end("failed", "Failed")
    watcher = Watcher(client, "n1", posted, backoff=quick)
    watcher.start()
    posted.pods(listed)
    assert server.wait(lambda: len(server.watches) == 2)
    server.create_pod("new")
    end("runs", "Succeeded")
    end("new", "Failed")
    seen = posted.wait(
        lambda event: isinstance(event, PodsSeen) and sum(pod.ended for pod in event.pods) == 1 + len(listed)
    )
    assert {pod.name.name for pod in seen.pods} == {*listed, "new"}
    server.delete_pod("runs")
    posted.pods({*listed, "new"} - {"runs"})
    watcher.stop()


def test_an_object_that_cannot_be_taken_is_left_out_and_the_others_are_followed(
    server: ApiServer, posted: "PostedEvents", watcher: Watcher, caplog: pytest.LogCaptureFixture
) -> None:
    server.create_pod("before")
    odd = server.create_pod("odd")
    server.objects.stored(("pods", "default", "odd"))["metadata"]["uid"] = ""
    watcher.start()
    posted.pods({"before"})
    assert server.wait(lambda: len(server.watches) == 2)
    opened = server.requests["watch pods"]
    for number in range(10):
        server.patch_pod("odd", {"metadata": {"labels": {"n": str(number)}}})
    server.create_pod("after")
    posted.pods({"before", "after"})
    assert server.requests["watch pods"] == opened
    assert server.requests["list pods"] == 1
    found = [record for record in caplog.records if record.getMessage() == "Left out an object"]
    assert [(record.object, record.exc_info) for record in found] == [("default/odd", None)]  # type: ignore[attr-defined]
    assert odd["metadata"]["uid"]


def test_the_deletion_of_an_object_that_cannot_be_read_is_found_out_by_a_list(
    server: ApiServer, posted: "PostedEvents", watcher: Watcher
) -> None:
    server.create_pod("stays")
    server.create_pod("goes")
    watcher.start()
    posted.pods({"stays", "goes"})
    assert server.wait(lambda: len(server.watches) == 2)
    server.objects.stored(("pods", "default", "goes"))["metadata"]["uid"] = ""
    mark = len(posted.events)
    server.delete_pod("goes")
    posted.pods({"stays"}, mark)
    assert server.requests["list pods"] == 2


def test_a_failure_that_stays_leaves_one_trace_in_the_log(
    client: Client, posted: "PostedEvents", quick: Delays, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[object] = []

    def post(event: NodeSeen | PodsSeen | ApiUnavailable) -> None:
        posted(event)
        if isinstance(event, NodeSeen):
            tries.append(event)
            raise ValueError("odd")

    watcher = Watcher(client, "n1", post, backoff=quick)
    watcher.start()
    posted.wait(lambda _: len(tries) > 3)
    watcher.stop()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["Failed to follow objects"]


def test_a_watch_that_breaks_at_once_again_and_again_is_opened_ever_more_seldom() -> None:
    """Also where something good came on it each time."""

    class Broken:
        def page(self, *_: object) -> tuple[dict[str, str], Iterator[dict[str, Any]]]:
            return {"resourceVersion": "1"}, iter(())

        def watch(self, *_: object) -> Watch:
            good = {"type": "ADDED", "object": {"metadata": {"uid": "u", "name": "p"}}}
            return Watch(Body([json.dumps(good).encode() + b"\n", b"5\n"]), lambda err: KubeError(str(err)))

    class Body:
        def __init__(self, pieces: list[bytes]) -> None:
            self.pieces = pieces

        def stream(self, *_: object, **__: object) -> Iterator[bytes]:
            return iter(self.pieces)

        def shutdown(self) -> None:
            """Nothing to end."""

        close = shutdown

    asked: list[float] = []

    class Delays(Backoff):
        def next_s(self) -> float:
            asked.append(super().next_s())
            if len(asked) == 8:
                follow.stop()
            return 0.0

    pods = NodePods("n", lambda _: None, lambda: 0.0, 0.0)
    follow = Follow(Broken(), "/api/v1/pods", "", pods, Delays(first_s=1.0, limit_s=64.0, spread=lambda: 0.5))
    follow.run()
    assert asked[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def test_lists_come_in_pages(
    server: ApiServer, tmp_path: Path, posted: "PostedEvents", quick: Delays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an expired version, that is: from its cache a server answers with everything at once."""
    monkeypatch.setattr("gpuagent.kube.api.pages.PAGE", 3)
    names = {f"p{n}" for n in range(8)}
    for name in names:
        server.create_pod(name)
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_s=1))
    watcher = Watcher(client, "n1", posted, backoff=quick)
    watcher.start()
    posted.pods(names)
    assert server.requests["list pods"] == 1
    assert server.wait(lambda: len(server.watches) == 2)
    mark = len(posted.events)
    server.expire()
    posted.pods(names, mark)
    assert server.requests["list pods"] == 1 + 3
    watcher.stop()


def test_stop_is_quick_and_before_start_harmless(client: Client, posted: "PostedEvents") -> None:
    Watcher(client, "n1", posted).stop()
    watcher = Watcher(client, "n1", posted)
    watcher.start()
    posted.node()
    watcher.stop(PATIENCE_S)  # a watch lasts longer by itself
    assert not any(thread.is_alive() for thread in watcher.threads)


def test_objects_are_trimmed(server: ApiServer, posted: "PostedEvents", watcher: Watcher) -> None:
    server.patch_node_status({"images": [{"names": ["x"]}], "volumesAttached": [{"name": "v"}]})
    large = {"metadata": {"annotations": {"example.com/notes": "x" * 100_000}}}
    server.objects.patch(("nodes", "", "n1"), "", large, strategic=False)
    server.create_pod("a", annotations={"example.com/notes": "x" * 100_000})
    watcher.start()
    node = posted.node().node
    assert node["status"].keys() == {"capacity", "allocatable", "conditions", "nodeInfo"}
    assert len(json.dumps(node)) < 2000
    assert posted.pods({"a"}).pods[0].annotations == {}
