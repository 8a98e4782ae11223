"""`python -m bench.mps_check`: the mps driver on this machine's own GPU, as text to keep. Best as root, on an idle GPU.

Starts a control daemon of its own through the driver, in a temporary folder, and CUDA programs in the environment that
containers would get. It checks caps of 4 and 8 GiB, a /dev/shm of its own, and 30 % of the compute against all of it.
It then repeats that without MPS, kills the daemon, and kills clients with work. Compute modes stay as they are.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.agent.cuda import Cuda, CudaError
from bench.result import machine, now
from gpuagent import __version__
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.cuda_probe import CudaProbe, Verdict
from gpuagent.host.mps_client import CONTROL, MpsError, daemon_pid, find_program
from gpuagent.isolation.interface import IsolationError, Need
from gpuagent.isolation.mps.daemon import MpsDaemons
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.isolation.mps.daemon_state import MpsPolicy
from gpuagent.isolation.mps.driver import MpsIsolation
from gpuagent.isolation.mps.share import why_not
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.system.output import exit_with

PATIENCE_S = 60.0
SPEED_S = 4.0
CONTEXT_MIB = 1024
"""The most by which a client may miss its cap: its context counts against the cap, too."""


class Check:
    """One run: the driver, its reports, and the number of faults found."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu = gpu
        self.wrong = 0
        self._layers: queue.SimpleQueue[Layer] = queue.SimpleQueue()
        daemons = MpsDaemons(CONTROL, MpsRecord(folder), own=folder / "pipe", logs=folder / "log", known=())
        self.daemon = daemons.of_gpu(gpu.uuid)
        self.driver = MpsIsolation(daemons, None, unit=MemoryUnit(), policy=MpsPolicy(release_s=0.0))
        self.driver.start(self._layers.put)

    def well(self, *, well: bool = True) -> float:
        """Wait until the driver reports itself working, or not; returns the seconds it took."""
        began = time.monotonic()
        while True:
            layer = self._layers.get(timeout=PATIENCE_S)
            print(f"  driver: {layer.problem or 'works'}", flush=True)
            works = layer.problem is None
            if works is well:
                return time.monotonic() - began

    def say(self, good: bool, text: str) -> None:
        """One finding."""
        if good:
            print(f"ok    {text}", flush=True)
            return
        self.wrong += 1
        print(f"WRONG {text}", flush=True)

    def environment(self, gib: int, percent: int | None = None) -> dict[str, str]:
        """The environment of a container with that share."""
        visible = {"CUDA_VISIBLE_DEVICES": self.gpu.uuid}
        grant = Grant(resource="", kind=Kind.MEMORY_CORE_MEM, gpus=(self.gpu,), units=gib, env=visible)
        env = dict(self.driver.prepare(grant).env)
        if percent is not None:
            core = Grant(resource="", kind=Kind.CORE_CORE_MEM, gpus=(self.gpu,), units=percent, env={})
            env |= self.driver.prepare(core).env
        return env


def main() -> int:
    """Print the check; 1 if something is not as the driver promises."""
    if sys.argv[1:]:
        print(json.dumps(client(sys.argv[1])))
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
        except (IsolationError, queue.Empty, subprocess.SubprocessError) as err:
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
    death(check)
    kills(check)


def memory(check: Check) -> None:
    """Two clients at once, each refused beyond its own cap."""
    running = {gib: popen(check.environment(gib), "fill") for gib in (4, 8)}
    for gib, process in running.items():
        cap = cap_mib(check, gib)
        result = answer(process)
        taken = result.get("taken_mib", 0)
        error = result.get("error", "")
        text = f"a client of {gib} GiB (cap {cap} MiB) was refused after {taken} MiB {error}"
        check.say(cap - CONTEXT_MIB <= taken <= cap, text)


def cap_mib(check: Check, gib: int) -> int:
    """The cap of a client with so many units of 1 GiB, to which the rest of the GPU's memory is spread."""
    mib = check.gpu.memory_mib
    units = mib // 1024
    return mib * gib // units


def shared_memory(check: Check) -> None:
    """A client with /dev/shm and an IPC namespace of its own, as a container has, is served and has its cap."""
    own = ("unshare", "--mount", "--ipc", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
    result = run(check.environment(4), "fill", own)
    taken = result.get("taken_mib", 0)
    good = 0 < taken <= cap_mib(check, 4)
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
    os.kill(pid, signal.SIGKILL)
    noticed = check.well(well=False)
    check.say(noticed < 2.0, f"its death was reported after {noticed:.2f} s")
    print(f"  the client that ran meanwhile: {json.dumps(answer(neighbour))}")
    healed = check.well()
    result = run(check.environment(4), "fill")
    check.say("error" not in result, f"healed after {healed:.2f} s; a new client: {json.dumps(result)}")


def kills(check: Check) -> None:
    """Clients with work are killed: one that the daemon has ended before, and one that it has not.

    NVIDIA says of the second that it can leave the server in an undefined state. Whether it does is a finding.
    """
    uuid = check.gpu.uuid
    check.driver.desire(Need(gpus=(check.gpu,), serves=True, in_use=True, held=frozenset({uuid})))
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


def client(what: str) -> dict[str, Any]:
    """Do the work of one container, in a process of its own; returns the results."""
    try:
        cuda = Cuda()
        if what == "fill":
            return {"taken_mib": cuda.fill()}
        return {"kernels_per_s": round(cuda.speed(SPEED_S), 1), "multiprocessors": cuda.multiprocessors}
    except (OSError, CudaError) as err:
        return {"error": str(err)}


def popen(env: Mapping[str, str], what: str, prefix: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start a client in that environment, through the command `prefix`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    command = [*prefix, sys.executable, "-m", "bench.mps_check", what]
    return subprocess.Popen(command, env=kept | dict(env), stdout=subprocess.PIPE, text=True)  # noqa: S603 (ourselves)


def answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """A client's result; a client without output has died."""
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said = ""
    try:
        result: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": f"it ended with {process.wait()} and said {said!r}"}
    return result


def run(env: Mapping[str, str], what: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """A client from start to end."""
    return answer(popen(env, what, prefix))


if __name__ == "__main__":
    exit_with("mps_check", main)
