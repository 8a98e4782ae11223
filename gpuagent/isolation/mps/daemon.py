"""Find, start and stop MPS control daemons, one for each GPU; `mps` decides when."""

import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.host.mps_client import (
    CONTROL,
    CONTROL_SOCKET,
    KNOWN_DIRECTORIES,
    OWN_DIRECTORY,
    Control,
    HangsError,
    MpsError,
    NoDaemonError,
    UntrustedError,
    daemon_pid,
    environment,
    find_program,
    is_of_mps,
    is_started_again,
    make_directories,
    too_long,
    untrusted,
)
from gpuagent.isolation.mps.daemon_record import NODE, MpsRecord
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

OWN_LOGS = Path("/var/log/gpuagent/mps")

NOT_FOUND = f"{CONTROL} was not found on PATH or in the driver's folders: install the driver's compute utilities"

_LOOK_S = 0.05
_END_S = 1.0
_LOG_LINES = 3


class MpsDaemons:
    """The control daemons of the node: those of its GPUs in the agent's own directory, and those for all GPUs.

    Args:
        program: name or path of `nvidia-cuda-mps-control`; searched for until found, as the driver may come late.
        record: notes the daemons that the agent started.
        own: directory of the pipe directories of GPUs.
        logs: directory of their log directories.
        known: pipe directories in which the agent looks for another program's daemon.
        ask_s: how long a daemon may take to answer.
        start_s: how long a daemon may take to start.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        program: str,
        record: MpsRecord,
        *,
        own: Path = OWN_DIRECTORY,
        logs: Path = OWN_LOGS,
        known: Sequence[Path] = KNOWN_DIRECTORIES,
        ask_s: float = 2.0,
        start_s: float = 10.0,
    ) -> None:
        self._name = program
        self._program: Path | None = None
        self.record = record
        self.own = own
        self.logs = logs
        self.known = tuple(known)
        self.ask_s = ask_s
        self.start_s = start_s

    @property
    def program(self) -> Path | None:
        """Where `nvidia-cuda-mps-control` is; None while it is not on this node."""
        self._program = self._program or find_program(self._name)
        return self._program

    @property
    def node_wide_dirs(self) -> tuple[Path, ...]:
        """Pipe directories in which a daemon for all GPUs is looked for, the agent's own first."""
        return tuple(dict.fromkeys((self.own, *self.known)))

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Daemons for all GPUs that are not used because another user may run them, in words."""
        reasons = []
        for pipe_dir in self.node_wide_dirs:
            socket = pipe_dir / CONTROL_SOCKET
            reason = untrusted(pipe_dir) if socket.exists() else None
            if reason:
                reasons.append(reason)
        return tuple(reasons)

    def of_gpu(self, uuid: str) -> "MpsDaemon":
        """The daemon of one GPU, in a directory of the agent's own."""
        # The key is short, as paths of sockets have to be, and differs between the GPUs of a node.
        name = key_of(uuid)
        return MpsDaemon(self, uuid, self.own / name, self.logs / name)

    def of_node(self, pipe_dir: Path) -> "MpsDaemon":
        """A daemon for all GPUs. The agent never starts one."""
        return MpsDaemon(self, NODE, pipe_dir, self.logs)

    def find_for_node(self) -> "MpsDaemon | None":
        """The first daemon for all GPUs that root or this user runs, to adopt it."""
        for pipe_dir in self.node_wide_dirs:
            daemon = self.of_node(pipe_dir)
            if daemon.is_there():
                return daemon
        return None


