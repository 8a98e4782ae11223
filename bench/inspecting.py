"""The cost of `kubectl inspect cgpu` on a large cluster: time and peak memory of the command as a process."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.node import AGENT_PYTHON, BenchError
from bench.result import ROOT, Results, Say

NODES, PODS_A_NODE = 5_000, 10
TIME_S, RSS_MIB = 10.0, 500.0
_ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "installer", ROOT / "kubectl")))}


def measure(results: Results, runs: int, say: Say) -> None:
    """The summary, the details without agents, and the start alone."""
    say(f"inspect: makes a cluster of {NODES} nodes and {NODES * PODS_A_NODE} pods")
    command = [sys.executable, "-m", "bench.bigcluster", str(NODES), str(PODS_A_NODE)]
    with (
        tempfile.TemporaryDirectory(prefix="gb-") as folder,
        subprocess.Popen(command, cwd=ROOT, env=_ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server,  # noqa: S603
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            told = json.loads(server.stdout.readline() or b"{}")
            if not told:
                raise BenchError("the large cluster did not start")
            megabytes = sum(told["bytes"].values()) / 1e6
            kubeconfig = _kubeconfig(Path(folder) / "kubeconfig", told["url"])
            what = f"inspect {NODES:,} nodes, {NODES * PODS_A_NODE:,} pods ({megabytes:.0f} MB of JSON)"
            for name, flags in (("summary", []), ("-d", ["-d", "--no-agents"]), ("-o json", ["-o", "json"])):
                say(f"inspect: {name}, {runs} times")
                took = [_run(kubeconfig, flags) for _ in range(runs)]
                times = results.keep(f"inspect: {name} s", [one.seconds for one in took])
                busy = results.keep(f"inspect: {name} processor s", [one.processor_s for one in took])
                rss = results.keep(f"inspect: {name} MiB", [one.peak_mib for one in took])
                value = (
                    f"{times['p50']:.1f} s, worst {times['max']:.1f} s of {runs}, of processor time "
                    f"{busy['p50']:.1f} s; peak {rss['max']:.0f} MiB"
                )
                holds = times["max"] < TIME_S and rss["max"] < RSS_MIB
                results.row(f"{what}: {name}", value, f"< {TIME_S:.0f} s, < {RSS_MIB:.0f} MiB", holds)
            starts = results.keep(
                "inspect: --version s", [_run(kubeconfig, ["--version"]).seconds for _ in range(runs)]
            )
            results.row("inspect --version, all modules loaded", f"{starts['p50'] * 1000:.0f} ms")
        finally:
            server.stdin.close()


@dataclass(frozen=True, slots=True)
class Took:
    """One run of the command: wall clock, processor time of user and system, and the most resident memory."""

    seconds: float
    processor_s: float
    peak_mib: float


def _run(kubeconfig: Path, flags: list[str]) -> Took:
    command = [AGENT_PYTHON, "-m", "inspectcgpu", "--kubeconfig", str(kubeconfig), *flags]
    began = time.monotonic()
    with subprocess.Popen(command, env=_ENVIRON, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise BenchError(f"{' '.join(command)} ended with {process.returncode}")
    return Took(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _kubeconfig(path: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "big", "cluster": {"server": url}}],
        "users": [{"name": "big", "user": {}}],
        "contexts": [{"name": "big", "context": {"cluster": "big", "user": "big"}}],
        "current-context": "big",
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path
