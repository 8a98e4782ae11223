"""`gpuagent mps-control`: NVIDIA MPS's control daemons in a container of their own, which outlives the agent."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from gpuagent.domain.gpus.gpu import KEY_CHARS, Gpu
from gpuagent.host.mps_client import (
    RESTARTED_MARK,
    Control,
    MpsError,
    NoDaemonError,
    environment,
    find_program,
    make_directories,
    too_long,
    untrusted,
)
from gpuagent.isolation.mps.share import why_not
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.backoff import Backoff
from gpuagent.system.printable import error_words
from gpuagent.system.stop_signal import StopSignal

START_S = 10.0
QUIT_S = 5.0
LOOK_AFTER_S = 0.5
STEADY_S = 60.0
_LOOK_S = 0.05


class MpsStartError(Exception):
    """The daemons cannot run here; the text says why and what to do."""


def serve(  # noqa: PLR0913 (all by name)
    control: str, pipe_dir: Path, log_dir: Path, gpus: Iterable[Gpu], *, exclusive: bool, smi: str = "nvidia-smi"
) -> int:
    """Run a daemon for each GPU in the foreground until SIGTERM; returns the exit code.

    A daemon that ends is started again, and the others go on.

    Args:
        control: name or path of `nvidia-cuda-mps-control`.
        pipe_dir: directory of the pipe directories, one for each GPU; made where it is missing.
        log_dir: the same for logs.
        gpus: of the node. Those that cannot be shared through MPS are left out.
        exclusive: keep these GPUs in compute mode EXCLUSIVE_PROCESS as long as their daemons run.
        smi: name or path of `nvidia-smi`, which sets it.

    Raises:
        MpsStartError: no daemon can be started.
    """
    program = _program(control)
    usable = _usable(gpus)
    _check_directories(program, pipe_dir, log_dir)
    ending = StopSignal()
    daemons = [
        GpuDaemon(gpu, program, pipe_dir / gpu.key, log_dir / gpu.key, _program(smi) if exclusive else None, ending)
        for gpu in usable
    ]
    for daemon in daemons:
        daemon.start()
    try:
        for daemon in daemons:
            daemon.began.wait()
        problems = [daemon.problem for daemon in daemons if daemon.problem]
        if len(problems) == len(daemons):
            raise MpsStartError(problems[0])
        ending.wait()
        for daemon in daemons:
            daemon.join()
    finally:
        for daemon in daemons:
            daemon.give_mode_back()
    return 0


class GpuDaemon:
    """The daemon of one GPU, and the thread that keeps it.

    Args:
        gpu: that it serves.
        program: path of `nvidia-cuda-mps-control`.
        pipe_dir: where its clients find it.
        log_dir: where its logs go.
        smi: path of `nvidia-smi`, to make the GPU exclusive; None leaves its compute mode alone.
        ending: the signal that ends this process.

    Attributes:
        began: set once the first start has succeeded or failed.
        problem: why the last start failed; None after one that succeeded.
    """

    def __init__(  # noqa: PLR0913 (of one place)
        self, gpu: Gpu, program: Path, pipe_dir: Path, log_dir: Path, smi: Path | None, ending: StopSignal
    ) -> None:
        self._gpu = gpu
        self._program = program
        self._pipe_dir = pipe_dir
        self._log_dir = log_dir
        self._smi = smi
        self._ending = ending
        self._is_exclusive = False
        self._client = Control(program, pipe_dir)
        self.began = threading.Event()
        self.problem: str | None = None
        # A daemon thread: a start that fails on all GPUs ends the process.
        self._thread = threading.Thread(target=self._run, name=f"mps-gpu-{gpu.index}", daemon=True)

    def start(self) -> None:
        """Start the daemon, and keep it until the process ends."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the daemon has ended."""
        self._thread.join()

    def give_mode_back(self) -> None:
        """Let programs without MPS use the GPU again, once no daemon is started again. Raises MpsStartError."""
        if self._is_exclusive and self._smi:
            _set_mode(self._smi, self._gpu, "DEFAULT")

    def _run(self) -> None:
        delays = Backoff()
        while True:
            began_at = time.monotonic()
            try:
                self._serve()
            except (MpsStartError, MpsError) as err:
                self._fail(str(err))
            except OSError as err:
                self._fail(f"the daemon cannot be run: {error_words(err)}")
            self.began.set()
            if time.monotonic() - began_at >= STEADY_S:
                delays.reset()
            if self._ending.wait(delays.next_s()):
                return

    def _serve(self) -> None:
        """Run the daemon until its end, or until this process shall end."""
        if why := untrusted(self._pipe_dir):
            raise MpsStartError(why)
        make_directories(self._pipe_dir, self._log_dir)
        _check_none_answers(self._client)
        # The agent ends only a daemon that is started again. Clients may write here, and could have left a link.
        write_whole(self._pipe_dir / RESTARTED_MARK, "", on_disk=False)
        if self._smi:
            _set_mode(self._smi, self._gpu, "EXCLUSIVE_PROCESS")
            self._is_exclusive = True
        daemon = self._start()
        self.problem = None
        self.began.set()
        self._keep(daemon)

    def _start(self) -> "subprocess.Popen[bytes]":
        """Return the daemon once it answers, or once this process shall end.

        The daemon lacks multi-user mode if the program does not support that.
        """
        env = environment(
            CUDA_MPS_PIPE_DIRECTORY=str(self._pipe_dir),
            CUDA_MPS_LOG_DIRECTORY=str(self._log_dir),
            CUDA_VISIBLE_DEVICES=self._gpu.uuid,
        )
        # Older drivers lack -M, and then the program ends at once.
        for options in (("-f", "-M"), ("-f",)):
            daemon = subprocess.Popen(  # noqa: S603 (the driver's own program)
                [self._program, *options], stdin=subprocess.DEVNULL, env=env, cwd="/"
            )
            until = time.monotonic() + START_S
            while daemon.poll() is None:
                with contextlib.suppress(MpsError):
                    self._client.alive()
                    self._say(f"MPS control daemon runs: {self._program} {' '.join(options)}, pipes {self._pipe_dir}")
                    return daemon
                if time.monotonic() >= until:
                    daemon.kill()
                    daemon.wait()
                    raise MpsStartError(f"{self._program} {' '.join(options)} did not answer within {START_S:g} s")
                if self._ending.wait(_LOOK_S):
                    return daemon
        raise MpsStartError(f"{self._program} -f ended with {daemon.returncode}: its log is in {self._log_dir}")

    def _keep(self, daemon: "subprocess.Popen[bytes]") -> None:
        """Wait for the daemon's end, or stop the daemon when this process receives a stop signal."""
        while daemon.poll() is None:
            if not self._ending.wait(LOOK_AFTER_S):
                continue
            try:
                self._client.quit(force_after_s=0, deadline_s=QUIT_S)
                daemon.wait(QUIT_S)
            except (MpsError, subprocess.TimeoutExpired) as err:
                self._say(f"the daemon does not quit, it is killed: {err}")
                daemon.kill()
                daemon.wait()
            return
        self._say(f"the daemon has ended by itself with {daemon.returncode}, and is started again")

    def _fail(self, reason: str) -> None:
        self.problem = reason
        self._say(reason)

    def _say(self, text: str) -> None:
        print(f"GPU {self._gpu.index}: {text}", flush=True)


