"""Kubelet's wait for an admission while slow clients occupy the HTTP port, and right after they all end."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.agent.many_files import open_files, with_files
from bench.agent.resting import ticks
from bench.node import BenchError, Node
from bench.result import ROOT, Results, Say
from gpuagent.domain.sharing.mode import GPU_MEM

BOX, DEVICES = "dgx-a100", 640
CLIENTS, SPARE_FILES = 2000, 100
TIMES = 2.0
"""An admission may take at most this many times its usual time."""


def measure(results: Results, admissions: int, say: Say) -> None:
    """Medians of this many admissions: before, while the clients are there, and the first one after they end."""
    say(f"admissions under attack: {CLIENTS} slow connections, {admissions} pods")
    files = open_files(CLIENTS + SPARE_FILES)
    clients = files - SPARE_FILES
    with Node(BOX, "share") as node:
        node.start_agent()
        node.registered()
        node.offers(GPU_MEM, DEVICES)
        _admit(node, "warm-up")
        usual = results.keep("attack: before", [_admit(node, f"before-{n}") for n in range(admissions)])
        proc = Path(f"/proc/{node.pid}")
        command = (sys.executable, "-m", "bench.agent.slow_clients", str(node.http_port), str(clients))
        with subprocess.Popen(  # noqa: S603 (ourselves)
            with_files(files, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as attack:
            _line(attack)
            before, began = ticks(proc), time.monotonic()
            during = results.keep("attack: during", [_admit(node, f"during-{n}") for n in range(admissions)])
            percent = (ticks(proc) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began) * 100
            node.page("healthz")
            attack.communicate("end\n")
            after = results.keep("attack: after", [_admit(node, "after")])
    bar = TIMES * usual["p50"]
    what = f"admission of a pod beside {clients} slow connections on the HTTP port"
    text = f"{during['p50']:.0f} ms, usually {usual['p50']:.0f} ms; agent at {percent:.0f} % of a core"
    results.row(what, text, f"< {TIMES:g} x usual", during["p50"] < bar)
    results.row("the first one after all of them end", f"{after['p50']:.0f} ms", "the same", after["p50"] < bar)


def _admit(node: Node, name: str) -> float:
    pod = node.pend(name, {GPU_MEM: 1})
    began = time.monotonic()
    if not node.kubelet.admit(pod):
        raise node.fail(f"{name} was not admitted")
    return (time.monotonic() - began) * 1000


def _line(attack: subprocess.Popen[str]) -> str:
    said = attack.stdout.readline() if attack.stdout else ""
    if not said:
        raise BenchError("the slow clients ended by themselves")
    return said
