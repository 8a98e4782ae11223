"""Find, start and stop the node's MPS control daemon, which serves all GPUs; `mps` decides when."""

import logging
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuagent.host.mps_client import (
    CONTROL,
    CONTROL_SOCKET,
    KNOWN_DIRECTORIES,
    OWN_DIRECTORY,
    Control,
    MpsError,
    NoDaemonError,
    UntrustedError,
    daemon_pid,
    environment,
    find_program,
    make_directories,
    too_long,
    untrusted,
)
from gpuagent.isolation.mps_record import MpsRecord
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

OWN_LOGS = Path("/var/log/gpuagent/mps")

NOT_FOUND = f"{CONTROL} was not found on PATH or in the driver's folders: install the driver's compute utilities"

_LOOK_S = 0.05
_END_S = 1.0
_LOG_LINES = 3


class MpsDaemon:
    """The control daemon. One thread finds, starts and quits it; any thread may send commands through `control`.

    The agent starts it with `-d`: it then has its own session and init for a parent, and outlives the agent.

    Args:
        program: name or path of `nvidia-cuda-mps-control`; searched for until found, as the driver may come late.
        record: notes the daemon that the agent started.
        own: pipe directory of a daemon that the agent starts.
        logs: its log directory.
        known: pipe directories in which the agent looks for another program's daemon.
        ask_s: how long it may take to answer.
        start_s: how long it may take to start.
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
        self._record = record
        self._program: Path | None = None
        self._own = own
        self._logs = logs
        self._known = tuple(known)
        self.ask_s = ask_s
        self._start_s = start_s
        self.pipe_dir = own
        self.one_user = False
        """Whether the program that started the daemon lacks multi-user mode."""

    @property
    def program(self) -> Path | None:
        """Where `nvidia-cuda-mps-control` is; None while it is not on this node."""
        self._program = self._program or find_program(self._name)
        return self._program

    @property
    def control(self) -> Control:
        """The client of the daemon.

        Raises:
            UntrustedError: another user may run it.
            MpsError: the control program is missing.
        """
        return self._control_at(self.pipe_dir)

    @property
    def started_one(self) -> bool:
        """Whether this agent, or one before a restart, started a daemon that it has not seen end."""
        return self._record.daemon is not None

    @property
    def is_ours(self) -> bool:
        """Whether this agent, or one before a restart, started it. The agent stops only such a daemon."""
        noted = self._record.daemon
        return noted is not None and self.in_own_directory and noted in {0, daemon_pid(self._own)}

    @property
    def in_own_directory(self) -> bool:
        """It is, or was last, in the agent's own directory: no other program is expected to restart it."""
        return self.pipe_dir == self._own

    @property
    def pipe_dirs(self) -> tuple[Path, ...]:
        """Pipe directories in which one is looked for, the agent's own first."""
        return (self._own, *self._known)

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Daemons that are not used because another user may run them, in words."""
        reasons = []
        for pipe_dir in self.pipe_dirs:
            socket = pipe_dir / CONTROL_SOCKET
            reason = untrusted(pipe_dir) if socket.exists() else None
            if reason:
                reasons.append(reason)
        return tuple(reasons)

    def find(self) -> bool:
        """Look for a daemon of root's or this user's, the agent's own directory first, and adopt it."""
        for pipe_dir in self.pipe_dirs:
            if not (pipe_dir / CONTROL_SOCKET).exists():
                continue
            try:
                self._control_at(pipe_dir).alive()
            except NoDaemonError:
                continue  # a daemon that was killed leaves its socket behind
            except MpsError as err:  # there is one: a second daemon on the node would not help
                log.warning("Failed to read the state of an MPS control daemon", extra={"error": str(err)})
            self.pipe_dir = pipe_dir
            log.info("Found MPS control daemon", extra={"pipe_dir": str(pipe_dir), "started_here": self.is_ours})
            return True
        return False

    def start(self, visible: Sequence[str] = ()) -> None:
        """Start a daemon in the agent's own directory and wait until it answers.

        Args:
            visible: UUIDs of the GPUs it may use; empty: all. The server does not start on a GPU that cannot do MPS.

        Raises:
            MpsError: it does not start; the text has its output and the end of its log.
        """
        program = self.program
        if program is None:
            raise MpsError(NOT_FOUND)
        if too_long(self._own):
            raise MpsError(f"the pipe directory {self._own} is too long for the daemon's sockets: choose a shorter one")
        make_directories(self._own, self._logs)
        try:
            self._record.started(0)  # before it runs: the agent would never stop a daemon that it did not note
        except OSError as err:
            raise MpsError(f"the MPS control daemon cannot be noted: {error_words(err)}") from err
        # Without -M (which older drivers lack) clients of one user wait for those of another to end.
        refused = self._launch((str(program), "-d", "-M"), visible)
        self.one_user = refused is not None
        if self.one_user:
            refused = self._launch((str(program), "-d"), visible)
        if refused is not None:
            raise MpsError(f"{program} -d failed: {refused}{self._log_end()}")
        self.pipe_dir = self._own
        self._await_answer()
        with suppress(OSError):  # 0 stays noted, which suffices
            self._record.started(daemon_pid(self._own) or 0)
        log.info("Started MPS control daemon", extra={"pipe_dir": str(self._own), "one_user": self.one_user})

    def quit(self) -> bool:
        """Stop the daemon that the agent started, unless a client runs. Returns whether it has ended.

        Raises:
            MpsError: it does not answer, or does not end.
        """
        self.pipe_dir = self._own
        try:
            if self.is_ours:  # and not another program's in the same directory
                if self.control.clients():
                    return False
                self.control.quit(deadline_s=self._start_s)
                log.info("Asked MPS control daemon to quit", extra={"pipe_dir": str(self._own)})
        except NoDaemonError:
            pass
        with suppress(OSError):  # the record then names a process that has ended
            self._record.started(None)
        return True

    def _control_at(self, pipe_dir: Path) -> Control:
        if self.program is None:
            raise MpsError(NOT_FOUND)
        if why := untrusted(pipe_dir):
            raise UntrustedError(why)
        return Control(self.program, pipe_dir, deadline_s=self.ask_s)

    def _launch(self, command: Sequence[str], visible: Sequence[str]) -> str | None:
        """Run the program until it is in the background. None, or its output when it failed. MpsError: it hangs."""
        more = {"CUDA_VISIBLE_DEVICES": ",".join(visible)} if visible else {}
        env = environment(CUDA_MPS_PIPE_DIRECTORY=str(self._own), CUDA_MPS_LOG_DIRECTORY=str(self._logs), **more)
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
                code = process.wait(self._start_s)
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                call = " ".join(command)
                raise MpsError(f"{call} was not in the background after {self._start_s:g} s") from None
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
        return f"{text or 'no text'} (exit code {code})" if code else None

    def _await_answer(self) -> None:
        until = time.monotonic() + self._start_s
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
