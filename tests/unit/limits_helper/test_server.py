"""The helper on a real socket: whoever connects, and whatever it sends, nobody else waits for it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.host.limits_client import (
    BelowUseError,
    HelperGoneError,
    Limit,
    LimitDriverError,
    LimitsClient,
    NoTargetError,
    RefusedError,
    Target,
)
from gpuagent.limits_helper import server as server_module
from gpuagent.limits_helper.driver_thread import DriverThread
from gpuagent.limits_helper.limit_setter import CgroupPlace, LimitSetter
from gpuagent.limits_helper.probe import NAME
from gpuagent.limits_helper.requests import MOST_LINE
from gpuagent.limits_helper.server import MOST_CONNECTIONS, LimitsServer, SocketPathError
from gpuagent.limits_helper.service import LimitsService
from standin.waiting import PATIENCE_S
from tests.cgroup_trees import CONTAINER, OTHER_POD, POD, CgroupTree
from tests.unit.limits_helper.fake_driver import GIB, UUIDS, FakeDriver

GPU = UUIDS[0]
DESCRIBE = b'{"op": "describe"}\n'


class Helper:
    """A helper in this process."""

    def __init__(self, folder: Path, *, call_s: float = PATIENCE_S) -> None:
        self.tree = CgroupTree(folder / "cgroup")
        self.pod = self.tree.add_pod(POD)
        self.driver = FakeDriver()
        setter = LimitSetter(CgroupPlace(root=self.tree.root), self.driver)
        thread = DriverThread(lambda: self.driver.pending, call_s=call_s)
        self.path = folder / "limits.sock"
        self.server = LimitsServer(self.path, LimitsService(setter, thread).answer)

    def client(self) -> LimitsClient:
        return LimitsClient(self.path, deadline_s=PATIENCE_S)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))  # without a timeout, it waits for its turn
        connection.settimeout(PATIENCE_S)
        return connection


@pytest.fixture
def helper(tmp_path) -> Iterator[Helper]:
    helper = Helper(tmp_path)
    yield helper
    helper.driver.hang.set()
    helper.server.close()


@pytest.fixture
def client(helper) -> Iterator[LimitsClient]:
    with closing(helper.client()) as client:
        yield client


def answers(connection: socket.socket) -> list[dict]:
    """Every answer until the helper closes the connection."""
    with connection.makefile("rb") as lines, suppress(ConnectionError):
        return [json.loads(line) for line in lines]
    return []


def test_set_get_describe(helper, client):
    pod = Target(GPU, POD)
    assert client.get(pod) == Limit(None, 0)
    assert client.set(pod, 8 * GIB) == Limit(8 * GIB, 0)
    assert client.get(pod) == Limit(8 * GIB, 0)
    description = client.describe()
    assert (description.backend, description.pods_root) == ("misc", helper.tree.pods_root)
    assert description.gpus == dict.fromkeys(UUIDS)
    assert description.problem is None
    with pytest.raises(NoTargetError):
        client.get(Target(GPU, OTHER_POD))
    helper.driver.used[GPU, helper.pod] = 3 * GIB
    with pytest.raises(BelowUseError) as caught:
        client.set(pod, GIB)
    assert caught.value.used == 3 * GIB


def test_many_at_a_time_have_answers_in_order(helper, client):
    names = [f"{number:064x}" for number in range(200)]
    for number, name in enumerate(names[:100], start=1):
        helper.tree.add_container(helper.pod, name)
        helper.driver.limits[GPU, helper.pod / name] = number * GIB
    results = client.get_many(Target(GPU, POD, name) for name in names)
    for number, name in enumerate(names, start=1):
        result = results[Target(GPU, POD, name)]
        assert result == Limit(number * GIB, 0) if number <= 100 else isinstance(result, NoTargetError)


def test_a_client_that_waits_with_half_a_line_delays_nobody_and_is_closed(helper, client, monkeypatch):
    monkeypatch.setattr(server_module, "LINE_S", 0.2)
    with helper.connect() as slow:
        slow.sendall(DESCRIBE[:5])
        assert client.set(Target(GPU, POD), GIB) == Limit(GIB, 0)
        assert answers(slow) == []


def test_a_line_in_pieces_is_a_line(helper):
    with helper.connect() as connection:
        for byte in DESCRIBE * 2:
            connection.sendall(bytes([byte]))
        connection.shutdown(socket.SHUT_WR)
        assert [answer["ok"] for answer in answers(connection)] == [True, True]


def test_a_client_that_sends_a_byte_now_and_then_is_closed_all_the_same(helper, monkeypatch):
    monkeypatch.setattr(server_module, "LINE_S", 0.2)
    with helper.connect() as slow:
        sent = 0
        with pytest.raises(ConnectionError):
            while True:
                slow.sendall(b" ")
                sent += 1
                time.sleep(0.01)
        assert sent < MOST_LINE


def test_a_client_that_reads_no_answers_delays_nobody_and_is_closed(helper, client, monkeypatch):
    monkeypatch.setattr(server_module, "LINE_S", 0.2)
    with helper.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with pytest.raises((ConnectionError, TimeoutError)):
            while True:
                deaf.sendall(b"{}\n" * 1000)
        assert client.set(Target(GPU, POD), GIB) == Limit(GIB, 0)


@pytest.mark.parametrize("size", [MOST_LINE + 1, 1_000_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n" + DESCRIBE])
def test_a_line_that_is_too_long_is_the_last(helper, size, end):
    with helper.connect() as connection:
        with suppress(ConnectionError):
            connection.sendall(b"x" * size + end)
            connection.shutdown(socket.SHUT_WR)
        received = answers(connection)
        assert [answer["error"] for answer in received] in ([], ["BadRequest"])


def test_the_longest_line(helper):
    with helper.connect() as connection:
        connection.sendall(DESCRIBE[:-1] + b" " * (MOST_LINE - len(DESCRIBE)) + b"\n" + DESCRIBE)
        connection.shutdown(socket.SHUT_WR)
        assert [answer["ok"] for answer in answers(connection)] == [True, True]


def test_thousands_of_connections(helper, client):
    before = serving_threads()
    kept = []
    for number in range(2000):
        kept.append(helper.connect())
        if len(kept) > 200:
            kept.pop(0).close()
        if number % 500 == 0:
            # An attacker that is root can delay a call, and it is served in the end.
            until_served(client)
    assert serving_threads() <= before + MOST_CONNECTIONS
    until_served(client)
    for connection in kept:
        connection.close()


def serving_threads() -> int:
    """Only a helper's own: threads of tests of other modules begin and end meanwhile."""
    return sum(thread.name == "limits-client" for thread in threading.enumerate())


