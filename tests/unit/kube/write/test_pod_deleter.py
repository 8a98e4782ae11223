"""Failed pods are deleted as they were judged, once, whatever the server does."""

import threading
from collections.abc import Callable, Iterator

import pytest

from gpuagent.domain.pods.failed_pod import FailedPod, Failure
from gpuagent.domain.pods.pod import Controller, PodName
from gpuagent.kube.api.client import Client
from gpuagent.kube.write.keyed_reconciler import Delays
from gpuagent.kube.write.pod_deleter import PodDeleter
from gpuagent.system.backoff import Backoff
from standin.api.objects import Json
from standin.api.server import ApiServer

OWNER = Controller("apps/v1", "ReplicaSet", "web", "rs-1")
FAILED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}


class Deletions:
    """What was told, in order; `wait` for something."""

    def __init__(self) -> None:
        self.pods: list[str] = []
        self.problems: list[str | None] = []
        self._changed = threading.Condition()

    def deleted(self, pod: FailedPod) -> None:
        with self._changed:
            self.pods.append(pod.name.name)
            self._changed.notify_all()

    def problem(self, problem: str | None) -> None:
        with self._changed:
            self.problems.append(problem)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 5), (self.pods, self.problems)


@pytest.fixture
def seen() -> Deletions:
    return Deletions()


@pytest.fixture
def deletions(client: Client, seen: Deletions, quick: Callable[[], Backoff]) -> Iterator[PodDeleter]:
    made = PodDeleter(client, seen.deleted, seen.problem, Delays(quick))
    made.start()
    yield made
    made.stop()


def create(server: ApiServer, name: str, **metadata: object) -> FailedPod:
    server.create_pod(name, {"aliyun.com/gpu": "1"})
    if metadata:
        server.patch_pod(name, {"metadata": metadata})
    return judged(server.patch_pod(name, {"status": FAILED}, subresource="status"))


def judged(pod: Json) -> FailedPod:
    meta = pod["metadata"]
    name = PodName(meta["namespace"], meta["name"])
    return FailedPod(name, meta["uid"], meta["resourceVersion"], OWNER, Failure.NO_DEVICES, "words")


def names(server: ApiServer) -> set[str]:
    return {pod["metadata"]["name"] for pod in server.pods()}


def test_those_that_are_wanted_go_and_no_other(server: ApiServer, deletions: PodDeleter, seen: Deletions) -> None:
    one, _, two = (create(server, name) for name in "abc")
    deletions.desire((one, two))
    seen.wait(lambda: len(seen.pods) == 2)
    assert seen.pods == ["a", "c"]
    assert names(server) == {"b"}
    assert server.requests["delete pods"] == 2


def test_a_pod_that_is_another_one_by_now_is_left_alone(
    server: ApiServer, deletions: PodDeleter, seen: Deletions
) -> None:
    changed, replaced, last = (create(server, name) for name in "abc")
    newest = judged(server.patch_pod("a", {"metadata": {"labels": {"kept": "yes"}}}))
    server.delete_pod("b")
    server.create_pod("b", {})
    deletions.desire((changed, replaced, last))
    seen.wait(lambda: seen.pods)
    assert seen.pods == ["c"]
    assert names(server) == {"a", "b"}
    assert seen.problems == []
    deletions.desire((newest,))
    seen.wait(lambda: seen.pods == ["c", "a"])


def test_a_pod_that_has_gone_is_no_problem(server: ApiServer, deletions: PodDeleter, seen: Deletions) -> None:
    gone, there = (create(server, name) for name in "ab")
    server.delete_pod("a")
    deletions.desire((gone, there))
    seen.wait(lambda: seen.pods == ["b"])
    assert seen.problems == []


def test_what_a_finalizer_keeps_is_asked_for_once(server: ApiServer, deletions: PodDeleter, seen: Deletions) -> None:
    kept = create(server, "kept", finalizers=["example.com/hold"])
    deletions.desire((kept,))
    seen.wait(lambda: seen.pods)
    there = server.pods()[0]["metadata"]
    assert there["deletionTimestamp"]
    deletions.desire((kept, create(server, "next")))
    seen.wait(lambda: len(seen.pods) == 2)
    assert server.requests["delete pods"] == 2


def test_a_missing_right_is_reported_once_and_what_waited_is_done_when_it_is_given(
    server: ApiServer, deletions: PodDeleter, seen: Deletions
) -> None:
    server.deny("delete", "pods")
    deletions.desire((create(server, "a"), create(server, "b")))
    seen.wait(lambda: seen.problems)
    assert server.wait(lambda: server.requests["delete pods"] >= 4)
    (problem,) = seen.problems
    assert problem is not None
    assert 'allow verb "delete" on resource "pods"' in problem
    assert "--clean-failed-pods" in problem
    server.allow("delete", "pods")
    seen.wait(lambda: len(seen.pods) == 2 and seen.problems[-1] is None)
    assert names(server) == set()


def test_a_problem_ends_with_the_pods_that_had_it(server: ApiServer, deletions: PodDeleter, seen: Deletions) -> None:
    server.deny("delete", "pods")
    deletions.desire((create(server, "a"),))
    seen.wait(lambda: seen.problems)
    deletions.desire(())
    seen.wait(lambda: seen.problems[-1] is None)


def test_one_that_is_refused_holds_up_no_other(seen: Deletions, quick: Callable[[], Backoff]) -> None:
    class Protects:
        def delete(self, path: str, body: object = None) -> Json:
            if path.endswith("/a"):
                raise RuntimeError("a webhook says no")
            return {}

    made = PodDeleter(Protects(), seen.deleted, seen.problem, Delays(quick))
    made.start()
    made.desire(tuple(FailedPod(PodName("x", n), n, "1", OWNER, Failure.REFUSED, "w") for n in "abc"))
    seen.wait(lambda: seen.pods == ["b", "c"])
    made.stop()


def test_a_server_that_is_away_is_asked_again(server: ApiServer, deletions: PodDeleter, seen: Deletions) -> None:
    pod = create(server, "a")
    server.stop()
    deletions.desire((pod,))
    seen.wait(lambda: seen.problems)
    server.start()
    seen.wait(lambda: seen.pods == ["a"] and seen.problems[-1] is None)
