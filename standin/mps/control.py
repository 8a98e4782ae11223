"""A stand-in for `nvidia-cuda-mps-control`: the same command line, files, commands and life, and no GPU.

    nvidia-cuda-mps-control -d | -f [-M]      the daemon, in the background or the foreground
    nvidia-cuda-mps-control                   commands from standard input to the daemon at CUDA_MPS_PIPE_DIRECTORY

NVIDIA documents (docs.nvidia.com/deploy/mps, the manual page) the options -d and -f, the two directories and their
defaults, and the PID file. It also documents the commands below with their arguments. A server appears with the first
client, and `set_default_…` is lost with the daemon. `quit` waits for clients, at most for the time of -t.

Measured on an H200 with driver 580.159.04: `set_default_device_pinned_mem_limit` has no effect on a server that runs,
and `set_device_pinned_mem_limit` has. Both say nothing. `get_…` says whole GiB, rounded down: `4G` for 4107M. A server
without a limit says nothing. `set_active_thread_percentage` says the percentage. What a client makes of them is in
`client.py`.

Public reports show the socket's name and kind, `control_lock`, control.log, and the option -M. They also show "Cannot
find MPS control daemon process", "An instance of this daemon is already running", and percentages as "100.0".

Exit codes, the stream of each text, and the words of other errors are assumptions. So are these: an unknown option ends
it, one packet is one command, and -d returns when the files are there. The stand-in does not imitate the bytes on the
real socket, which are not known.

Tests steer it with `standin.json` in the pipe directory, which it reads at each command, all keys optional:
``{"clients": [4711], "hang": true, "refuse": "text", "multi_user": false, "protocol": 3}``. With protocol 3, commands
are arguments (`server list`), and those on standard input mean nothing. With ``{"limits": "unknown"}`` it does not
know the commands for limits of memory, as before CUDA 11.5; with ``"stuck"`` it takes them and changes nothing.

Programs that use CUDA (`standin.mps.cuda`) connect as clients, with commands of the stand-in's own: ``client PID``, and
``exact_memory_limit`` for what a server limits them to. A
client says ``work`` before it has work on the GPU, and ``done`` after. NVIDIA documents that a client which a signal
ends with work outstanding can leave its server in an undefined state. Public reports show what follows: the daemon
answers, and new clients wait forever. `terminate_client` ends a client safely. ``{"wedged": true}`` makes this state,
``{"status": "FAULT"}`` is what `get_server_status` says, and with ``{"fault": "GPU-0a"}`` the server has a fatal fault
on that GPU: it takes no new client on any of its GPUs.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

PIPES = "/tmp/nvidia-mps"
LOGS = "/var/log/nvidia-mps"
STEERING = "standin.json"
PACKET = 65536
NO_DAEMON = "Cannot find MPS control daemon process"
UNKNOWN_COMMAND = "Unrecognized command"
POLL_S = 0.02
SERVED = "served"
NOT_READY = "error 807"
TERMINATED = "error 700"


def steering(pipes: Path) -> dict[str, Any]:
    """The test's settings, read now."""
    try:
        wanted: dict[str, Any] = json.loads((pipes / STEERING).read_text())
    except FileNotFoundError:
        return {}
    return wanted


def is_amount(text: str) -> bool:
    """Whether it is an amount of memory."""
    return text[:-1].isdigit() and text[-1] in "GM"


def shown(value: str) -> str:
    """An amount as `get_…` says it. What it says of less than 1 GiB was not measured."""
    mib = int(value[:-1]) * (1024 if value[-1] == "G" else 1)
    return f"{mib // 1024}G" if mib >= 1024 else f"{mib}M"


class Server:
    """A server of one user, with the limits of its clients. It begins with the defaults of then."""

    def __init__(self, uid: int, percentage: float, memory: dict[str, str]) -> None:
        self.uid = uid
        self.percentage = percentage
        self.memory = dict(memory)


