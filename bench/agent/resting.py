"""The idle agent's cost: memory, processor time, threads."""

import os
import time
from pathlib import Path

from bench.node import RESOURCES, Node
from bench.result import Results, Say
from gpuagent.domain.sharing.mode import GPU_MEM

BOX, DEVICES = "dgx-a100", 640
RSS_MIB, CPU_PERCENT = 60.0, 0.2
SETTLE_S = 3.0


def measure(results: Results, seconds: float, say: Say) -> None:
    """Everything on: API watch, metrics scraped once, every resource registered, 640 devices."""
    say(f"memory and idle time: {seconds:.0f} s")
    with Node(BOX, "share") as node:
        node.start_agent()
        node.registered()
        node.offers(GPU_MEM, DEVICES)
        scraped = len(node.page("metrics"))
        node.page("status")
        time.sleep(SETTLE_S)
        proc = Path(f"/proc/{node.pid}")
        before, began = ticks(proc), time.monotonic()
        time.sleep(seconds)
        percent = (ticks(proc) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began) * 100
        status = fields(proc / "status")
        rss, peak = status["VmRSS"] / 1024, status["VmHWM"] / 1024
        smaps = fields(proc / "smaps_rollup")
        dirty, shared = smaps["Private_Dirty"] / 1024, (smaps["Shared_Clean"] + smaps["Private_Clean"]) / 1024
    on = f"{len(RESOURCES)} resources, {DEVICES} devices, API watch, {scraped} bytes of metrics"
    text = f"{rss:.1f} MiB (dirty {dirty:.1f}, clean {shared:.1f}, peak {peak:.1f})"
    results.row(f"resident memory: {on}", text, f"< {RSS_MIB:.0f} MiB", rss < RSS_MIB)
    text = f"{percent:.2f} % over {seconds:.0f} s, {status['Threads']:.0f} threads"
    results.row("idle processor time, of one core", text, f"< {CPU_PERCENT} %", percent < CPU_PERCENT)
    for name, value in {
        "rss MiB": rss,
        "dirty MiB": dirty,
        "idle CPU %": percent,
        "threads": status["Threads"],
    }.items():
        results.keep(f"rest: {name}", [value])


def ticks(proc: Path) -> int:
    """User and system time of the process, threads that ended included."""
    fields = (proc / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def fields(path: Path) -> dict[str, float]:
    """``Name: 123 kB`` lines as numbers."""
    pairs = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {pair[0].rstrip(":"): float(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdecimal()}
