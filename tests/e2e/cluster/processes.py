"""Components as child processes: started in sessions of their own, ended by their own pid only."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.paused_process import pause_process, resume_process

from .part_logs import register_log
from .waiting import WAIT_S


class ComponentError(RuntimeError):
    """A component ended or did not come up; the text ends with the tail of its log."""


class Process:
    """One component; its pid is on record, so that a later run can end what a crashed one left."""

    def __init__(self, name: str, command: Sequence[str], log: Path, records: Path) -> None:
        self.name = name
        self._command = tuple(command)
        self.flags: tuple[str, ...] = ()
        """Further ones, from the next start on."""
        self._log = log
        self._log_began = 0
        """Size of the log in bytes when the process was started last."""
        self._record = records / name
        register_log(name, log)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ComponentError(f"{self.name} was not started")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        if self.running:
            raise ComponentError(f"{self.name} is already running")
        with self._log.open("ab") as log:
            self._log_began = log.tell()
            self._child = subprocess.Popen(
                (*self._command, *self.flags),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(environment or {}),
                # A Ctrl-C at the terminal must reach the tests only; they take the cluster down in order.
                start_new_session=True,
            )
        self._record.write_text(f"{self._child.pid} {start_time(self._child.pid)}")

    def stop(self, timeout: float = 10) -> None:
        """SIGTERM, then SIGKILL."""
        if not self.running:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        assert self._child is not None
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._record.unlink(missing_ok=True)

    def kill(self) -> None:
        if self.running:
            self.signal(signal.SIGKILL)
            assert self._child is not None
            self._child.wait()
        self._record.unlink(missing_ok=True)

    def wait_for_end(self, timeout: float) -> None:
        """Wait until it has ended by itself."""
        if self._child is not None:
            self._child.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        self._check_running()
        os.kill(self.pid, number)

    def _check_running(self) -> None:
        if not self.running:
            raise ComponentError(f"{self.name} is not running\n{self.log_tail()}")

    def pause(self) -> None:
        """It stands still, with all of its threads, when this returns."""
        self._check_running()
        pause_process(self.pid)

    def resume(self) -> None:
        self._check_running()
        resume_process(self.pid)

    def wait_for(self, ready: Callable[[], bool], timeout: float = WAIT_S) -> None:
        """Poll until ready; an end of the process is noticed at once."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ComponentError(f"{self.name} ended\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ComponentError(f"{self.name} was not ready within {timeout:g} s\n{self.log_tail()}")
            time.sleep(0.05)

    def log_since_start(self) -> str:
        """What it has logged since it was started last."""
        return self._log.read_bytes()[self._log_began :].decode(errors="replace")

    def log_tail(self, lines: int = 15) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


def start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot: with the pid it names one process for ever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name in parentheses may itself contain spaces and parentheses.
    return stat.rpartition(")")[2].split()[19]


def end_recorded(records: Path) -> None:
    """End the processes an earlier, crashed run has left."""
    for record in sorted(records.glob("*")):
        pid, _, started = record.read_text().partition(" ")
        if started and start_time(int(pid)) == started:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(int(pid), signal.SIGKILL)
        record.unlink()


def unread_by(pid: int, address: str, port: int) -> int:
    """Bytes for a process from this IPv4 address and port: in its sockets, and in those that it is connected to."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    inodes = set()
    for path in descriptors:
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    peer = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
    received: dict[str, int] = {}
    sent: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        sending, _, receiving = fields[4].partition(":")
        if fields[2] == peer and fields[9] in inodes:
            received[fields[1]] = int(receiving, 16)
        elif fields[1] == peer:
            # Also what has come, and is not acknowledged yet.
            sent[fields[2]] = int(sending, 16)
    return sum(received.values()) + sum(sent.get(own, 0) for own in received)
