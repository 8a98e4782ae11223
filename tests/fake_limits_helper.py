"""The helper of memory limits without a driver: its protocol on a real socket, and limits in a dictionary."""

import json
import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gpuagent.host.limits_client import NO_LIMIT, Target

GPU_0 = "GPU-00000000-0000-4000-8000-000000000000"


class FakeLimitsHelper:
    """Serves at `path` until `stop`; `start` again is a restarted helper. A context manager.

    Args:
        path: of the socket.
        gpus: UUIDs of the GPUs, each with why its memory cannot be limited.

    Attributes:
        limits: what was set; change it for a limit that somebody else changed.
        used: bytes in use.
        errors: the answer for a target instead of success: kind and message.
        failing_sets: the message of the driver for a target whose limit can be read, and not set.
        gone: UIDs of pods without a cgroup.
        problem: as `describe` reports it.
        backend: the same.
        requests: every request so far.
        answering: clear it, and no request is answered.
    """

    def __init__(self, path: Path, gpus: Mapping[str, str | None] | None = None) -> None:
        self.path = path
        self.gpus = dict(gpus or {GPU_0: None})
        self.limits: dict[Target, int] = {}
        self.used: dict[Target, int] = {}
        self.errors: dict[Target, tuple[str, str]] = {}
        self.failing_sets: dict[Target, str] = {}
        self.gone: set[str] = set()
        self.problem: str | None = None
        self.backend = "dmem"
        self.driver = "615.71.09"
        self.pods_root = "/sys/fs/cgroup/kubepods"
        self.requests: list[dict[str, Any]] = []
        self.answering = threading.Event()
        self.answering.set()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> "FakeLimitsHelper":
        self.path.unlink(missing_ok=True)
        self._server = _Server(str(self.path), _Handler)
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, and close every connection."""
        self.answering.set()
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        self.answering.wait()
        if request["op"] == "describe":
            return {
                "ok": True,
                "driver": self.driver,
                "pods_root": self.pods_root,
                "backend": self.backend,
                "gpus": self.gpus,
                "problem": self.problem,
            }
        target = Target(request["gpu"], request["pod"], request["leaf"])
        error = self._error(request["op"], target, request.get("bytes"))
        if error:
            kind, message = error
            return {"ok": False, "error": kind, "message": message, "used": self.used.get(target, 0)}
        if request["op"] == "set":
            self.limits[target] = request["bytes"]
        return {"ok": True, "hard": self._hard(target), "used": self.used.get(target, 0)}

    def _error(self, op: str, target: Target, size: int | None) -> tuple[str, str] | None:
        if target in self.errors:
            return self.errors[target]
        if op == "set" and target in self.failing_sets:
            return "DriverError", self.failing_sets[target]
        if target.gpu not in self.gpus:
            return "NotFound", f"there is no GPU {target.gpu}"
        if target.pod in self.gone:
            return "NotFound", f"there is no cgroup of pod {target.pod}"
        if op == "set" and size < self.used.get(target, 0):
            return "BelowUse", f"{target.pod} uses more"
        return None

    def _hard(self, target: Target) -> int | None:
        """As the backend reports it: on misc, what has no limit reads that of the pod."""
        hard = self.limits.get(target)
        if hard is None and self.backend == "misc":
            hard = self.limits.get(Target(target.gpu, target.pod))
        return None if hard == NO_LIMIT else hard


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = True
    fake: FakeLimitsHelper

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.clients: set[socket.socket] = set()

    def server_close(self) -> None:
        for client in list(self.clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.server.clients.add(self.connection)
        with suppress(OSError):
            for line in self.rfile:
                answer = self.server.fake.answer(json.loads(line))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        self.server.clients.discard(self.connection)
