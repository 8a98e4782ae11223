"""Ports of this machine for servers that a test or a measurement starts."""

import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

# The kernel takes the ports of outgoing connections from 32768 on: one of those may be gone when the server starts.
_FIRST, _BEHIND_LAST = 20_000, 32_000
_LOCKS = Path(tempfile.gettempdir()) / f"gpuagent-test-ports-{os.getuid()}"


def free_port() -> int:
    """A port without a listener, which no other caller of this function gets as long as this process lives."""
    while True:
        port = _FIRST + secrets.randbelow(_BEHIND_LAST - _FIRST)
        if _reserve(port) and not _in_use(port):
            return port


def _reserve(port: int) -> bool:
    """Whether no other caller has reserved it. The kernel releases the lock when this process ends, however it does."""
    _LOCKS.mkdir(exist_ok=True)
    lock = os.open(_LOCKS / str(port), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True  # the file stays open, and with it the lock


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        # Connections that have ended at this port do not keep a server from it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
