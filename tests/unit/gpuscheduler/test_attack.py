"""The whole program under attack: what a stranger who reaches a port, and has no credentials, can cost it.

What they cost is counted in answers, connections and threads. `python -m bench --only attack` measures time and memory.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.agent import endless_headers, slow_clients
from bench.agent.many_files import open_files, with_files
from gpuagent.pages.http_server import MOST_CONNECTIONS, PAGE_THREADS
from gpuscheduler.extender.server import MOST_WAITING
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.running_scheduler import until
from tests.unit.gpuscheduler.test_process import events, process

NODES, CALLS = 50, 200
CLIENTS, LEAST_FILES = 2000, 500
CONNECTION_MIB = 10
"""What one connection may send without end until it is closed: a little, and what the kernel buffers."""
MOST_OPEN = {"pages": MOST_CONNECTIONS, "address": MOST_WAITING}
"""Connections that strangers may hold."""
SPARE_SOCKETS = 2
"""A connection of kube-scheduler's, or to the API server, may come and go meanwhile."""


class Attacked:
    """The program, and kube-scheduler's connection to it."""

    def __init__(self, cluster, running):
        lines = events(running)
        listening = next(line for line in lines if line["event"] == "Listening")
        next(line for line in lines if line["event"] == "Ready")
        threading.Thread(target=lambda: list(lines), daemon=True).start()  # so that the pipe never fills
        self.ports = {name: listening[name].rpartition(":")[2] for name in ("pages", "address")}
        self.connection = http.client.HTTPConnection(listening["address"], timeout=PATIENCE_S)
        self.body = json.dumps({"Pod": cluster.pod("p"), "NodeNames": cluster.names()})
        self.proc = Path(f"/proc/{running.pid}")

    def call(self):
        """A filter call, on the connection that has been there since before the attack."""
        self.connection.request("POST", "/filter", self.body)
        assert json.loads(self.connection.getresponse().read())["Error"] == ""

    def sockets(self):
        """How many are open."""
        count = 0
        for link in (self.proc / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(link).startswith("socket:")
        return count

    def threads(self):
        return len([*(self.proc / "task").iterdir()])


@pytest.fixture
def attacked(cluster):
    for n in range(NODES):
        cluster.share_node(f"n{n}", gpus=8)
    with process(cluster) as running:
        made = Attacked(cluster, running)
        with closing(made.connection):
            made.call()
            yield made


@contextmanager
def attack(module, *arguments):
    """A process that attacks, and has begun. At the end, `connections` has how often it connected."""
    attacker = [sys.executable, "-m", module.__name__, *arguments]
    command = with_files(open_files(CLIENTS + LEAST_FILES), attacker)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attackers:
        assert attackers.stdout.readline()
        made = SimpleNamespace(process=attackers, connections=0)
        yield made
        printed, _ = attackers.communicate("end\n", timeout=2 * PATIENCE_S)
        assert attackers.returncode == 0
        made.connections = int(printed)


ATTACKS = {
    "150 MiB of headers": (endless_headers, "150", "many"),
    "one header of 60 MiB": (endless_headers, "60", "one"),
    "2,000 slow clients": (slow_clients, str(CLIENTS)),
}


@pytest.mark.parametrize("port", ["pages", "address"])
@pytest.mark.parametrize("kind", ATTACKS)
def test_strangers_keep_no_call_waiting_and_leave_no_trace(attacked, port, kind):
    before = attacked.sockets()
    threads = attacked.threads()
    module, *arguments = ATTACKS[kind]
    answered = 0
    most_sockets = 0
    with attack(module, attacked.ports[port], *arguments) as attackers:
        while answered < CALLS or (module is endless_headers and attackers.process.poll() is None):
            attacked.call()
            answered += 1
            most_sockets = max(most_sockets, attacked.sockets())
    assert most_sockets <= before + MOST_OPEN[port] + SPARE_SOCKETS
    if module is endless_headers:
        sent_mib = int(arguments[0])
        assert sent_mib / attackers.connections < CONNECTION_MIB
    until(lambda: attacked.sockets() <= before + SPARE_SOCKETS)
    assert attacked.threads() <= threads + PAGE_THREADS
    attacked.call()


def test_readers_of_pages_keep_no_call_waiting(attacked):
    """However many ask, the loop makes a page now and then: pages are made by other threads, of what it hands over."""
    answered = Counter()
    stop = threading.Event()

    def read_pages(path):
        while not stop.is_set():
            with closing(
                http.client.HTTPConnection("127.0.0.1", attacked.ports["pages"], timeout=PATIENCE_S)
            ) as reader:
                reader.request("GET", path)
                answered[path, reader.getresponse().status] += 1

    paths = ("/metrics", "/usage", "/healthz")
    readers = [threading.Thread(target=read_pages, args=(path,)) for path in paths * 2]
    for reader in readers:
        reader.start()
    try:
        for _ in range(CALLS):
            attacked.call()
        until(lambda: all(answered[path, 200] for path in paths))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert {status for _, status in answered} == {200}
