"""The cost of a scrape on a full node: time, processor time, and the wait with the most simultaneous scrapers."""

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench.agent import rpc
from bench.agent.resting import ticks
from bench.node import Node
from bench.result import Results, Say
from gpuagent.agent.usage_watch import PERIOD_S
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.nvml.usage.samples import FRESH_S
from gpuagent.pages.http_server import MOST_PAGES
from gpuagent.simulation.fault_socket import inject

GPUS, PODS_PER_GPU, UNITS = 16, 20, 7
SERIES, BAR_MS, AT_ONCE = 2000, 50.0, MOST_PAGES
HELD_PERCENT = 0.1
QUIET_PERIODS = 5
"""Readings of the use in the time between scrapes."""


def measure(results: Results, scrapes: int, say: Say) -> None:
    """320 containers on 16 GPUs, each with a real process that the driver reports and that the agent finds in /proc."""
    say(f"scrapes: {GPUS * PODS_PER_GPU} containers, {scrapes} scrapes")
    with (
        tempfile.TemporaryDirectory(prefix="gb-") as folder,
        subprocess.Popen(("/bin/sh", "-c", _SLEEPERS), stdout=subprocess.PIPE, text=True) as sleepers,  # noqa: S603
    ):
        try:
            pids = [int(sleepers.stdout.readline()) for _ in range(GPUS * PODS_PER_GPU)] if sleepers.stdout else []
            with Node(rpc.big_box(Path(folder)).box, "share", ("--compat-metrics", "true")) as node:
                _fill(node, pids)
                _scrape(results, node, scrapes)
        finally:
            sleepers.kill()
            for pid in pids:
                os.kill(pid, 9)


_SLEEPERS = f"for n in $(seq {GPUS * PODS_PER_GPU}); do sleep 2147483647 >/dev/null & echo $!; done; wait"


def _fill(node: Node, pids: list[int]) -> None:
    node.start_agent()
    node.registered()
    node.offers(GPU_MEM, GPUS * 141)
    for n, pid in enumerate(pids):
        node.run_pod(f"pod-{n}", {GPU_MEM: UNITS})
        fault = {"fault": "process", "gpu": n % GPUS, "pid": pid, "mib": 4096, "sm": 4}
        inject(node.root / "s" / "simulator.sock", fault)


def _scrape(results: Results, node: Node, scrapes: int) -> None:
    page = _until_full(node)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    proc = Path(f"/proc/{node.pid}")
    new, again = list[float](), list[float]()
    quiet_percent = _quiet_percent(proc)
    of_one = quiet_percent / GPUS
    text = f"{of_one:.3f} % ({quiet_percent:.2f} % in all, the rest of the agent's idle time included)"
    results.keep("use over time: CPU % for each held GPU", [of_one])
    what = f"use over time of {GPUS * PODS_PER_GPU} containers, of one core for each of {GPUS} held GPUs"
    results.row(what, text, f"< {HELD_PERCENT} %", of_one < HELD_PERCENT)
    before = ticks(proc)
    for _ in range(scrapes):
        time.sleep(FRESH_S + 0.05)
        new.append(_timed(node))
    seconds = (ticks(proc) - before) / os.sysconf("SC_CLK_TCK")
    quiet_s = quiet_percent / 100 * (FRESH_S + 0.05) * scrapes
    cpu_ms = (seconds - quiet_s) / scrapes * 1000
    for _ in range(scrapes):
        again.append(_timed(node))
    what = f"scrape of {series} series, {len(page) // 1024} KiB"
    got = results.keep("scrape: new sample", new)
    text = f"p50 {got['p50']:.0f} ms, p99 {got['p99']:.0f} ms, {cpu_ms:.0f} ms of a core"
    held = series >= SERIES and got["p99"] < BAR_MS
    results.row(f"{what}, GPUs sampled again", text, f"p99 < {BAR_MS:.0f} ms", held)
    got = results.keep("scrape: same sample", again)
    results.row("the same again within 2 s", f"p50 {got['p50']:.0f} ms, p99 {got['p99']:.0f} ms")
    together = results.keep("scrape: at once", _at_once(node))
    results.row(f"{AT_ONCE} scrapers at once", f"p50 {together['p50']:.0f} ms, worst {together['max']:.0f} ms")


def _quiet_percent(proc: Path) -> float:
    """Processor time of the agent between scrapes, in percent of a core."""
    before = ticks(proc)
    began = time.monotonic()
    time.sleep(QUIET_PERIODS * PERIOD_S)
    seconds = (ticks(proc) - before) / os.sysconf("SC_CLK_TCK")
    return seconds / (time.monotonic() - began) * 100


def _until_full(node: Node) -> bytes:
    wanted = b"gpuagent_container_gpu_memory_limit_bytes{"
    end = time.monotonic() + 60
    while (page := node.page("metrics")).count(wanted) < GPUS * PODS_PER_GPU:
        if time.monotonic() > end:
            raise node.fail(f"{page.count(wanted)} containers are on the page")
        time.sleep(0.2)
    return page


def _at_once(node: Node) -> list[float]:
    times: list[float] = []
    begin = threading.Barrier(AT_ONCE)

    def scrape() -> None:
        begin.wait()
        times.append(_timed(node))

    threads = [threading.Thread(target=scrape) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def _timed(node: Node) -> float:
    began = time.monotonic()
    node.page("metrics")
    return (time.monotonic() - began) * 1000
