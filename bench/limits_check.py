"""`python -m bench.limits_check`: the NVIDIA driver's memory limits on this machine's own GPU, as text to keep.

Needs root, driver 615 or later, cgroup v2 and a GPU that no process uses. It makes cgroups of its own, sets limits in
the driver, and starts CUDA programs in them. It prints a table and writes it as JSON. Its cgroups are removed at the
end, but for the empty one on which the agent's helper tries limits as well. Kubernetes is not needed. Without such a
driver it says so and exits with 0.

On backend misc the driver keeps limits of removed cgroups until the GPU is reset, and later cgroups may inherit them.
Therefore use a node without pods.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.limits.checked_gpu import CannotCheckError, CheckedGpu, opened
from bench.limits.limited_program import ProgramError
from bench.limits.own_cgroups import OwnCgroups
from bench.limits.questions import QUESTIONS, Answer, Trial, Verdict
from bench.result import machine, now
from gpuagent import __version__
from gpuagent.host.cgroups import CGROUP_ROOT
from gpuagent.limits_helper.probe import MISC
from gpuagent.nvml.driver_errors import CallError, DriverError
from gpuagent.pages.cells import table
from gpuagent.simulation.box_table import BoxError
from gpuagent.system.output import exit_with
from gpuagent.system.printable import error_words

JSON = Path("build/limits_check.json")
LEAST_MIB = 6144
"""Of the GPU: several times the limit that is tried."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the check; 1 if the agent relies on something that is not so, or a question could not be tried."""
    options = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        print("limits are for root to set: run it as root")
        return 1
    simulate = (options.simulate, options.backend) if options.simulate else None
    try:
        with opened(options.gpu, options.cgroup_root, simulate) as gpu, OwnCgroups(options.cgroup_root) as cgroups:
            # Only now, because on backend dmem the cgroups that are made have to be enabled for it.
            gpu.try_limits(options.cgroup_root)
            return _check(gpu, cgroups, options)
    except CannotCheckError as err:
        print(f"nothing to check memory limits on: {err}")
        return 0
    except BoxError as err:
        print(f"--simulate: {err}")
        return 1
    except (CallError, DriverError) as err:
        print(f"the NVIDIA driver does not answer as it should: {err}; look at `nvidia-smi` and NVRM lines in `dmesg`")
        return 1
    except OSError as err:
        print(f"cgroups cannot be made in {options.cgroup_root}: {error_words(err)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="limits_check", description="Checks the driver's memory limits on a GPU.")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="GPU to use (default: the last one)")
    parser.add_argument(
        "--change-persistence",
        action="store_true",
        help="switch persistence mode off for a moment, to see whether limits are lost",
    )
    parser.add_argument("--json", type=Path, default=JSON, metavar="FILE", help=f"results (default: {JSON})")
    parser.add_argument(
        "--cgroup-root", type=Path, default=CGROUP_ROOT, metavar="DIR", help=f"of cgroup v2 (default: {CGROUP_ROOT})"
    )
    parser.add_argument("--simulate", metavar="BOX", help="try the check itself on a simulated box; shows nothing else")
    parser.add_argument("--backend", choices=("dmem", "misc", "none"), default="misc", help="of the simulated driver")
    return parser


def _check(gpu: CheckedGpu, cgroups: OwnCgroups, options: argparse.Namespace) -> int:
    if gpu.memory < LEAST_MIB << 20:
        raise CannotCheckError(f"the GPU has {gpu.memory >> 20} MiB, and {LEAST_MIB} MiB are needed")
    print(f"# Check of memory limits, {now()}\n")
    if options.simulate:
        print("On a SIMULATED driver: this shows that the check works, and nothing of a GPU.\n")
    print(f"gpuagent {__version__}, driver {gpu.driver}, backend {gpu.backend}, {gpu.model}, {gpu.memory >> 20} MiB,")
    print(f"Linux {machine()['kernel']}\n")
    trial = Trial(gpu, cgroups, options.change_persistence)
    answers = {name: _asked(name, trial) for name in QUESTIONS}
    print(_shown(answers))
    has_written = _write(options.json, gpu, answers, simulated=bool(options.simulate))
    if gpu.backend == MISC:
        print("The driver still has limits of removed cgroups. A reset of the GPU (nvidia-smi -r) removes them.")
    worse = _named(answers, Verdict.WORSE)
    if worse:
        print(f"The agent relies on something that is not so here: {worse}. Do not use driver limits here.")
    failed = _named(answers, Verdict.FAILED)
    if failed:
        print(f"Could not be tried: {failed}. The errors are above.")
    return int(bool(worse or failed or not has_written))


def _named(answers: dict[str, Answer], verdict: Verdict) -> str:
    return ", ".join(name for name, answer in answers.items() if answer.verdict is verdict)


def _asked(name: str, trial: Trial) -> Answer:
    """The answer. A question that cannot be tried must not keep the others from it."""
    try:
        return QUESTIONS[name](trial)
    except (CallError, DriverError, ProgramError, CannotCheckError, OSError) as err:
        traceback.print_exc(file=sys.stderr)
        return Answer(f"{name}?", f"could not be tried: {err}", Verdict.FAILED, {"error": str(err)})


def _shown(answers: dict[str, Answer]) -> str:
    rows = [["QUESTION", "VERDICT", "ANSWER"]]
    rows += [[answer.question, str(answer.verdict), answer.answer] for answer in answers.values()]
    return table(rows)


def _write(path: Path, gpu: CheckedGpu, answers: dict[str, Answer], *, simulated: bool) -> bool:
    """Whether the answers could be written as JSON. They were printed already, so a failure takes none of them away."""
    document: dict[str, Any] = {
        "at": now(),
        "gpuagent": __version__,
        "simulated": simulated,
        "machine": machine(),
        "driver": gpu.driver,
        "backend": gpu.backend,
        "gpu": {"uuid": gpu.uuid, "model": gpu.model, "memory_mib": gpu.memory >> 20},
        "answers": {name: asdict(answer) for name, answer in answers.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as err:
        print(f"\nThe answers cannot be written to {path}: {error_words(err)}. Name another file with --json.")
        return False
    print(f"\nAs JSON: {path}")
    return True


if __name__ == "__main__":
    exit_with("limits_check", main)
