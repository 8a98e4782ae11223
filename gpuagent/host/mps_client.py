"""NVIDIA MPS on a host: its paths, and a client of its control daemon in which every call has a deadline.

NVIDIA documents the commands of `nvidia-cuda-mps-control`, but not its protocol with the daemon. So every call runs
that program, with one command on its standard input and CUDA_MPS_PIPE_DIRECTORY in its environment.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from gpuagent.host.owners import foreign, foreign_owner
from gpuagent.system.printable import error_words

OWN_DIRECTORY = Path("/var/run/gpuagent/mps")
"""Pipe directory of the daemon that the agent starts; containers see it at the same path."""

CONTROL = "nvidia-cuda-mps-control"

DRIVER_FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/home/kubernetes/bin/nvidia/bin", "/run/nvidia/driver/usr/bin")
"""Folders of the driver's programs in addition to PATH: hosts, Container-Optimized OS, driver containers."""

NVIDIA_DEFAULT = Path("/tmp/nvidia-mps")  # noqa: S108 (NVIDIA's choice)
"""The pipe directory of daemon and clients when CUDA_MPS_PIPE_DIRECTORY is not set."""

ACK = Path("/var/run/nvidia-gpu/nvidia-mps")
"""Where ack-mps-control keeps its daemon from 0.2.0 on."""

ROOTS_DEFAULT = Path("/run/nvidia-mps")
"""The same for a daemon that root runs, from driver 615 on."""

KNOWN_DIRECTORIES = (ACK, ROOTS_DEFAULT, NVIDIA_DEFAULT)

PID_FILE = "nvidia-cuda-mps-control.pid"
CONTROL_SOCKET = "control"
RESTARTED_MARK = "restarted-by-mps-control"
"""A file beside the pipes of a daemon that `gpuagent mps-control` starts again when it ends."""
_LONGEST_SOCKET = "control_privileged"
_SOCKET_PATH_BYTES = 107
_NOBODY = "cannot find mps control daemon"
_ALIVE = "get_default_active_thread_percentage"
"""A command that changes nothing."""
_PROCESS_NAME = CONTROL[:15]  # the kernel keeps 15 bytes of it, and the server's name begins with the same
_OPEN_TO_ALL = 0o755  # servers and clients of other users have to get in
_END_S = 1.0
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.[0-9]+)?([MG]?)")


class MpsError(Exception):
    """A command to the control daemon failed; the text says what happened."""


class NoDaemonError(MpsError):
    """No control daemon runs at this pipe directory."""


class UntrustedError(NoDaemonError):
    """Another user of the host may run the control daemon at this pipe directory, so the agent does not use it."""


class ProtocolError(MpsError):
    """The control daemon speaks a later protocol, in which the agent's commands mean nothing."""


class HangsError(MpsError):
    """The control daemon received the command and did not answer in time."""


def find_program(name: str, folders: Sequence[str] = DRIVER_FOLDERS) -> Path | None:
    """A program of the driver: a path as it is, a name from PATH or the usual driver folders; None where it is not."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    program = shutil.which(name, path=path)
    return Path(program) if program else None


def too_long(pipe_dir: Path) -> bool:
    """Whether the paths of the daemon's sockets would be too long: it then fails with a misleading error."""
    return len(os.fsencode(pipe_dir / _LONGEST_SOCKET)) > _SOCKET_PATH_BYTES


