"""The client of the helper for memory limits, against a helper on a real socket."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from gpuagent.host import limits_client
from gpuagent.host.limits_client import (
    NO_LIMIT,
    BadRequestError,
    BelowUseError,
    Description,
    HelperGoneError,
    Limit,
    LimitDriverError,
    LimitsClient,
    LimitsError,
    NoTargetError,
    RefusedError,
    Target,
)
from standin.waiting import PATIENCE_S
from tests.fake_limits_helper import GPU_0, FakeLimitsHelper

POD = "11111111-2222-4333-8444-555555555555"
LEAF = "a" * 64
GIB = 1 << 30


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[FakeLimitsHelper]:
    with FakeLimitsHelper(tmp_path / "limits.sock") as helper:
        yield helper


@pytest.fixture
def client(helper: FakeLimitsHelper) -> Iterator[LimitsClient]:
    with closing(LimitsClient(helper.path, deadline_s=PATIENCE_S)) as client:
        yield client


def test_what_was_set_is_read_back(client):
    pod = Target(GPU_0, POD)
    assert client.get(pod) == Limit(None, 0)
    assert client.set(pod, 8 * GIB) == Limit(8 * GIB, 0)
    assert client.get(pod) == Limit(8 * GIB, 0)
    assert client.set(Target(GPU_0, POD, LEAF), NO_LIMIT) == Limit(None, 0)


def test_another_process_of_the_helper_is_noticed(helper, client):
    pod = Target(GPU_0, POD)
    client.get(pod)
    assert client.connections_lost == 0
    helper.stop()
    helper.start()
    client.get(pod)
    assert client.connections_lost == 1


def test_description(helper, client):
    helper.gpus["GPU-x"] = "MIG is on"
    helper.problem = "the driver is older than 615"
    assert client.describe() == Description(
        driver="615.71.09",
        pods_root=Path("/sys/fs/cgroup/kubepods"),
        backend="dmem",
        gpus={GPU_0: None, "GPU-x": "MIG is on"},
        problem="the driver is older than 615",
    )


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("NotFound", NoTargetError),
        ("Refused", RefusedError),
        ("DriverError", LimitDriverError),
        ("BadRequest", BadRequestError),
        ("BelowUse", BelowUseError),
        ("of a later version", LimitsError),
    ],
)
def test_errors_have_the_helpers_sentence(helper, client, kind, error):
    pod = Target(GPU_0, POD)
    helper.errors[pod] = (kind, "a sentence\x1b[2J")
    with pytest.raises(error, match=r"^a sentence.\[2J$"):
        client.get(pod)
    helper.errors.clear()
    assert client.get(pod) == Limit(None, 0), "the connection goes on"


def test_a_limit_below_the_use_says_how_much_is_used(helper, client):
    pod = Target(GPU_0, POD)
    helper.used[pod] = 3 * GIB
    with pytest.raises(BelowUseError) as caught:
        client.set(pod, 2 * GIB)
    assert caught.value.used == 3 * GIB


def test_many_are_read_with_few_waits(helper, client):
    targets = [Target(GPU_0, POD, f"{number:064x}") for number in range(300)]
    for number, target in enumerate(targets):
        helper.limits[target] = number + 1
    helper.errors[targets[7]] = ("NotFound", "its container has ended")
    results = client.get_many(targets)
    assert list(results) == targets
    assert isinstance(results.pop(targets[7]), NoTargetError)
    for target, limit in results.items():
        assert limit == Limit(helper.limits[target], 0)


def test_nothing_is_asked_for_nothing(helper, client):
    assert client.get_many([]) == {}
    assert helper.requests == []


def test_without_a_helper(tmp_path):
    client = LimitsClient(tmp_path / "limits.sock")
    for call in (
        client.describe,
        lambda: client.get(Target(GPU_0, POD)),
        lambda: client.get_many([Target(GPU_0, POD)]),
    ):
        with pytest.raises(
            HelperGoneError, match=r"no helper .* answers at .*limits\.sock \(No such file or directory\)"
        ):
            call()


def test_a_restarted_helper_is_found_again(helper, client):
    pod = Target(GPU_0, POD)
    for _ in range(3):
        client.get(pod)
        helper.stop()
        helper.start()
    assert client.get(pod) == Limit(None, 0)
    helper.stop()
    with pytest.raises(HelperGoneError):
        client.get(pod)


def test_a_helper_that_hangs(helper):
    helper.answering.clear()
    with closing(LimitsClient(helper.path, deadline_s=0.05)) as client:
        with pytest.raises(HelperGoneError, match="hangs: no answer for 0.05 s"):
            client.describe()
        helper.answering.set()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                # A late answer to the first call is not taken for the answer to this one.
                assert client.get(Target(GPU_0, POD)) == Limit(None, 0)
                break
            except HelperGoneError:
                assert time.monotonic() < deadline


def test_a_helper_that_takes_no_connections(tmp_path):
    path = tmp_path / "limits.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            with pytest.raises(HelperGoneError, match="hangs: no answer for 0.05 s"):
                LimitsClient(path, deadline_s=0.05).describe()


def test_a_call_that_waits_delays_no_other(helper, client):
    helper.answering.clear()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.get, Target(GPU_0, POD))
        others = [threads.submit(client.get, Target(GPU_0, POD, LEAF)) for _ in range(3)]
        deadline = time.monotonic() + PATIENCE_S
        while len(helper.requests) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        helper.answering.set()
        assert [future.result() for future in (waiting, *others)] == [Limit(None, 0)] * 4


def test_each_thread_gets_its_own_answers(helper, client):
    def check(number: int) -> None:
        targets = [Target(GPU_0, POD, f"{number * 100 + other:064x}") for other in range(40)]
        for size, target in enumerate(targets, start=number * 1000 + 1):
            assert client.set(target, size) == Limit(size, 0)
        results = client.get_many(targets)
        expected = [Limit(size, 0) for size in range(number * 1000 + 1, number * 1000 + 41)]
        assert list(results.values()) == expected

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(check, number) for number in range(16)]:
            future.result()


@contextmanager
def program_that_answers(path: Path, answer: bytes) -> Iterator[None]:
    """Something else at the helper's path: it answers each connection with the same bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(ConnectionError):
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"[]\n",
        b"null\n",
        b"[" * 5000 + b"\n",
        b'{"ok": true}\n',
        b'{"ok": true, "hard": "x", "used": []}\n',
        b'{"ok": true, "hard": Infinity, "used": 0}\n',
        b'{"ok": true, "hard": true, "used": 0}\n',
        b'{"ok": true, "hard": 1.5, "used": 0}\n',
        b'{"ok": true, "hard": 1, "used": -1}\n',
        b'{"ok": true, "gpus": [], "pods_root": 3, "driver": null, "backend": null, "problem": null}\n',
        b"\xff\xfe\n",
        b'{"ok": true',
        b"x" * (limits_client.MOST_ANSWER + 2),
    ],
)
def test_another_program_at_the_path_is_an_error_of_the_family(tmp_path, answer):
    path = tmp_path / "limits.sock"
    with program_that_answers(path, answer), closing(LimitsClient(path, deadline_s=PATIENCE_S)) as client:
        for call in (
            client.describe,
            lambda: client.get(Target(GPU_0, POD)),
            lambda: client.set(Target(GPU_0, POD), 1),
        ):
            with pytest.raises(LimitsError):
                call()
        try:
            results = client.get_many([Target(GPU_0, POD)])
        except LimitsError:
            pass
        else:
            assert isinstance(results[Target(GPU_0, POD)], LimitsError)