def until_served(client: LimitsClient) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.set(Target(GPU, POD), GIB)
            return
        except HelperGoneError:
            assert time.monotonic() < deadline


def test_idle_connections_make_room_and_busy_ones_stay(helper):
    with helper.connect() as first:
        for _ in range(MOST_CONNECTIONS - 1):
            first.sendall(DESCRIBE)
            first.recv(65536)
        idle = [helper.connect() for _ in range(MOST_CONNECTIONS * 2)]
        with closing(helper.client()) as client:
            until_served(client)
        for connection in idle:
            connection.close()


def test_a_hung_call_blocks_neither_describe_nor_the_end(tmp_path):
    helper = Helper(tmp_path, call_s=0.1)
    with closing(helper.client()) as client:
        until_described_well(client)
        helper.driver.hang.clear()
        words = "nvmlDeviceSetMemoryLimits_v1 on GPU 0 has not returned"
        told = "the driver is busy"
        while "the driver is busy" in told:  # on a busy machine, the call may not have begun in time
            with pytest.raises(LimitDriverError) as caught:
                client.set(Target(GPU, POD), GIB)
            told = str(caught.value)
        assert words in told
        description = client.describe()
        assert "has not returned" in description.problem
        assert description.gpus == dict.fromkeys(UUIDS), "what was known stays known"
        with pytest.raises(LimitDriverError, match=words):
            client.set(Target(GPU, POD), 2 * GIB)
        helper.driver.hang.set()
        until_described_well(client)
        # The first took effect late, and the second, which had waited for it, never.
        pod_sets = [size for _, path, size in helper.driver.sets if path == helper.pod]
        assert pod_sets == [GIB]
        helper.driver.hang.clear()
        deadline = time.monotonic() + PATIENCE_S
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.set, Target(GPU, POD), GIB)
            while helper.driver.pending is None:
                assert time.monotonic() < deadline
            helper.server.close()
            with pytest.raises((LimitDriverError, HelperGoneError)):
                waiting.result()
        helper.driver.hang.set()