def daemon_pid(pipe_dir: Path) -> int | None:
    """PID of the daemon at `pipe_dir` as its file has it; None without one, or where that process is something else.

    A daemon in another container writes the PID of its own namespace, so the name of the process must match, too.
    """
    try:
        pid = int((pipe_dir / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return pid if is_of_mps(pid) else None


def daemon_began_at(pipe_dir: Path) -> float | None:
    """When the daemon at `pipe_dir` began, in seconds since 1970; None without one. It writes its PID file then."""
    try:
        return (pipe_dir / PID_FILE).stat().st_mtime
    except OSError:
        return None


def daemon_mark(pipe_dir: Path) -> tuple[int, int] | None:
    """What tells the daemon at `pipe_dir` from the one before it: its PID file; None without one."""
    try:
        status = (pipe_dir / PID_FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def is_started_again(pipe_dir: Path) -> bool:
    """Whether `gpuagent mps-control` starts the daemon at `pipe_dir` again when it ends."""
    mark = pipe_dir / RESTARTED_MARK
    # Clients may write in the directory.
    return mark.exists() and _foreign_file(mark) is None


def is_of_mps(pid: int) -> bool:
    """Whether this process is a control daemon of MPS, or a server of one."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == _PROCESS_NAME
    except (OSError, ValueError):
        return False


def untrusted(pipe_dir: Path) -> str | None:
    """Why the daemon at `pipe_dir` may be another user's than root's or this one's, and what to do; None if it is not.

    Its server would see what all containers compute. NVIDIA's daemon lets everyone write in its directory, so each of
    its files counts by its own owner.
    """
    try:
        why = foreign(pipe_dir, shared=True) or _foreign_file_in(pipe_dir) or _foreign_process(pipe_dir)
    except FileNotFoundError:
        return None  # there is none, or it has just ended
    except OSError as err:
        why = f"its owner is not known ({error_words(err)})"
    if why is None:
        return None
    return (
        f"the MPS control daemon at {pipe_dir} is not used, because another user may run it: {why}. End it and remove "
        f"the directory, or run it as root in a directory that only root can replace"
    )


def _foreign_file_in(pipe_dir: Path) -> str | None:
    """Why a file of the daemon is another user's."""
    for name in (CONTROL_SOCKET, _LONGEST_SOCKET, PID_FILE):
        why = _foreign_file(pipe_dir / name)
        if why:
            return why
    return None


def _foreign_file(path: Path) -> str | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    return foreign_owner(path, status.st_uid)


def _foreign_process(pipe_dir: Path) -> str | None:
    """Why the daemon's process is another user's."""
    pid = daemon_pid(pipe_dir)
    if pid is None:
        return None
    process = Path(f"/proc/{pid}")
    return foreign_owner(process, process.stat().st_uid)


def make_directories(*folders: Path) -> None:
    """Make the daemon's directories, so that servers and clients of all users can get in.

    Raises:
        MpsError: one cannot be made, or another user of the host could replace it.
    """
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            why = foreign(folder, shared=True)
            if why:
                raise MpsError(f"the directory {folder} is not used: {why}. Choose one that only root can replace")
            folder.chmod(_OPEN_TO_ALL)
    except OSError as err:
        raise MpsError(f"the daemon's directories cannot be made: {error_words(err)}") from err


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables of CUDA and MPS, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return kept | more


class ServerLimit(Enum):
    """A limit of each program of a server, which the program may lower and not raise. Its value names its commands."""

    MEMORY = "device_pinned_mem_limit"
    """In MiB. From CUDA 11.5 on."""
    PERCENTAGE = "active_thread_percentage"

    def get(self, server: int | None) -> str:
        """The command that asks for it; without a server, for that of servers to come."""
        return self._command("get", server)

    def set(self, amount: int, server: int | None) -> str:
        """The command that sets it; without a server, for servers to come."""
        unit = "M" if self is ServerLimit.MEMORY else ""
        return self._command("set", server, f"{amount}{unit}")

    def amount(self, text: str) -> int | None:
        """The limit that the daemon's answer names; None if it names none, or 0."""
        match = _AMOUNT.fullmatch(text)
        if match is None:
            return None
        amount = int(match[1])
        in_unit = amount * 1024 if match[2] == "G" else amount
        return in_unit or None

    def _command(self, verb: str, server: int | None, *arguments: str) -> str:
        words = [f"{verb}_default_{self.value}"]
        if server is not None:
            words = [f"{verb}_{self.value}", str(server)]
        if self is ServerLimit.MEMORY:
            # The ordinal of the GPU. A daemon of one GPU has that one only.
            words.append("0")
        return " ".join([*words, *arguments])


class Control:
    """Client of the control daemon at one pipe directory. May be used from any thread.

    Args:
        program: path of `nvidia-cuda-mps-control`.
        pipe_dir: CUDA_MPS_PIPE_DIRECTORY of the daemon.
        deadline_s: how long an answer may take.
    """

    def __init__(self, program: Path, pipe_dir: Path, *, deadline_s: float = 2.0) -> None:
        self.pipe_dir = pipe_dir
        self._program = program
        self._deadline_s = deadline_s

    def ask(self, command: str, *, deadline_s: float | None = None) -> str:
        """Send one command and return the answer, without blanks around it.

        Raises:
            NoDaemonError: no daemon runs there.
            HangsError: no answer came within the deadline; the control program was killed.
            MpsError: the program cannot be run, or reports that the command failed.
        """
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            process = subprocess.Popen(  # noqa: S603 (the driver's own program)
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(CUDA_MPS_PIPE_DIRECTORY=str(self.pipe_dir)),
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as err:
            raise MpsError(f"{self._program} cannot be run: {err.strerror}") from err
        try:
            answer, _ = process.communicate(f"{command}\n", timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise HangsError(
                f"the MPS control daemon at {self.pipe_dir} did not answer {command!r} within {limit_s:g} s"
            ) from None
        text = answer.strip()
        if _NOBODY in text.lower():
            raise NoDaemonError(f"no MPS control daemon runs at {self.pipe_dir}")
        if process.returncode:
            raise MpsError(f"{command!r} at {self.pipe_dir} failed ({process.returncode}): {text or 'no text'}")
        return text

    def alive(self, *, deadline_s: float | None = None) -> None:
        """Make one real round trip to the daemon that changes nothing.

        Raises:
            MpsError: it does not answer, or not with a percentage.
        """
        odd = self._odd_answer(deadline_s)
        if odd is not None:
            # One odd answer does not mean that the daemon died. A real one gave it beside many other commands.
            odd = self._odd_answer(deadline_s)
        if odd is None:
            return
        text, error = odd
        self._check_protocol(text)
        raise error

    def _odd_answer(self, deadline_s: float | None) -> tuple[str, MpsError] | None:
        """What the daemon says instead of a percentage, with the error to raise; None if it says one.

        Raises:
            NoDaemonError: no daemon runs there.
            HangsError: no answer came within the deadline.
        """
        try:
            text = self.ask(_ALIVE, deadline_s=deadline_s)
        except (NoDaemonError, HangsError):
            raise
        except MpsError as err:
            return str(err), err
        if _is_percentage(text):
            return None
        return text, MpsError(f"{_ALIVE!r} at {self.pipe_dir} was answered with {text!r}, not a percentage")

    def _check_protocol(self, text: str) -> None:
        """Raise ProtocolError if the daemon speaks protocol 3, whose commands are arguments.

        Args:
            text: its answer to a command on standard input.
        """
        try:
            answer = subprocess.run(  # noqa: S603 (the driver's own program)
                [self._program, "server", "list"],
                input=f"{_ALIVE}\n",
                capture_output=True,
                env=environment(CUDA_MPS_PIPE_DIRECTORY=str(self.pipe_dir)),
                timeout=self._deadline_s,
                text=True,
                errors="replace",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return
        said = answer.stdout.strip()
        # A program that ignores arguments obeys its standard input, and says the same again or a percentage by now.
        ignored_arguments = said == text or _is_percentage(said) or _NOBODY in said.lower()
        if answer.returncode == 0 and not ignored_arguments:
            raise ProtocolError(
                f"the MPS control daemon at {self.pipe_dir} speaks protocol 3 and is not adopted. End it and the agent "
                f"starts its own, or start it with protocol 2 ({CONTROL} -d -p 2)"
            )

    def servers(self, *, deadline_s: float | None = None) -> tuple[int, ...]:
        """PIDs of the servers the daemon runs; it starts one with the first client. Raises MpsError."""
        return _numbers(self.ask("get_server_list", deadline_s=deadline_s))

    def clients(self) -> tuple[int, ...]:
        """PIDs of the clients of every server. Raises MpsError."""
        pids: list[int] = []
        for server in self.servers():
            pids += self.clients_of(server)
        return tuple(pids)

    def clients_of(self, server: int) -> tuple[int, ...]:
        """PIDs of the clients of one server. Raises MpsError."""
        return _numbers(self.ask(f"get_client_list {server}"))

    def status(self, server: int) -> str:
        """The state of a server in the daemon's word, such as ``ACTIVE`` or ``FAULT``. Raises MpsError."""
        return self.ask(f"get_server_status {server}").upper()

    def limit(self, limit: ServerLimit, server: int | None = None, *, deadline_s: float | None = None) -> int | None:
        """A limit of a server, or of those to come. None if none is set, and if the daemon does not know the command.

        Raises:
            MpsError: no daemon runs there, or it does not answer.
        """
        try:
            text = self.ask(limit.get(server), deadline_s=deadline_s)
        except (NoDaemonError, HangsError):
            raise
        except MpsError:
            return None
        return limit.amount(text)

    def set_limit(
        self, limit: ServerLimit, amount: int, server: int | None = None, *, deadline_s: float | None = None
    ) -> str:
        """Set a limit of a server, or of those to come; what the daemon says. Whether it did so, `limit` shows.

        Raises:
            MpsError: no daemon runs there, or it does not answer.
        """
        try:
            return self.ask(limit.set(amount, server), deadline_s=deadline_s)
        except (NoDaemonError, HangsError):
            raise
        except MpsError as err:
            return str(err)

    def terminate(self, server: int, client: int, *, deadline_s: float) -> None:
        """End a client's contexts safely, also while it has work on the GPU. The daemon takes no new client meanwhile.

        A signal that ends such a client can leave the server in an undefined state.

        Raises:
            MpsError: the client was not ended, or not in time.
        """
        self.ask(f"terminate_client {server} {client}", deadline_s=deadline_s)

    def quit(self, *, force_after_s: int | None = None, deadline_s: float | None = None) -> None:
        """Shut the daemon down. It waits for its clients, or ends its servers after `force_after_s` seconds.

        Raises:
            MpsError: the daemon did not shut down.
        """
        self.ask("quit" if force_after_s is None else f"quit -t {force_after_s}", deadline_s=deadline_s)


def _is_percentage(text: str) -> bool:
    words = text.split()
    try:
        float(words[-1])
    except (IndexError, ValueError):
        return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal())


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill a process that hangs, and wait only briefly: during a driver call its end may take long."""
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream:
            with suppress(OSError):
                stream.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
