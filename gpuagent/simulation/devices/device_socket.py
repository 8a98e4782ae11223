"""A unix socket in place of the driver's device files: real processes allocate simulated memory there.

One JSON object a line, one answer a line, in order::

    {"gpu": UUID, "alloc": BYTES}       cudaMalloc
    {"gpu": UUID, "managed": BYTES}     cudaMallocManaged
    {"gpu": UUID, "free": BYTES}        frees the newest allocations, until that much is free
    {"gpu": UUID, "info": true}         cudaMemGetInfo
    {"import": NUMBER}                  cuIpcOpenMemHandle, for an allocation of another process

    {"ok": true, "allocation": NUMBER, "total": BYTES, "used": BYTES, "free": BYTES}
    {"ok": false, "error": "OUT_OF_MEMORY"}

`allocation` comes with `alloc` and `managed` only. `gpu` may be an index; left out, it is the first one.

A connection is what an open device file is for the driver, and whoever connects is its creator. The kernel tells which
process sends a line, so no process can lie about its cgroup. When all processes that have the connection have closed it
or have ended, its memory is free.
"""

import json
import logging
import os
import select
import selectors
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuagent.simulation.devices.device_client import DeviceClient, Exports
from gpuagent.simulation.driver import SimulatedDriver
from gpuagent.simulation.fault_socket import remove_stale

log = logging.getLogger(__name__)

MOST_LINE = 4096
MOST_CONNECTIONS = 256
CLOSE_S = 2.0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group: C's struct ucred."""
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
"""For a sender's credentials, and not for the files that it may try to pass."""
_RETRY_S = 0.1


@dataclass(slots=True, eq=False)
class _Connection:
    """An open device.

    Attributes:
        process: descriptor of the process that connected, which tells when it has ended; None: it has.
        received: the beginning of a line.
    """

    socket: socket.socket
    client: DeviceClient
    creator: int
    process: int | None
    received: bytes = b""

    def running_creator(self) -> int | None:
        """The process that connected; None if it has ended."""
        if self.process is None:
            return None
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return None if poll.poll(0) else self.creator

    def close(self) -> None:
        self.client.close()
        self.socket.close()
        if self.process is not None:
            os.close(self.process)


class DeviceSocket:
    """Listens at `path` in a thread of its own, for every user. No client waits for another.

    A socket file that a former process left is replaced. Raises OSError, also if a live process listens there.
    """

    def __init__(self, path: Path, driver: SimulatedDriver) -> None:
        self._path = path
        self._driver = driver
        self._exports = Exports()
        self._closing = threading.Event()
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            remove_stale(path)
            self._socket.bind(str(path))
            # Containers connect, whatever user they run as.
            path.chmod(0o666)
            # Connections inherit it: the kernel then adds the sender to what arrives.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.listen(64)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="nvml-devices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, close all connections, and remove the socket file."""
        self._closing.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the selector
        self._thread.join(CLOSE_S)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select():
                if key.fileobj is self._socket:
                    self._accept()
                else:
                    self._receive(key.data)
        for connection in [*self._connections]:
            self._drop(connection)
        self._selector.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as err:
            if not self._closing.is_set():
                log.info("Failed to accept a process at the simulated device", extra={"error": err})
                self._closing.wait(_RETRY_S)
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            peer.close()
            return
        peer.setblocking(False)
        packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        creator, _, _ = _CREDENTIALS.unpack(packed)
        client = DeviceClient(self._driver, self._exports)
        connection = _Connection(peer, client, creator, _process(creator))
        self._connections.add(connection)
        self._selector.register(peer, selectors.EVENT_READ, connection)

    def _receive(self, connection: _Connection) -> None:
        """Answer all lines that have arrived. A client that ends, sends too much, or does not read is dropped."""
        try:
            data, ancillary, _, _ = connection.socket.recvmsg(MOST_LINE, _ROOM)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        sender = _sender(ancillary)
        *lines, rest = (connection.received + data).split(b"\n")
        connection.received = rest
        creator = connection.running_creator()
        answers = []
        for line in lines:
            answer = connection.client.answer(line, sender, creator)
            answers.append(json.dumps(answer).encode() + b"\n")
        if len(rest) > MOST_LINE or not _sent(connection.socket, b"".join(answers)):
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        connection.close()


def _process(pid: int) -> int | None:
    """A descriptor of a process; None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The process that sent what came with this; 0, which no process has, if the kernel does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return int(pid)
    return 0


def _sent(client: socket.socket, data: bytes) -> bool:
    """Send it all at once; False if the client has left no room for it."""
    if not data:
        return True
    try:
        return client.send(data) == len(data)
    except OSError:
        return False
