"""Unix sockets in kubelet's folders."""

import errno
import os
import socket
import stat
from pathlib import Path


def is_socket(path: Path) -> bool:
    """Whether there is a socket at `path`."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def accepts(path: Path) -> bool:
    """Whether a process listens on a unix socket."""
    return connect_error(path) is None


def connect_error(path: Path) -> int | None:
    """The errno of a connection to a unix socket, for example ECONNREFUSED; None if a process listens on it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A socket whose queue is full would keep the caller waiting.
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError as err:
            return err.errno or errno.ENAMETOOLONG
    return None
