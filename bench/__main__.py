"""`python -m bench [--quick]`: measure, print one table, write build/bench.json. The exit code says nothing of bars."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import inspecting, page, result
from bench.agent import attacking, claims, memory, reacting, resting, rpc, scraping, starting
from bench.node import BenchError, compile_everything
from bench.placement import topology
from bench.scheduling import attacking as scheduler_attacking
from bench.scheduling import cluster, core, crafted, jobs
from bench.trace import placing
from gpuagent.system.output import exit_with

PARTS = ("start", "calls", "react", "rest", "memory", "scrape", "attack", "claims", "topology", "inspect")
PLACEMENT, SCHEDULER, PAGE = "placement", "scheduler", "page"


def main(arguments: Sequence[str]) -> int:
    """Run the parts asked for; 1 if something could not be measured at all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about two minutes, with few samples")
    parser.add_argument(
        "--only", choices=(*PARTS, PLACEMENT, SCHEDULER, PAGE), action="append", help="one part (repeatable)"
    )
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder of the trace for `placement`, which needs it")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs for each row of placement (default: 3)")
    parser.add_argument("--out", type=Path, default=result.ROOT / "build" / "bench.json", metavar="FILE")
    options = parser.parse_args(arguments)
    parts = options.only or (*PARTS, PLACEMENT)
    if options.only and PLACEMENT in parts and not options.trace:
        parser.error("placement needs --trace DIR: data/csv of github.com/hkust-adsl/kubernetes-scheduler-simulator")
    results = result.Results()
    facts: dict[str, Any] = {
        "time": result.now(),
        "commit": result.commit(),
        "machine": result.machine(),
        "load_before": result.load(),
    }
    began = time.monotonic()
    compile_everything()
    try:
        for part in PARTS:
            if part in parts:
                _measure(part, results, quick=options.quick)
        if options.trace and PLACEMENT in parts:
            placing.measure(results, options.trace, 1 if options.quick else options.seeds, _say)
        if PAGE in parts:  # if asked for: it needs a browser
            page.measure(results, 2 if options.quick else 9, _say)
        if SCHEDULER in parts:  # if asked for: it needs root, and the binaries of `make e2e`
            core.measure(results, _say, quick=options.quick)
            crafted.measure(results, _say, quick=options.quick)
            jobs.measure(results, 300 if options.quick else 10_000, _say)
            cluster.measure(results, cluster.QUICK if options.quick else cluster.Sizes(), _say, options.trace)
    except BenchError as err:
        print(f"bench: {err}", file=sys.stderr)
        return 1
    facts |= {"load_after": result.load(), "seconds": round(time.monotonic() - began), "quick": options.quick}
    print(f"\n{result.table(results.rows)}\n")
    machine = facts["machine"]
    print(f"{facts['time']}, commit {facts['commit'] or '-'}, {facts['seconds']} s; {machine}")
    print(f"load {facts['load_before']} before, {facts['load_after']} after")
    result.write(results, options.out, facts)
    print(f"all percentiles: {options.out}")
    return 0


def _measure(part: str, results: result.Results, *, quick: bool) -> None:
    measures: dict[str, Callable[[], None]] = {
        "start": lambda: starting.measure(results, 1 if quick else 9, _say),
        "calls": lambda: _calls(results, quick=quick),
        "react": lambda: _reactions(results, quick=quick),
        "rest": lambda: resting.measure(results, 5 if quick else 60, _say),
        "memory": lambda: memory.measure(results, 3 if quick else 20, _say, quick=quick),
        "scrape": lambda: scraping.measure(results, 5 if quick else 40, _say),
        "attack": lambda: _attacks(results, quick=quick),
        "claims": lambda: claims.measure(results, 2 if quick else 10, 50 if quick else 1000, _say),
        "topology": lambda: topology.measure(results, _say, quick=quick),
        "inspect": lambda: inspecting.measure(results, 1 if quick else 5, _say),
    }
    measures[part]()


def _attacks(results: result.Results, *, quick: bool) -> None:
    attacking.measure(results, 10 if quick else 60, _say)
    scheduler_attacking.measure(results, 100 if quick else 1000, _say)


def _reactions(results: result.Results, *, quick: bool) -> None:
    reacting.labels(results, 2 if quick else 20, _say)
    reacting.faults(results, 1 if quick else 2, 3 if quick else 8, _say)
    reacting.silent_losses(results, 1 if quick else 5, _say)
    reacting.connections(results, 2 if quick else 10, _say)


def _calls(results: result.Results, *, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        calls = rpc.Rpc(results, 100 if quick else 2000, Path(folder), _say)
        try:
            for size in (rpc.SMALL, rpc.big_box(Path(folder))):
                for mode in ("share", "core_mem"):
                    if not quick or mode == "share" or size.barred:
                        calls.empty_node(size, mode)
            calls.full_node(rpc.SMALL, 5 if quick else 40)
            for mode in ("share", "core_mem"):
                calls.decided_node(rpc.SMALL, mode)
        finally:
            calls.close()


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    exit_with("bench", lambda: main(sys.argv[1:]))
