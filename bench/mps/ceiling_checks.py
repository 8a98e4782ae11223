"""What a program gets that leaves its caps, and what the ceiling of MPS's server does while programs run."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from bench.mps.checked_driver import Check
from bench.mps.programs import MOST_MIB, PATIENCE_S, answer, begun, run
from gpuagent.host.mps_client import CONTROL, ServerLimit, find_program
from gpuagent.isolation.mps.share import MEMORY_VARIABLE, THREADS_VARIABLE

CONTEXT_MIB = 1024
"""The most by which a program may miss its cap: its context counts against the cap, too."""
SHORT_S = "1.5"
NOBODY = 65534


def ceiling_of_memory(check: Check) -> None:
    """Programs without their caps, where all shares of the GPU are of 4 GiB."""
    check.hold(4)
    print(f"  {check.limits()}")
    cap = check.share(4).memory_mib
    for name, limit, most_mib in (
        ("clears its cap", None, cap),
        ("empties its cap", "", cap),
        ("raises its cap to 60 GiB", "0=60G", cap),
        ("lowers its cap to 2 GiB", "0=2G", 2048),
    ):
        taken = taken_mib(check, limit)
        good = most_mib - CONTEXT_MIB <= taken <= most_mib
        check.say(good, f"ceiling of {cap} MiB: a program that {name} gets {taken} MiB")
    for limit in ("9=1G", "0=2G,9=1G"):
        taken = taken_mib(check, limit)
        check.note(f"ceiling of {cap} MiB: a program that names a GPU which is not there ({limit}) gets {taken} MiB")


def small_ceiling(check: Check) -> None:
    """What the daemon shows of a limit below 1 GiB, as of a node whose unit is MiB."""
    control = check.daemon.control
    control.set_limit(ServerLimit.MEMORY, 512)
    check.note(f"a limit of 512 MiB is shown as {control.ask(ServerLimit.MEMORY.get(None))!r}")


def ceiling_under_programs(check: Check) -> None:
    """The ceiling is raised and lowered while a program runs."""
    check.hold(4)
    busy = begun(check.environment(4), 2048)
    check.start(8)
    print(f"  {check.limits()}")
    taken = taken_mib(check, None)
    cap = check.share(8).memory_mib
    good = cap - CONTEXT_MIB <= taken <= cap
    check.say(
        good, f"a container of 8 GiB starts while a program of 4 GiB runs: the ceiling of {cap} MiB gives {taken}"
    )
    raised = answer(busy)
    check.say("error" not in raised, f"the program that ran meanwhile: {raised}")
    busy = begun(check.environment(8), 6144)
    check.hold(4)
    cap = check.share(4).memory_mib
    taken = taken_mib(check, None)
    check.say(
        taken <= cap, f"the ceiling is lowered to {cap} MiB while a program has 6144: another one gets {taken} MiB"
    )
    check.note(f"the program that had 6144 MiB when the ceiling was lowered below that: {answer(busy)}")


def ceiling_of_compute(check: Check) -> None:
    """Programs without their percentages, where the largest share is 40 %."""
    whole = run(check.environment(4, 100), "speed", SHORT_S)
    check.hold(4, 40)
    print(f"  {check.limits()}")
    for name, percentage, expected in (
        ("clears its percentage", None, 0.4),
        ("raises it to 100 %", "100", 0.4),
        ("lowers it to 20 %", "20", 0.2),
    ):
        env = without_caps(check)
        if percentage is not None:
            env[THREADS_VARIABLE] = percentage
        part = run(env, "speed", SHORT_S)
        if "kernels_per_s" not in part or "kernels_per_s" not in whole:
            check.say(good=False, text=f"a program that {name} could not compute: {part}, {whole}")
            continue
        ratio = part["kernels_per_s"] / whole["kernels_per_s"]
        good = abs(ratio - expected) <= 0.08
        check.say(good, f"ceiling of 40 %: a program that {name} computes {ratio:.0%} of one of 100 %")
    check.hold(4)


def ceiling_of_a_new_daemon(check: Check) -> None:
    """After its daemon was started again, without a container that starts."""
    check.hold(4)
    print(f"  {check.limits()}")
    cap = check.share(4).memory_mib
    taken = taken_mib(check, "0=60G")
    check.say(
        0 < taken <= cap, f"a new daemon has the ceiling of {cap} MiB before its first program, which gets {taken}"
    )
    print(f"  {check.limits()}")


def commands_of_others(check: Check) -> None:
    """Whether a program of another user than the daemon's can raise the ceiling with the control program."""
    control = check.daemon.control
    if os.geteuid():
        check.note("who is not root cannot try the control program as another user")
        return
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(check.daemon.pipe_dir)}
    done = subprocess.run(  # noqa: S603 (the driver's own program)
        [str(find_program(CONTROL))],
        input=ServerLimit.MEMORY.set(MOST_MIB, None) + "\n",
        env=environment,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    after = control.limit(ServerLimit.MEMORY)
    could = "raised" if after == MOST_MIB else "could not raise"
    check.note(f"another user {could} the ceiling with {CONTROL}: {done.stdout.strip() or done.stderr.strip()!r}")
    control.set_limit(ServerLimit.MEMORY, check.share(4).memory_mib)


def managed_memory(check: Check) -> None:
    """Unified memory counts against the cap."""
    cap = check.share(4).memory_mib
    result = run(check.environment(4), "fill-managed")
    taken = result.get("taken_mib", 0)
    check.say(0 < taken <= cap, f"managed memory of a program of 4 GiB (cap {cap} MiB): {result}")


def without_caps(check: Check) -> dict[str, str]:
    """The environment of a container whose program leaves its caps."""
    env = check.environment(4, 100)
    for name in (MEMORY_VARIABLE, THREADS_VARIABLE):
        env.pop(name, None)
    return env


def taken_mib(check: Check, limit: str | None) -> int:
    """MiB that a program gets with that limit in its environment, or with none."""
    env = without_caps(check)
    if limit is not None:
        env[MEMORY_VARIABLE] = limit
    result: Mapping[str, Any] = run(env, "fill")
    if "error" in result:
        print(f"  {result['error']}")
    return int(result.get("taken_mib", 0))