def _usable(gpus: Iterable[Gpu]) -> list[Gpu]:
    usable = []
    for gpu in gpus:
        reason = why_not(gpu)
        if reason is None:
            usable.append(gpu)
        else:
            print(f"left out: {reason}", flush=True)
    if not usable:
        raise MpsStartError("no GPU of this node can be shared through MPS")
    return usable


def _check_directories(program: Path, pipe_dir: Path, log_dir: Path) -> None:
    """Raise MpsStartError if the directories cannot be used."""
    longest = pipe_dir / ("k" * KEY_CHARS)
    if too_long(longest):
        raise MpsStartError(f"the pipe directory {pipe_dir} is too long for the daemon's sockets: choose a shorter one")
    try:
        make_directories(pipe_dir, log_dir)
    except MpsError as err:
        raise MpsStartError(str(err)) from err
    if why := untrusted(pipe_dir):
        raise MpsStartError(why)
    # One that serves all GPUs: a second one on a GPU is a daemon too many.
    _check_none_answers(Control(program, pipe_dir))


def _check_none_answers(client: Control) -> None:
    with contextlib.suppress(NoDaemonError):
        client.alive()
        raise MpsStartError(f"another MPS control daemon answers at {client.pipe_dir}: leave it, or end it first")


def _program(name: str) -> Path:
    program = find_program(name)
    if program is None:
        raise MpsStartError(
            f"{name} was not found: the container needs the driver's compute utilities "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility and a runtime that gives it the driver)"
        )
    return program


def _set_mode(smi: Path, gpu: Gpu, mode: str) -> None:
    command = [str(smi), "-i", gpu.uuid, "-c", mode]
    done = subprocess.run(  # noqa: S603 (the same)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode == 0:
        return
    words = " ".join(command)
    output = done.stdout.decode(errors="replace").strip()
    raise MpsStartError(f"{words} failed ({done.returncode}): {output}; it takes a privileged container")
