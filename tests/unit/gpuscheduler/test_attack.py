"""The whole program under attack: what a stranger who reaches a port, and has no credentials, can cost it.

Neither a busy machine nor a slow one may fail this, so calls are compared with calls of the same run. What the
attackers cost is taken from the processor time of the scheduler's own thread, which no neighbor changes.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import pytest

from bench.agent import endless_headers, slow_clients
from bench.agent.many_files import open_files, with_files
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.test_process import events, process

NODES, CALLS = 50, 200
CLIENTS, LEAST_FILES = 2000, 500
MEMORY_MIB = 10
TIMES = 3
"""Processor time of a call beside or after an attack, as a multiple of the usual. `make bench` holds it to the clock."""
STALL = 1000
"""The longest call under attack, as a multiple of the usual one: a loop that is held up shows, a busy machine not."""


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
        self.pid = running.pid

    def call(self):
        """Seconds that a filter call takes."""
        began = time.perf_counter()
        self.connection.request("POST", "/filter", self.body)
        assert json.loads(self.connection.getresponse().read())["Error"] == ""
        return time.perf_counter() - began

    def calls(self, count):
        """Seconds of each call, and processor seconds of the scheduler's loop for one."""
        before = self.loop_cpu_s()
        took = [self.call() for _ in range(count)]
        return took, (self.loop_cpu_s() - before) / count

    def loop_cpu_s(self):
        nanoseconds, *_ = (self.proc / "task" / str(self.pid) / "schedstat").read_text().split()
        return int(nanoseconds) / 1e9

    def memory_mib(self):
        """Now, and at most until now."""
        lines = (line.partition(":") for line in (self.proc / "status").read_text().splitlines())
        fields = {name: text for name, _, text in lines}
        return [int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]


@pytest.fixture
def attacked(cluster):
    for n in range(NODES):
        cluster.share_node(f"n{n}", gpus=8)
    with process(cluster) as running:
        made = Attacked(cluster, running)
        with closing(made.connection):
            made.calls(CALLS)  # the first ones are slower, and allocate
            yield made


@contextmanager
def attack(module, *arguments):
    """A process that attacks; it has begun."""
    attacker = [sys.executable, "-m", module.__name__, *arguments]
    command = with_files(open_files(CLIENTS + LEAST_FILES), attacker)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attackers:
        assert attackers.stdout.readline()
        yield attackers
        attackers.communicate("end\n", timeout=PATIENCE_S)
        assert attackers.returncode == 0


ATTACKS = {
    "150 MiB of headers": (endless_headers, "150", "many"),
    "one header of 60 MiB": (endless_headers, "60", "one"),
    "2,000 slow clients": (slow_clients, str(CLIENTS)),
}


@pytest.mark.parametrize("port", ["pages", "address"])
@pytest.mark.parametrize("kind", ATTACKS)
def test_strangers_cost_neither_memory_nor_time(attacked, port, kind):
    usual, usual_cpu_s = attacked.calls(CALLS)
    before_mib, _ = attacked.memory_mib()
    module, *arguments = ATTACKS[kind]
    under_attack = []
    with attack(module, attacked.ports[port], *arguments) as attackers:
        while len(under_attack) < CALLS or (module is endless_headers and attackers.poll() is None):
            under_attack.append(attacked.call())
    _, after_cpu_s = attacked.calls(CALLS)
    assert max(under_attack) < STALL * median(usual)
    assert after_cpu_s < TIMES * usual_cpu_s
    assert max(attacked.memory_mib()) - before_mib < MEMORY_MIB


def test_readers_of_pages_cost_the_loop_a_part_of_its_time(attacked):
    """However many ask, the loop makes a page now and then: pages are made by other threads, of what it hands over."""
    _, usual_cpu_s = attacked.calls(CALLS)
    asked = []
    stop = threading.Event()

    def read_pages(path):
        while not stop.is_set():
            with closing(
                http.client.HTTPConnection("127.0.0.1", attacked.ports["pages"], timeout=PATIENCE_S)
            ) as reader:
                reader.request("GET", path)
                asked.append(reader.getresponse().status)

    readers = [threading.Thread(target=read_pages, args=(path,)) for path in ("/metrics", "/usage", "/healthz") * 2]
    for reader in readers:
        reader.start()
    try:
        _, cpu_s = attacked.calls(CALLS)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert asked.count(200) > 0
    assert cpu_s < TIMES * usual_cpu_s, f"{len(asked)} pages"
