"""`python -m bench.mps_check`: the mps driver on this machine's own GPU, as text to keep. Best as root, on an idle GPU.

Starts a control daemon of its own through the driver, in a temporary folder, and CUDA programs in the environment that
containers would get. It checks caps of 4 and 8 GiB, a /dev/shm of its own, and 30 % of the compute against all of it.
It then repeats that without MPS, has programs leave their caps, fault and take managed memory, kills the daemon, and
kills clients with work. Lines begin with `ok`, `WRONG`, or `note` where nothing is promised. Compute modes stay as they
are. It takes less than a minute.
Without a driver it reports that and exits with 0.

Not covered: containers, clients of several users, exclusive compute mode.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.mps.ceiling_checks import (
    CONTEXT_MIB,
    ceiling_of_a_new_daemon,
    ceiling_of_compute,
    ceiling_of_memory,
    ceiling_under_programs,
    commands_of_others,
    managed_memory,
    small_ceiling,
)
from bench.mps.checked_driver import Check
from bench.mps.fault_checks import fault
from bench.mps.programs import PATIENCE_S, answer, popen, run, work
from bench.result import machine, now
from gpuagent import __version__
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.host.cuda_probe import CudaProbe, Verdict
from gpuagent.host.mps_client import CONTROL, MpsError, daemon_pid, find_program
from gpuagent.isolation.interface import IsolationError, Need
from gpuagent.isolation.mps.share import why_not
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.system.output import exit_with


def main() -> int:
    """Print the check; 1 if something is not as the driver promises."""
    if sys.argv[1:]:
        print(json.dumps(work(*sys.argv[1:])))
        return 0
    try:
        inventory = discover()
    except DriverError as err:
        print(f"no NVIDIA driver to check MPS on: {err}")
        return 0
    able = [gpu for gpu in inventory.gpus if why_not(gpu) is None]
    program = find_program(CONTROL)
    if not able or program is None:
        print(f"nothing to check MPS on: {len(able)} GPUs from Volta on, {CONTROL} at {program}")
        return 0
    # Its daemon sees this GPU alone, so that it is ordinal 0 for daemon and clients.
    gpu = able[-1]
    kernel = machine()["kernel"]
    print(f"# MPS check of {now()}\n")
    print(f"gpuagent {__version__}, driver {inventory.driver_version}, {gpu.model},\nLinux {kernel}\n")
    wrong = checked(gpu)
    if wrong:
        print(f"{wrong} findings are WRONG")
        return 1
    print("all as promised")
    return 0


def checked(gpu: Gpu) -> int:
    """Do all checks, and return the number of findings that are wrong."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        check = Check(gpu, folder)
        try:
            every_check(check)
        except (IsolationError, MpsError, queue.Empty, subprocess.SubprocessError) as err:
            check.say(good=False, text=f"the check ended early: {err!r}")
        finally:
            finish(check)
    return check.wrong


def every_check(check: Check) -> None:
    """One after the other."""
    alone = run({"CUDA_VISIBLE_DEVICES": check.gpu.uuid}, "speed")
    check.driver.desire(Need(gpus=(check.gpu,), serves=True))
    print(f"daemon up after {check.well():.2f} s")
    memory(check)
    shared_memory(check)
    compute(check, alone)
    managed_memory(check)
    ceiling_of_memory(check)
    small_ceiling(check)
    commands_of_others(check)
    ceiling_under_programs(check)
    ceiling_of_compute(check)
    fault(check)
    death(check)
    kills(check)


def memory(check: Check) -> None:
    """Two clients at once, each refused beyond its own cap."""
    running = {gib: popen(check.environment(gib), "fill") for gib in (4, 8)}
    for gib, process in running.items():
        cap = check.share(gib).memory_mib
        result = answer(process)
        taken = result.get("taken_mib", 0)
        error = result.get("error", "")
        is_at_its_cap = cap - CONTEXT_MIB <= taken <= cap
        check.say(is_at_its_cap, f"a client of {gib} GiB (cap {cap} MiB) was refused after {taken} MiB {error}")


