"""Serves requests at a unix socket: a bounded number of connections, each with a thread and bounded lines and times."""

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gpuagent.host.limits_client import RefusedError
from gpuagent.limits_helper.requests import MOST_LINE, error_answer

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
LINE_S = 5.0
"""How long a client may take to send a line from its first byte on, and to take the answer."""
_SLOT_S = 0.5
_PEER = struct.Struct("3i")
_PATH_BYTES = 107


class SocketPathError(Exception):
    """The helper cannot listen at this path; the text says why."""


class LimitsServer:
    """Listens at `path`, in threads of its own, until `close`.

    Only root and this process's own user are answered. If there are too many connections, the one that has been idle
    for longest is closed: so a user that keeps connections open cannot shut others out.

    Args:
        path: of the socket; a socket that a former process left is replaced.
        answer: the answer to a line, both with their line's end; called by several threads.

    Raises:
        SocketPathError: it cannot listen there.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self._path = path
        self._answer = answer
        self._listener = _listen(path)
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._idle_since: dict[socket.socket, float] = {}
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="limits-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen, and close every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join(LINE_S)
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _end(connection)
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as err:
                if err.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED}:
                    time.sleep(_SLOT_S)  # others may close theirs meanwhile
                    continue
                return
            if not self._has_slot():
                connection.close()
                continue
            with self._lock:
                self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), name="limits-client", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is left in the container
                self._ended(connection)
                connection.close()

    def _has_slot(self) -> bool:
        """Take a slot for a new connection, if need be from one that is idle."""
        if self._slots.acquire(blocking=False):
            return True
        with self._lock:
            longest_idle = min(self._idle_since, key=self._idle_since.__getitem__, default=None)
        if longest_idle is not None:
            _end(longest_idle)
        return self._slots.acquire(timeout=_SLOT_S)

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A client that goes away, or is too slow, does not concern the other clients.
            with connection, suppress(OSError):
                if _is_trusted(connection):
                    self._serve_lines(connection)
        finally:
            self._ended(connection)

    def _ended(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
            self._idle_since.pop(connection, None)
        self._slots.release()

    def _serve_lines(self, connection: socket.socket) -> None:
        for line in self._lines(connection):
            answer = self._answer(line)
            connection.settimeout(LINE_S)
            connection.sendall(answer)

    def _lines(self, connection: socket.socket) -> Iterator[bytes]:
        """Lines with their ends. One that is too long is cut, and is the last: where the next begins is not known."""
        data = b""
        while True:
            if not data:
                data = self._first_bytes(connection)
            until = time.monotonic() + LINE_S
            while data and b"\n" not in data[:MOST_LINE]:
                if len(data) > MOST_LINE:
                    yield data[: MOST_LINE + 1]
                    return
                connection.settimeout(max(until - time.monotonic(), 0.001))
                more = connection.recv(MOST_LINE)
                data = data + more if more else b""  # half a line is not a request
            if not data:
                return
            line, end, data = data.partition(b"\n")
            yield line + end

    def _first_bytes(self, connection: socket.socket) -> bytes:
        """Wait for the next line for as long as it takes, unless another client needs the connection."""
        with self._lock:
            self._idle_since[connection] = time.monotonic()
        connection.settimeout(None)
        data = connection.recv(MOST_LINE)
        with self._lock:
            self._idle_since.pop(connection, None)
        return data


def _is_trusted(connection: socket.socket) -> bool:
    """Whether the client is root or this process's own user. Others get an answer that says so."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(credentials)
    if uid in {0, os.geteuid()}:
        return True
    log.warning("Refused a client of another user", extra={"uid": uid})
    connection.settimeout(LINE_S)
    # It reads its answer only after its request.
    connection.recv(MOST_LINE)
    error = RefusedError(f"user {uid} may not set memory limits: only root and the helper's own user may")
    connection.sendall(error_answer(error))
    return False


def _end(connection: socket.socket) -> None:
    """End a connection that another thread uses: that thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise SocketPathError(f"socket path {path} has more than {_PATH_BYTES} bytes: choose a shorter one")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(path)
        # No other user may connect even for an instant, so the mode is right from the beginning.
        former = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(former)
        listener.listen(MOST_CONNECTIONS)
    except (OSError, ValueError) as err:
        listener.close()
        words = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise SocketPathError(f"cannot listen at {path}: {words}") from err
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that has ended. Raises OSError if one listens there."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(LINE_S)
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another helper listens there")
