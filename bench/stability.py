"""``python -m bench.stability``: run `make test` again and again, on a quiet machine and beside a load.

Prints one line for each run, names each test that failed, and keeps the output of every run below build/stability.
The exit code is 1 if anything failed: a test, a run as a whole, or the load of a busy run.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.result import ROOT
from gpuagent.system.output import exit_with

KEPT = ROOT / "build" / "stability"
KUBERNETES = ROOT / "tests" / "e2e" / "tools" / "kubernetes-1.36"
COMMANDS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
_END = re.compile(r"^(?:=+ )?(?:(?P<failed>\d+) failed)?.*?(?P<passed>\d+) passed.* in [\d.]+s", re.MULTILINE)
_NAMED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run of `make test`."""

    seconds: float
    passed: int
    failed: tuple[str, ...]
    load: float


def main(arguments: Sequence[str]) -> int:
    """Run the halves; 1 if a test failed in any run."""
    parser = argparse.ArgumentParser(prog="python -m bench.stability", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--runs", type=int, default=20, metavar="N", help="how often, both halves together (default 20)"
    )
    parser.add_argument("--half", choices=("quiet", "busy"), help="only this half")
    parser.add_argument(
        "--beside",
        metavar="COMMAND",
        help="shell command that loads the machine, repeated in the busy half (default: a full build of Kubernetes)",
    )
    options = parser.parse_args(arguments)
    beside = options.beside or _kubernetes_build()
    quiet = {"quiet": options.runs, "busy": 0}.get(options.half, (options.runs + 1) // 2)
    if quiet < options.runs and beside is None:
        parser.error(f"a load needs Go for {KUBERNETES}; install it, or name another load with --beside")
    KEPT.mkdir(parents=True, exist_ok=True)
    print(f"{'run':>3}  {'machine':<7}  {'seconds':>7}  {'passed':>6}  {'failed':>6}  {'load':>5}", flush=True)
    bad = 0
    for number in range(1, options.runs + 1):
        busy = number > quiet
        with _load(beside if busy else None) as unloaded:
            run = _once(KEPT / f"run-{number}.log")
        failed = (*run.failed, *unloaded)
        bad += bool(failed)
        print(
            f"{number:>3}  {'busy' if busy else 'quiet':<7}  {run.seconds:>7.0f}  {run.passed:>6}  "
            f"{len(failed):>6}  {run.load:>5.1f}",
            flush=True,
        )
        for name in failed:
            print(f"     {name}", flush=True)
    print(f"{options.runs - bad} of {options.runs} runs without a failure; their output is in {KEPT}")
    return 1 if bad else 0


def _once(log: Path) -> Run:
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.run(
            ["make", "test"],  # noqa: S607
            cwd=ROOT,
            env={"HYPOTHESIS_PROFILE": "random", **os.environ},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    seconds, text = time.monotonic() - began, log.read_text()
    end = _END.search(text)
    failed = tuple(_NAMED.findall(text))
    if process.returncode and not failed:
        failed = (f"make test ended with {process.returncode}: see {log}",)
    return Run(seconds, int(end["passed"]) if end else 0, failed, os.getloadavg()[0])


def _kubernetes_build() -> str | None:
    """Builds all of Kubernetes from nothing, two packages at a time; the cache goes with its folder."""
    if shutil.which("go") is None:
        return None
    packages = " ".join(f"k8s.io/kubernetes/cmd/{name}" for name in COMMANDS)
    return f'cd {shlex.quote(str(KUBERNETES))} && GOCACHE="$SCRATCH/cache" go build -p 2 -a -o "$SCRATCH" {packages}'


@contextlib.contextmanager
def _load(command: str | None) -> Iterator[list[str]]:
    """Run the command again and again until the context ends. `SCRATCH` is a folder that is removed then.

    The yielded list contains, at the end, the reason why there was no load; it is empty where there was load.
    """
    unloaded: list[str] = []
    if command is None:
        yield unloaded
        return
    log = KEPT / "beside.log"
    with tempfile.TemporaryDirectory(prefix="beside-") as scratch, log.open("wb") as out:
        stopping = threading.Event()
        running: list[subprocess.Popen[bytes]] = []
        lock = threading.Lock()

        def repeat() -> None:
            while True:
                with lock:
                    if stopping.is_set():
                        return
                    process = subprocess.Popen(  # noqa: S602 (the user's own command)
                        command,
                        shell=True,
                        env={**os.environ, "SCRATCH": scratch},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    running[:] = [process]
                if process.wait() and not stopping.is_set():
                    unloaded[:] = [f"the load ended with {process.returncode}, see {log}: {command}"]
                    stopping.wait(1.0)

        thread = threading.Thread(target=repeat, name="beside")
        thread.start()
        try:
            yield unloaded
        finally:
            stopping.set()
            with lock, contextlib.suppress(ProcessLookupError):
                if running and running[0].poll() is None:
                    os.killpg(running[0].pid, signal.SIGKILL)
            thread.join()


if __name__ == "__main__":
    exit_with("stability", lambda: main(sys.argv[1:]))
