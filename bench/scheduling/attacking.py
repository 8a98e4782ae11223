"""A filter call while strangers attack a port of gpuscheduler, and the memory that they cost."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from bench.agent.many_files import open_files, with_files
from bench.agent.resting import fields
from bench.node import BenchError
from bench.result import ROOT, Results, Say
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_MEM
from standin.api.server import ApiServer, node_body

NODES, GPUS, MEMORY = 500, 8, 80
CLIENTS, SPARE_FILES = 2000, 100
TIMES, MIB = 2.0, 10.0
"""A filter call may take at most this many times its usual time, and memory may grow by less than this."""
ATTACKS = {
    "150 MiB of headers": ("bench.agent.endless_headers", "150", "many"),
    "a header of 60 MiB": ("bench.agent.endless_headers", "60", "one"),
    "2,000 slow clients": ("bench.agent.slow_clients", str(CLIENTS)),
}
PAGES = ("/metrics", "/usage", "/healthz")
READERS_TIMES = 3.0
"""The loop may need at most this many times its usual time for a call while pages are read."""
PORTS = {"pages": "port of pages", "address": "port of calls"}


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The process, and how to call it.

    Attributes:
        proc: its folder in /proc.
        ports: by name in its log.
        call: a filter call; its milliseconds.
    """

    proc: Path
    ports: dict[str, str]
    call: Callable[[], float]

    def rss_mib(self) -> float:
        """Resident memory."""
        return fields(self.proc / "status")["VmRSS"] / 1024

    def loop_cpu_s(self) -> float:
        """Processor seconds that the thread of the event loop, the first one, has had."""
        nanoseconds, *_ = (self.proc / "task" / self.proc.name / "schedstat").read_text().split()
        return int(nanoseconds) / 1e9


def measure(results: Results, calls: int, say: Say) -> None:
    """Medians of this many filter calls: before each attack, beside it, and after it."""
    with tempfile.TemporaryDirectory(prefix="gb-") as folder, _scheduler(Path(folder)) as scheduler:
        for _ in range(calls):
            scheduler.call()
        for port, where in PORTS.items():
            for what, attack in ATTACKS.items():
                say(f"gpuscheduler under attack: {what} on the {where}")
                _attack(
                    results, scheduler, calls, f"{what} on the {where}", (attack[0], scheduler.ports[port], *attack[1:])
                )
        say("gpuscheduler: filter calls beside readers of pages")
        _readers(results, scheduler, calls)


def _attack(results: Results, scheduler: Scheduler, calls: int, what: str, command: tuple[str, ...]) -> None:
    usual = [scheduler.call() for _ in range(calls)]
    before = scheduler.rss_mib()
    beside: list[float] = []
    with _attackers(command) as attackers:
        while len(beside) < calls or (command[0].endswith("headers") and attackers.poll() is None):
            beside.append(scheduler.call())
    usual += [scheduler.call() for _ in range(calls)]
    grown = scheduler.rss_mib() - before
    ratio = median(beside) / median(usual)
    for name, values in (("usual", usual), ("beside", beside)):
        results.keep(f"gpuscheduler attack, {what}: {name} ms", values)
    text = f"{median(beside):.2f} ms, usually {median(usual):.2f} ms; memory +{max(grown, 0):.1f} MiB"
    holds = ratio < TIMES and grown < MIB
    results.row(f"filter call beside {what}", text, f"< {TIMES:g} x usual, < {MIB:g} MiB", holds)


def _readers(results: Results, scheduler: Scheduler, calls: int) -> None:
    """Processor time of the loop for a filter call: usually, and while pages are read without a pause."""
    before = scheduler.loop_cpu_s()
    for _ in range(calls):
        scheduler.call()
    usual_ms = (scheduler.loop_cpu_s() - before) * 1000 / calls
    ended = threading.Event()

    def read(path: str) -> None:
        while not ended.is_set():
            with closing(http.client.HTTPConnection("127.0.0.1", int(scheduler.ports["pages"]), timeout=60)) as reader:
                reader.request("GET", path)
                reader.getresponse().read()

    with ThreadPoolExecutor(2 * len(PAGES)) as readers:
        for path in PAGES * 2:
            readers.submit(read, path)
        try:
            before = scheduler.loop_cpu_s()
            for _ in range(calls):
                scheduler.call()
            beside_ms = (scheduler.loop_cpu_s() - before) * 1000 / calls
        finally:
            ended.set()
    text = f"{beside_ms:.2f} ms, usually {usual_ms:.2f} ms"
    what = f"processor time of the loop for a filter call beside {2 * len(PAGES)} readers of pages"
    results.row(what, text, f"< {READERS_TIMES:g} x usual", beside_ms < READERS_TIMES * usual_ms)


@contextmanager
def _attackers(command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    attacker = (sys.executable, "-m", *command)
    with subprocess.Popen(  # noqa: S603 (ourselves)
        with_files(open_files(CLIENTS + SPARE_FILES), attacker),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as attackers:
        if not (attackers.stdout and attackers.stdout.readline()):
            raise BenchError("the attackers ended by themselves")
        yield attackers
        attackers.communicate("end\n")


@contextmanager
def _scheduler(folder: Path) -> Iterator[Scheduler]:
    api = ApiServer("control-plane")
    try:
        names = [f"node-{n:04}" for n in range(NODES)]
        gpus = node_gpus_text(NodeGpus(tuple(NodeGpu(n, memory=MEMORY) for n in range(GPUS))))
        for name in names:
            node = node_body(name, {}, "")
            node["metadata"]["annotations"] = {NODE_GPUS_ANNOTATION: gpus}
            api.objects.create("nodes", "", node)
        body = json.dumps({"Pod": api.create_pod("p", {GPU_MEM: "4"}, node=""), "NodeNames": names})
        kubeconfig = api.write_kubeconfig(folder / "kubeconfig")
        flags = ("--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
        command = (sys.executable, "-m", "gpuscheduler", "run", *flags, "--lease", "off", "--log-format", "json")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:  # noqa: S603
            yield _following(running, body)
            running.kill()
    finally:
        api.stop()


def _following(running: subprocess.Popen[str], body: str) -> Scheduler:
    """The process, once it is ready."""
    lines = [json.loads(line) for line in islice(running.stderr or (), 2)]
    events = {line["event"]: line for line in lines}
    if events.keys() != {"Listening", "Ready"}:
        raise BenchError(f"gpuscheduler did not become ready: {lines}")
    connection = http.client.HTTPConnection(events["Listening"]["address"], timeout=60)

    def call() -> float:
        began = time.perf_counter()
        connection.request("POST", "/filter", body)
        with closing(connection.getresponse()) as answer:
            answer.read()
        return (time.perf_counter() - began) * 1000

    ports = {name: events["Listening"][name].rpartition(":")[2] for name in PORTS}
    return Scheduler(Path(f"/proc/{running.pid}"), ports, call)