class MpsDaemon:
    """One control daemon. One thread finds, starts and quits it; any thread may send commands through `control`.

    The agent starts it with `-d`: it then has its own session and init for a parent, and outlives the agent.

    Args:
        node: the daemons of the node.
        gpu: UUID of its GPU; `NODE` for a daemon that serves all GPUs.
        pipe_dir: its pipe directory.
        logs: its log directory.
    """

    def __init__(self, node: MpsDaemons, gpu: str, pipe_dir: Path, logs: Path) -> None:
        self._node = node
        self.gpu = gpu
        self.pipe_dir = pipe_dir
        self._logs = logs
        self.one_user = False
        """Whether the program that started the daemon lacks multi-user mode."""

    @property
    def control(self) -> Control:
        """The client of the daemon.

        Raises:
            UntrustedError: another user may run it.
            MpsError: the control program is missing.
        """
        program = self._node.program
        if program is None:
            raise MpsError(NOT_FOUND)
        if why := untrusted(self.pipe_dir):
            raise UntrustedError(why)
        return Control(program, self.pipe_dir, deadline_s=self._node.ask_s)

    @property
    def started_one(self) -> bool:
        """Whether this agent, or one before a restart, started a daemon that it has not seen end."""
        return self.gpu in self._node.record.daemons

    @property
    def is_ours(self) -> bool:
        """Whether this agent, or one before a restart, started it. The agent stops only such a daemon."""
        noted = self._node.record.daemons.get(self.gpu)
        return noted is not None and self.in_own_directory and noted in {0, daemon_pid(self.pipe_dir)}

    @property
    def in_own_directory(self) -> bool:
        """It is in the agent's own directory: no other program is expected to restart it."""
        own = self._node.own
        return own in {self.pipe_dir, self.pipe_dir.parent}

    def is_there(self) -> bool:
        """Whether a daemon of root's or this user's runs here. One that hangs counts: a second would not help."""
        socket = self.pipe_dir / CONTROL_SOCKET
        if not socket.exists():
            return False
        try:
            self.control.alive()
        except NoDaemonError:
            return False  # a daemon that was killed leaves its socket behind
        except MpsError as err:
            log.warning("Failed to read the state of an MPS control daemon", extra={"error": str(err)})
        extra = {"pipe_dir": str(self.pipe_dir), "started_here": self.is_ours}
        log.info("Found MPS control daemon", extra=extra)
        return True

    def start(self) -> None:
        """Start the daemon of the GPU and wait until it answers.

        Raises:
            MpsError: it does not start; the text has its output and the end of its log.
        """
        program = self._node.program
        if program is None:
            raise MpsError(NOT_FOUND)
        if too_long(self.pipe_dir):
            raise MpsError(
                f"the pipe directory {self.pipe_dir} is too long for the daemon's sockets: choose a shorter one"
            )
        make_directories(self._node.own, self.pipe_dir, self._node.logs, self._logs)
        record = self._node.record
        try:
            record.started(self.gpu, 0)  # before it runs: the agent would never stop a daemon that it did not note
        except OSError as err:
            raise MpsError(f"the MPS control daemon cannot be noted: {error_words(err)}") from err
        # Without -M (which older drivers lack) clients of one user wait for those of another to end.
        refused = self._launch((str(program), "-d", "-M"))
        self.one_user = refused is not None
        if self.one_user:
            refused = self._launch((str(program), "-d"))
        if refused is not None:
            raise MpsError(f"{program} -d failed: {refused}{self._log_end()}")
        self._await_answer()
        with suppress(OSError):  # 0 stays noted, which suffices
            record.started(self.gpu, daemon_pid(self.pipe_dir) or 0)
        extra = {"pipe_dir": str(self.pipe_dir), "gpu": self.gpu, "one_user": self.one_user}
        log.info("Started MPS control daemon", extra=extra)

    def quit(self) -> bool:
        """Stop the daemon that the agent started, unless a client runs. Returns whether it has ended.

        Raises:
            MpsError: it does not answer, or does not end.
        """
        try:
            if self.is_ours:  # and not another program's in the same directory
                if self.control.clients():
                    return False
                self.control.quit(deadline_s=self._node.start_s)
                log.info("Asked MPS control daemon to quit", extra={"pipe_dir": str(self.pipe_dir)})
        except NoDaemonError:
            pass
        with suppress(OSError):  # the record then names a process that has ended
            self._node.record.ended(self.gpu)
        return True

    @property
    def may_end(self) -> bool:
        """Whether the agent may end it if it hangs: it started the daemon, or `gpuagent mps-control` restarts it."""
        return self.is_ours or is_started_again(self.pipe_dir)

    def end(self, *, kill: bool) -> None:
        """End the daemon, whose server hangs.

        Args:
            kill: do not ask it, although programs may use it. Only a daemon that the agent started is killed.

        Raises:
            MpsError: it is another program's, or does not end.
        """
        if not self.may_end:
            raise MpsError(f"the MPS control daemon at {self.pipe_dir} is another program's")
        try:
            if not kill:
                self.control.quit(force_after_s=0, deadline_s=self._node.ask_s)
        except NoDaemonError:
            pass
        except HangsError:
            if not self.is_ours:
                raise
            kill = True
        if kill:
            self._kill()
        with suppress(OSError):  # the record then names a process that has ended
            self._node.record.ended(self.gpu)

    def _kill(self) -> None:
        """Kill the daemon that the agent started, and its servers."""
        if not self.is_ours:
            raise MpsError(f"the MPS control daemon at {self.pipe_dir} is not the agent's own, so it is not killed")
        pids = [daemon_pid(self.pipe_dir)]
        with suppress(MpsError):
            # First: only the daemon knows them.
            pids += self.control.servers()
        for pid in pids:
            if pid is not None and is_of_mps(pid):
                log.warning("Killed a process of MPS", extra={"pid": pid, "pipe_dir": str(self.pipe_dir)})
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _launch(self, command: Sequence[str]) -> str | None:
        """Run the program until it is in the background. None, or its output when it failed. MpsError: it hangs."""
        env = environment(
            CUDA_MPS_PIPE_DIRECTORY=str(self.pipe_dir),
            CUDA_MPS_LOG_DIRECTORY=str(self._logs),
            CUDA_VISIBLE_DEVICES=self.gpu,
        )
        start_s = self._node.start_s
        with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as the daemon lives
            try:
                process = subprocess.Popen(  # noqa: S603 (the driver's own program)
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as err:
                return error_words(err)
            try:
                code = process.wait(start_s)
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                call = " ".join(command)
                raise MpsError(f"{call} was not in the background after {start_s:g} s") from None
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
        return f"{text or 'no text'} (exit code {code})" if code else None

    def _await_answer(self) -> None:
        until = time.monotonic() + self._node.start_s
        while True:
            try:
                return self.control.alive()
            except NoDaemonError as err:
                if time.monotonic() >= until:
                    raise MpsError(f"the daemon was started and is gone: {err}{self._log_end()}") from err
            time.sleep(_LOOK_S)

    def _log_end(self) -> str:
        try:
            lines = (self._logs / "control.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        if not lines:
            return ""
        last = " | ".join(lines[-_LOG_LINES:])
        return f"; its log ends with: {last}"