class Client:
    """A program that is connected to the server."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.works = False
        self.is_terminated = False


class Daemon:
    """The control daemon: one listening socket, a thread for each connection, and the limits that were set."""

    def __init__(self, pipes: Path, logs: Path) -> None:
        self._pipes, self._logs = pipes, logs
        self._servers: dict[int, Server] = {}  # by PID
        self._percentage = 100.0
        self._memory: dict[str, str] = {}
        self.clients: dict[int, Client] = {}
        self.wedged = False

    def lock(self) -> bool:
        """Be the only one at this directory; the lock ends with the process."""
        self._pipes.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._lock = (self._pipes / "control_lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        control = self._pipes / "control"
        control.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(control))
        control.chmod(0o666)
        self._listener.listen(16)
        return True

    def run(self, ready: int | None = None) -> None:
        """Serve until `quit`. The file descriptor `ready` is closed once the files are there."""
        Path("/proc/self/comm").write_text("nvidia-cuda-mps-control"[:15])
        scratch = self._pipes / "pid.new"
        scratch.write_text(str(os.getpid()))
        scratch.replace(self._pipes / "nvidia-cuda-mps-control.pid")
        self._log(f"Starting control daemon using socket {self._pipes}/control")
        if ready is not None:
            os.close(ready)
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _log(self, line: str) -> None:
        with (self._logs / "control.log").open("a") as log:
            log.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}.000 Control {os.getpid():5d}] {line}\n")

    def _serve(self, connection: socket.socket) -> None:
        while packet := connection.recv(PACKET):
            while (wanted := steering(self._pipes)).get("hang"):
                time.sleep(POLL_S)
            command = packet.decode()
            words = command.split()
            if words[0] == "client":
                self.serve_client(int(words[1]), connection)
                return
            self._log(f"Cmd:{command}")
            answer = self._later(words) if wanted.get("protocol") == 3 else self.answer(words, wanted)
            connection.send(answer.encode() or b"\n")

    def serve_client(self, pid: int, connection: socket.socket) -> None:
        """Take a program as a client until it ends."""
        while self.wedged or steering(self._pipes).get("wedged"):
            time.sleep(POLL_S)
        if steering(self._pipes).get("fault"):
            connection.send(NOT_READY.encode())
            return
        client = Client(connection)
        self._server()
        self.clients[pid] = client
        connection.send(SERVED.encode())
        with contextlib.suppress(OSError):
            while packet := connection.recv(PACKET):
                client.works = packet == b"work"
                connection.send(SERVED.encode())
        self.wedged |= client.works and not client.is_terminated
        del self.clients[pid]

    def _terminate(self, pid: int) -> str:
        client = self.clients.get(pid)
        if client is None:
            return "Client not found"
        client.is_terminated = True
        client.connection.shutdown(socket.SHUT_RDWR)
        return ""

    def _server(self) -> int:
        """PID of the server, which starts with the first client."""
        if not self._servers:
            self._start_server(0)
        return next(iter(self._servers))

    def _start_server(self, uid: int) -> None:
        pid = os.getpid() + 1 + len(self._servers)
        self._servers[pid] = Server(uid, self._percentage, self._memory)

    def _connected(self, wanted: dict[str, Any]) -> list[int]:
        """PIDs of the clients."""
        return [*wanted.get("clients", []), *self.clients]

    def _later(self, words: list[str]) -> str:
        """The answer in protocol 3."""
        return "\n".join(map(str, self._servers)) if words == ["server", "list"] else UNKNOWN_COMMAND

    def answer(self, words: list[str], wanted: dict[str, Any]) -> str:
        """What the daemon says to a command, as it is steered."""
        if wanted.get("clients"):
            self._server()
        match words:
            case ["get_server_list"]:
                return "\n".join(map(str, self._servers))
            case ["get_server_status", pid]:
                known = wanted.get("status", "FAULT" if wanted.get("fault") else "ACTIVE")
                return known if int(pid) in self._servers else "Server not found"
            case ["start_server", "-uid", uid]:
                self._start_server(int(uid))
                return ""
            case ["get_client_list", pid]:
                clients = self._connected(wanted) if int(pid) == next(iter(self._servers), None) else []
                return "\n".join(map(str, clients))
            case ["terminate_client", _, pid]:
                return self._terminate(int(pid))
            case ["ps"]:
                rows = [
                    f"{pid} 0 {next(iter(self._servers))} GPU-0 4026531836 client" for pid in self._connected(wanted)
                ]
                return "\n".join(["PID ID SERVER DEVICE NAMESPACE COMMAND", *rows])
            case ["quit"]:
                return self._quit(None)
            case ["quit", "-t", seconds]:
                return self._quit(float(seconds))
        return self._limit(words, wanted.get("limits", ""))

    def _limit(self, words: list[str], odd: str) -> str:
        """What the daemon says to a command for limits.

        Args:
            words: of the command.
            odd: ``unknown`` or ``stuck``, as it is steered.
        """
        of_memory = words[0].endswith("device_pinned_mem_limit")
        is_stuck = odd == "stuck" and words[0].startswith("set_")
        if is_stuck or (of_memory and odd == "unknown"):
            return "" if is_stuck else UNKNOWN_COMMAND
        match words:
            case ["get_default_active_thread_percentage"]:
                return f"{self._percentage:.1f}"
            case ["set_default_active_thread_percentage", value]:
                self._percentage = float(value)
                return f"{self._percentage:.1f}"
            case ["get_default_device_pinned_mem_limit", device]:
                return shown(self._memory.get(device, "0M"))
            case ["set_default_device_pinned_mem_limit", device, value] if is_amount(value):
                self._memory[device] = value
                return ""
            case [name, pid, *_] if "_default_" not in name and pid.isdigit():
                return self._server_limit(words) if int(pid) in self._servers else "Server not found"
        return f"{UNKNOWN_COMMAND}: {' '.join(words)}"

    def _server_limit(self, words: list[str]) -> str:
        """The same for the limits of one server."""
        match words:
            case ["get_active_thread_percentage", pid]:
                return f"{self._servers[int(pid)].percentage:.1f}"
            case ["set_active_thread_percentage", pid, value]:
                self._servers[int(pid)].percentage = float(value)
                return f"{float(value):.1f}"
            case ["get_device_pinned_mem_limit", pid, device]:
                limit = self._servers[int(pid)].memory.get(device, "")
                return shown(limit) if limit else ""
            case ["exact_memory_limit", pid, device]:
                return self._servers[int(pid)].memory.get(device, "")
            case ["set_device_pinned_mem_limit", pid, device, value] if is_amount(value):
                self._servers[int(pid)].memory[device] = value
                return ""
        return f"{UNKNOWN_COMMAND}: {' '.join(words)}"

    def _quit(self, force_after_s: float | None) -> str:
        began = time.monotonic()
        while self._connected(steering(self._pipes)):
            if force_after_s is not None and time.monotonic() - began >= force_after_s:
                break
            time.sleep(POLL_S)
        self._log("Exit")
        for name in ("control", "nvidia-cuda-mps-control.pid"):
            (self._pipes / name).unlink(missing_ok=True)
        os._exit(0)


def start(pipes: Path, logs: Path, *, background: bool, multi_user: bool) -> int:
    """Become the daemon. In the background the command returns once its files are there."""
    wanted = steering(pipes)
    if wanted.get("refuse"):
        print(wanted["refuse"])
        return 1
    if multi_user and not wanted.get("multi_user", True):
        print("nvidia-cuda-mps-control: invalid option -- 'M'")
        return 1
    daemon = Daemon(pipes, logs)
    if not daemon.lock():
        print("An instance of this daemon is already running")
        return 1
    ready = None
    if background:
        wait, ready = os.pipe()
        if os.fork():
            os.close(ready)
            os.read(wait, 1)  # ends when the daemon has closed its side, also by dying
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
    daemon.run(ready)
    return 0


def ask(pipes: Path) -> int:
    """Give each line of standard input to the daemon and print what it says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(pipes / "control"))
        except OSError:
            print(NO_DAEMON)
            return 1
        for line in sys.stdin:
            connection.send(line.strip().encode())
            answer = connection.recv(PACKET).decode().strip()
            if answer:
                print(answer)
    return 0


def give_command(pipes: Path, text: str) -> int:
    """Give a command of protocol 3 to the daemon; it fails if that speaks another protocol."""
    if steering(pipes).get("protocol") != 3:
        print("usage: nvidia-cuda-mps-control [-d | -f] [-M]")
        return 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(pipes / "control"))
        connection.send(text.encode())
        print(connection.recv(PACKET).decode().strip())
    return 0


def main(arguments: list[str]) -> int:
    """The command."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", PIPES))
    logs = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", LOGS))
    if not arguments:
        return ask(pipes)
    if arguments[0] == "server":
        return give_command(pipes, " ".join(arguments))
    if not set(arguments) <= {"-d", "-f", "-M"} or ("-d" in arguments) == ("-f" in arguments):
        print("usage: nvidia-cuda-mps-control [-d | -f] [-M]")
        return 1
    return start(pipes, logs, background="-d" in arguments, multi_user="-M" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
