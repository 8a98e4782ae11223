"""Unix sockets in kubelet's folders."""

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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