def until_described_well(client: LimitsClient) -> None:
    """On a busy machine, calls may seem to hang for a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while client.describe().problem:
        assert time.monotonic() < deadline


def test_a_bug_is_an_answer(helper, client, monkeypatch, caplog):
    def fail(*_args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(helper.driver, "memory_limits", fail)
    with pytest.raises(LimitDriverError, match="see its log"):
        client.get(Target(GPU, POD))
    assert "a bug" in caplog.text


LINES = st.one_of(
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from([DESCRIBE[:-1], b"{}", b"", b"\0", b"\r", b"[" * 3000]),
    st.builds(
        lambda pod, leaf, size: json.dumps({"op": "set", "gpu": GPU, "pod": pod, "leaf": leaf, "bytes": size}).encode(),
        st.sampled_from([POD, OTHER_POD, "..", f"{POD}/..", f"../../{POD}", "\0", "", "*"]),
        st.sampled_from(
            ["", "..", CONTAINER, f"{CONTAINER}/container", f"../pod{OTHER_POD}", f"{CONTAINER}/../..", "/etc"]
        ),
        st.sampled_from([GIB, 0, -1, 1 << 70, "1", None]),
    ),
)


@pytest.fixture(scope="module")
def hardy() -> Iterator[Helper]:
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(Path(folder))
        helper.tree.add_container(helper.pod)
        yield helper
        helper.server.close()


@settings(deadline=None)
@given(lines=st.lists(LINES, max_size=8), half=st.binary(max_size=20), cut=st.integers(1, 400))
def test_every_line_has_one_answer_and_no_request_leads_elsewhere(hardy, lines, half, cut):
    before = {path for path in hardy.tree.root.rglob("*") if path.name != NAME}
    data = b"".join(line + b"\n" for line in lines) + half.replace(b"\n", b"")
    with hardy.connect() as connection:
        connection.sendall(data[:cut])
        connection.sendall(data[cut:])
        connection.shutdown(socket.SHUT_WR)
        received = answers(connection)
    assert len(received) == len(lines)
    assert all(answer["ok"] in (True, False) for answer in received)
    allowed = {hardy.pod, hardy.pod / CONTAINER, hardy.tree.pods_root / NAME}
    assert {path for _, path, _ in hardy.driver.sets} <= allowed
    assert {path for path in hardy.tree.root.rglob("*") if path.name != NAME} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(caplog):
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(Path(folder))
        assert helper.path.stat().st_mode & 0o777 == 0o600
        Path(folder).chmod(0o755)

        def ask() -> None:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as connection:
                try:
                    connection.connect(str(helper.path))
                except PermissionError:
                    os.write(1, b"no permission")
                    return
                connection.sendall(b'{"op": "set"}\n' * 3)
                os.write(1, connection.recv(4096))

        def asked() -> bytes:
            return subprocess.run(["/bin/true"], preexec_fn=ask, stdout=subprocess.PIPE, check=True).stdout

        assert asked() == b"no permission"
        helper.path.chmod(0o666)
        answer = json.loads(asked())
        assert (answer["ok"], answer["error"]) == (False, "Refused")
        assert "user 65534 may not" in answer["message"]
        assert "Refused a client" in caplog.text
        helper.server.close()


def test_the_client_understands_a_refusal(helper, client, monkeypatch):
    monkeypatch.setattr(server_module, "_PEER", PeerOfAnotherUser)
    with pytest.raises(RefusedError, match="user 1234"):
        client.get(Target(GPU, POD))


class PeerOfAnotherUser:
    size = 12

    @staticmethod
    def unpack(_data: bytes) -> tuple[int, int, int]:
        return 1, 1234, 1234


def test_a_socket_that_a_killed_helper_left_is_replaced(tmp_path):
    path = tmp_path / "run" / "limits.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(str(path))
    server = LimitsServer(path, lambda line: line)
    with pytest.raises(SocketPathError, match="another helper listens there"):
        LimitsServer(path, lambda line: line)
    server.close()
    assert not path.exists()


@pytest.mark.parametrize("name", ["x" * 120, "file/limits.sock", "file"])
def test_paths_at_which_nobody_can_listen(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(SocketPathError):
        LimitsServer(tmp_path / name, lambda line: line)


ENDED = """
import os, socket, sys, threading, time
from pathlib import Path
from gpuagent.limits_helper.server import LimitsServer

path, patience_s = sys.argv[1], float(sys.argv[2])
descriptors = os.listdir("/proc/self/fd")
server = LimitsServer(Path(path), lambda line: line)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    connection.sendall(b"x\\n")
    assert connection.recv(10) == b"x\\n"
    server.close()
    assert connection.recv(10) == b""
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(patience_s)
assert threading.active_count() == 1, threading.enumerate()
assert len(os.listdir("/proc/self/fd")) == len(descriptors)
"""
"""In a process of its own, because threads of other tests open and close descriptors meanwhile."""


def test_the_end_leaves_nothing(tmp_path):
    arguments = [str(tmp_path / "limits.sock"), str(PATIENCE_S)]
    subprocess.run([sys.executable, "-c", ENDED, *arguments], check=True, timeout=2 * PATIENCE_S)
