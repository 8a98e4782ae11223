"""`gpuagent mps-control`: NVIDIA MPS's control daemon in a container of its own, which outlives the agent."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpuagent.host.mps_client import (
    Control,
    MpsError,
    NoDaemonError,
    environment,
    find_program,
    make_directories,
    too_long,
    untrusted,
)
from gpuagent.system.stop_signal import StopSignal

START_S = 10.0
QUIT_S = 5.0
LOOK_AFTER_S = 0.5
_LOOK_S = 0.05


class MpsStartError(Exception):
    """The daemon cannot run here; the text says why and what to do."""


def serve(control: str, pipe_dir: Path, log_dir: Path, *, exclusive: bool, smi: str = "nvidia-smi") -> int:
    """Run the daemon in the foreground until SIGTERM or its own end; returns the exit code.

    Args:
        control: name or path of `nvidia-cuda-mps-control`.
        pipe_dir: where clients find it; made where it is missing.
        log_dir: where its logs go; made where it is missing.
        exclusive: keep every GPU of the node in compute mode EXCLUSIVE_PROCESS as long as the daemon runs.
        smi: name or path of `nvidia-smi`, which sets it.

    Raises:
        MpsStartError: the daemon cannot be started.
    """
    program = _program(control)
    if too_long(pipe_dir):
        raise MpsStartError(f"the pipe directory {pipe_dir} is too long for the daemon's sockets: choose a shorter one")
    try:
        make_directories(pipe_dir, log_dir)
    except MpsError as err:
        raise MpsStartError(str(err)) from err
    if why := untrusted(pipe_dir):
        raise MpsStartError(why)
    ending = StopSignal()
    client = Control(program, pipe_dir)
    with contextlib.suppress(NoDaemonError):
        client.alive()
        raise MpsStartError(f"another MPS control daemon answers at {pipe_dir}: leave it, or end it first")
    if exclusive:
        _set_mode(smi, "EXCLUSIVE_PROCESS")
    try:
        daemon = _start(program, client, pipe_dir, log_dir, ending)
        return _keep(daemon, client, ending)
    finally:
        if exclusive:
            _set_mode(smi, "DEFAULT")


def _start(
    program: Path, client: Control, pipe_dir: Path, log_dir: Path, ending: StopSignal
) -> "subprocess.Popen[bytes]":
    """Return the daemon once it answers, or once this process shall end.

    The daemon lacks multi-user mode if the program does not support that.
    """
    env = environment(CUDA_MPS_PIPE_DIRECTORY=str(pipe_dir), CUDA_MPS_LOG_DIRECTORY=str(log_dir))
    # Older drivers lack -M, and then the program ends at once.
    for options in (("-f", "-M"), ("-f",)):
        daemon = subprocess.Popen(  # noqa: S603 (the driver's own program)
            [program, *options], stdin=subprocess.DEVNULL, env=env, cwd="/"
        )
        until = time.monotonic() + START_S
        while daemon.poll() is None:
            with contextlib.suppress(MpsError):
                client.alive()
                print(f"MPS control daemon runs: {program} {' '.join(options)}, pipes {pipe_dir}", flush=True)
                return daemon
            if time.monotonic() >= until:
                daemon.kill()
                daemon.wait()
                raise MpsStartError(f"{program} {' '.join(options)} did not answer within {START_S:g} s")
            if ending.wait(_LOOK_S):
                return daemon
    raise MpsStartError(f"{program} -f ended with {daemon.returncode}: its log is in {log_dir}")


def _keep(daemon: "subprocess.Popen[bytes]", client: Control, ending: StopSignal) -> int:
    """Wait for the daemon's end, or stop the daemon when this process receives a stop signal."""
    while daemon.poll() is None:
        if not ending.wait(LOOK_AFTER_S):
            continue
        try:
            client.quit(force_after_s=0, deadline_s=QUIT_S)
            daemon.wait(QUIT_S)
        except (MpsError, subprocess.TimeoutExpired) as err:
            print(f"the daemon does not quit, it is killed: {err}", file=sys.stderr)
            daemon.kill()
            daemon.wait()
        return 0
    print(f"the daemon has ended by itself with {daemon.returncode}", file=sys.stderr)
    return 1


def _program(name: str) -> Path:
    program = find_program(name)
    if program is None:
        raise MpsStartError(
            f"{name} was not found: the container needs the driver's compute utilities "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility and a runtime that gives it the driver)"
        )
    return program


def _set_mode(smi: str, mode: str) -> None:
    program = _program(smi)
    command: Sequence[str | Path] = [program, "-c", mode]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 (the same)
    if done.returncode:
        output = done.stdout + done.stderr
        text = output.decode(errors="replace").strip()
        failed = f"{program} -c {mode} failed ({done.returncode}): {text}"
        raise MpsStartError(f"{failed}; it takes a privileged container")
