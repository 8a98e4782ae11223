"""gRPC's errors in words for people: what its C core says is about itself, and hides the operating system's reason."""

import errno
import os
import socket
from pathlib import Path

import grpc

from gpuagent.kubelet.sockets import connect_error

MAX_PATH_BYTES = 107
"""Linux's limit."""
_BIND_HINTS = {
    errno.EACCES: "run the agent as user 0, and check what SELinux or AppArmor denies",
    errno.EPERM: "run the agent as user 0, and check what SELinux or AppArmor denies",
    errno.EROFS: "mount this directory so that the agent can write in it",
    errno.ENOENT: "mount kubelet's directory, or set --kubelet-dir",
    errno.ENOSPC: "free space on this disk",
}


def bind(server: grpc.Server, path: Path) -> None:
    """Have `server` listen on a unix socket.

    Raises:
        OSError: it cannot be bound. The text names the directory, not the socket, whose name differs at each try.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        text = f"paths of sockets in {path.parent} would be longer than {MAX_PATH_BYTES} bytes"
        raise OSError(f"{text}; use a shorter --kubelet-dir")
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as err:
        text = f"no socket can be made in {path.parent}"
        raise OSError(f"{text}: {_why_not_bound(path)}") from err


def _why_not_bound(path: Path) -> str:
    """The system's reason, and what to do; gRPC does not pass it on."""
    number = _bind_error(path)
    if number is None:
        return "gRPC cannot bind it"
    reason = os.strerror(number)
    hint = _BIND_HINTS.get(number)
    return f"{reason}; {hint}" if hint else reason


def call_error(error: grpc.RpcError, path: Path, timeout_s: float) -> str:
    """Why a call to kubelet's socket `path` failed, without the words of gRPC's C core.

    Args:
        error: of the call.
        path: kubelet's socket.
        timeout_s: how long the call could take.
    """
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return _no_connection(path)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {timeout_s:g} s"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"kubelet does not serve this API on {path}"
        case grpc.StatusCode.CANCELLED:
            return "the call was canceled: kubelet or the agent ends"
        case _:
            return error.details() or f"kubelet gave no reason ({error.code().name})"


def _no_connection(path: Path) -> str:
    number = connect_error(path)
    if number is None:
        return f"kubelet closed the connection to {path}"
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        return f"kubelet does not listen on {path}"
    return f"{path} cannot be opened: {os.strerror(number)}"


def _bind_error(path: Path) -> int | None:
    """The number of the system's error for a socket at `path`; None if it has no objection now."""
    # gRPC does not pass the system's error on, so the same is tried once more without it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(str(path))
        except OSError as err:
            return err.errno or errno.ENAMETOOLONG
    path.unlink(missing_ok=True)
    return None
