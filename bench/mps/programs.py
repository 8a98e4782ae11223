"""CUDA programs for `bench.mps_check`, each in a process and an environment of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.agent.cuda import Cuda, CudaError

PATIENCE_S = 60.0
SPEED_S = 3.0
MOST_MIB = 16 * 1024
"""What a program without a limit takes at most."""
MANAGED_STEP_MIB = 512
HOLDS = "holds"


def work(what: str, amount: str = "") -> dict[str, Any]:
    """Do the work of one program, in a process of its own; returns the results.

    Args:
        what: it does.
        amount: of seconds, or of MiB.
    """
    try:
        cuda = Cuda()
        match what:
            case "fill":
                return {"taken_mib": cuda.fill(most_mib=MOST_MIB)}
            case "fill-managed":
                return {"taken_mib": cuda.fill_managed(MANAGED_STEP_MIB, most_mib=MOST_MIB)}
            case "hold":
                cuda.allocate(int(amount))
                print(HOLDS, flush=True)
                return speed(cuda, SPEED_S)
            case "fault":
                cuda.fault()
                return {}
        return speed(cuda, float(amount or SPEED_S))
    except (OSError, CudaError) as err:
        return {"error": str(err)}


def speed(cuda: Cuda, seconds: float) -> dict[str, Any]:
    """Compute for so long."""
    return {"kernels_per_s": round(cuda.speed(seconds), 1), "multiprocessors": cuda.multiprocessors}


def popen(env: Mapping[str, str], *what: str, prefix: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start a program in that environment, through the command `prefix`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    command = [*prefix, sys.executable, "-m", "bench.mps_check", *what]
    return subprocess.Popen(command, env=kept | dict(env), stdout=subprocess.PIPE, text=True)  # noqa: S603 (ourselves)


def answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """A program's result, the last line that it writes; a program without one has died."""
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said = ""
    try:
        result: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        return {"error": f"it ended with {process.wait()} and said {said!r}"}
    return result


def begun(env: Mapping[str, str], mib: int) -> "subprocess.Popen[str]":
    """A program that computes, once it has that much memory."""
    process = popen(env, "hold", str(mib))
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != HOLDS:
        print(f"  a program of {mib} MiB: {line}")
    return process


def run(env: Mapping[str, str], *what: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """A program from start to end."""
    return answer(popen(env, *what, prefix=prefix))