def shared_memory(check: Check) -> None:
    """A client with /dev/shm and an IPC namespace of its own, as a container has, is served and has its cap."""
    own = ("unshare", "--mount", "--ipc", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
    result = run(check.environment(4), "fill", prefix=own)
    taken = result.get("taken_mib", 0)
    good = 0 < taken <= check.share(4).memory_mib
    check.say(good, f"a client of 4 GiB with a /dev/shm of its own: {json.dumps(result)}")


def compute(check: Check, alone: Mapping[str, Any]) -> None:
    """A client of 30 % against one of 100 %, and that one against the same program without MPS."""
    whole = run(check.environment(4, 100), "speed")
    part = run(check.environment(4, 30), "speed")
    results = {"without MPS": alone, "100 %": whole, "30 %": part}
    for name, result in results.items():
        print(f"  {name}: {json.dumps(result)}")
    if not all("kernels_per_s" in result for result in results.values()):
        check.say(good=False, text="a client could not compute")
        return
    ratio = part["kernels_per_s"] / whole["kernels_per_s"]
    check.say(0.2 <= ratio <= 0.4, f"a client of 30 % computes {ratio:.0%} of one of 100 %")
    cost = 1 - whole["kernels_per_s"] / alone["kernels_per_s"]
    check.say(cost < 0.05, f"MPS costs {cost:.1%} of the speed without it")


def death(check: Check) -> None:
    """The daemon is killed under a client that computes; the driver brings MPS back for new ones."""
    pid = daemon_pid(check.daemon.pipe_dir)
    if pid is None:
        check.say(good=False, text="the daemon's PID file does not name it")
        return
    neighbour = popen(check.environment(4), "speed")
    time.sleep(1.0)
    check.forget_reports()
    os.kill(pid, signal.SIGKILL)
    noticed = check.well(well=False)
    check.say(noticed < 2.0, f"its death was reported after {noticed:.2f} s")
    print(f"  the client that ran meanwhile: {json.dumps(answer(neighbour))}")
    healed = check.well()
    ceiling_of_a_new_daemon(check)
    result = run(check.environment(4), "fill")
    check.say("error" not in result, f"healed after {healed:.2f} s; a new client: {json.dumps(result)}")


def kills(check: Check) -> None:
    """Clients with work are killed: one that the daemon has ended before, and one that it has not.

    NVIDIA says of the second that it can leave the server in an undefined state. Whether it does is a finding.
    """
    uuid = check.gpu.uuid
    probe = CudaProbe()
    pipe_dir = check.daemon.pipe_dir
    for is_drained in (True, False):
        busy_client = popen(check.environment(4), "speed")
        time.sleep(1.0)
        if is_drained:
            drain(check, busy_client.pid)
        busy_client.kill()
        busy_client.communicate()
        probed = probe.run(pipe_dir, uuid)
        how = "ended by the daemon and then killed" if is_drained else "killed with work on the GPU"
        text = f"after a client was {how}: {probed.verdict.value} ({probed.text})"
        check.say(not is_drained or probed.verdict is Verdict.SERVED, text)
    if probed.verdict is Verdict.HANGS:
        seen_s = check.well(well=False)
        healed_s = check.well()
        print(f"  seen by the driver after {seen_s:.1f} s, healed after {healed_s:.1f} s")


def drain(check: Check, pid: int) -> None:
    """Have the daemon end a client."""
    control = check.daemon.control
    try:
        for server in control.servers():
            if pid in control.clients_of(server):
                print(f"  server {server}: {control.status(server)}")
                control.terminate(server, pid, deadline_s=PATIENCE_S)
                return
        check.say(good=False, text=f"the daemon does not name its client {pid}")
    except MpsError as err:
        check.say(good=False, text=f"the client was not ended: {err}")


def finish(check: Check) -> None:
    """The daemon quits when no container needs it."""
    pid = daemon_pid(check.daemon.pipe_dir)
    check.driver.desire(Need())
    until = time.monotonic() + PATIENCE_S
    while check.daemon.started_one and time.monotonic() < until:
        time.sleep(0.1)
    check.driver.stop()
    check.say(not check.daemon.started_one, f"the daemon (process {pid}) quit")


if __name__ == "__main__":
    exit_with("mps_check", main)
