"""The HTTP port under attack, on the whole agent as a process: what clients without any right can cost a node."""

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from gpuagent.pages.http_server import MOST_CONNECTIONS, PAGE_THREADS, WARNING_GAP_S
from standin.ports import free_port
from standin.waiting import PATIENCE_S
from tests.contract.harness import MEM, Node, box, fetch, pod, wait_for

MakeNode = Callable[..., Node]
CLIENTS = 2000
LEAST_FILES = 500


@pytest.fixture
def clients() -> Iterator[int]:
    """How many the test process may open; its own limit is put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CLIENTS + LEAST_FILES
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)), hard)
    )
    yield min(CLIENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - LEAST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cost(pid: int) -> Mapping[str, int]:
    """Threads and open sockets of a process. Processor time is measured in the bench's part `attack`."""
    proc = Path(f"/proc/{pid}")
    sockets = 0
    for link in (proc / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets += os.readlink(link).startswith("socket:")
    return {"threads": len([*(proc / "task").iterdir()]), "sockets": sockets}


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_slow_connections_delay_neither_admission_nor_probes_and_leave_no_trace(node: MakeNode, clients: int) -> None:
    """2,000 clients that send a byte now and then, and then end all at once: kubelet is answered as if they were not."""
    one, port = node("1.36", box(2, 24)), free_port()
    process = one.spawn("--mode", "share", "--http-address", f"127.0.0.1:{port}")
    one.offers(mem=48)
    wait_for(lambda: fetch(port, "/readyz")[0] == 200)
    assert one.kubelet.admit(pod("before", {MEM: 1}))
    assert fetch(port, "/metrics")[0] == 200
    before, began = cost(process.pid), time.monotonic()
    with ExitStack() as ends:
        slow = []
        for number in range(clients):
            client = ends.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            slow.append(client)
            if number % 100 == 0:
                assert fetch(port, "/healthz") == (200, "ok\n")
                assert fetch(port, "/readyz") == (200, "ok\n")
        held = cost(process.pid)
        assert one.kubelet.admit(pod("during", {MEM: 1}))
        assert fetch(port, "/metrics")[0] == 200, "a scrape is answered, too"
        for client in slow[::2]:
            reset(client)
    assert one.kubelet.admit(pod("after", {MEM: 1}))
    assert fetch(port, "/healthz") == (200, "ok\n")
    after = cost(process.pid)
    assert held["sockets"] <= before["sockets"] + MOST_CONNECTIONS + 1
    assert max(held["threads"], after["threads"]) <= before["threads"] + PAGE_THREADS + 2
    output = one.stderr(process)
    assert "Traceback" not in output
    warnings = output.count("Closed a slow HTTP connection")
    assert 1 <= warnings <= 1 + (time.monotonic() - began) / WARNING_GAP_S
    assert all(line[:4].isdecimal() and line[10] == "T" for line in output.splitlines()), "all of it is the log"
