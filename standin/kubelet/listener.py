"""A gRPC server on a unix socket that behaves like a process which may be killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

_LONGEST_PATH = 107


class Listener:
    """Serves on ``public``, whose file outlives the server, as a killed kubelet leaves its socket behind.

    gRPC removes the file it bound when it stops, so it binds ``private``, and ``public`` becomes a hard link to it:
    the same inode, accepting while the server runs and refusing afterwards. ``private`` is bound before the old
    ``public`` is removed, so the inode number is always a new one.
    """

    def __init__(self, private: Path, public: Path, add: Callable[[grpc.Server], None]) -> None:
        for path in (private, public):
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise ValueError(f"{path} is longer than the {_LONGEST_PATH} bytes of a unix socket path")
        self._private, self._public = private, public
        private.parent.mkdir(parents=True, exist_ok=True)
        public.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._executor = ThreadPoolExecutor(16, thread_name_prefix="standin-server")
        self._server = grpc.server(self._executor, options=(("grpc.max_receive_message_length", -1),))
        add(self._server)
        self._server.add_insecure_port(f"unix:{private}")
        self._server.start()

    def publish(self) -> None:
        """Make the socket appear, as the registration service does: removed and created."""
        self._public.unlink(missing_ok=True)
        os.link(self._private, self._public)

    def publish_by_rename(self) -> None:
        """Make the socket appear, as pod-resources does: under a temporary name first."""
        temporary = self._public.with_name(f"{self._public.name}.tmp")
        temporary.unlink(missing_ok=True)
        os.link(self._private, temporary)
        temporary.replace(self._public)

    def close(self) -> None:
        """Stop at once; the public file stays and refuses."""
        self._server.stop(None).wait()
        self._executor.shutdown()
