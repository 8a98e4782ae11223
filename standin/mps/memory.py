"""Memory of one GPU behind MPS, as far as its caps go: for the attackers of the end-to-end tests, with no GPU.

It speaks the lines of the simulated driver's device socket (`gpuagent/simulation`), and charges by NVIDIA's documents:

- A client is a process. Each has the cap of its own environment and that of its server, `standin.mps.client`, so
  children have one each.
- A process without CUDA_MPS_PIPE_DIRECTORY, or whose directory has no daemon, is no client. In compute mode Default it
  uses the GPU as if there were no MPS. In Exclusive_Process it gets nothing.
- Managed memory counts. Imported memory counts for who allocated it.

That a child has no part in the memory of its parent's connection is an assumption: CUDA's contexts do not outlive fork.
"""

import json
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standin.mps.client import effective_caps, server_limit

MIB = 1 << 20
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_CREDENTIALS = struct.Struct("3i")
_REFUSED: Mapping[str, Any] = {"ok": False, "error": "OUT_OF_MEMORY"}


class MpsMemory(socketserver.ThreadingUnixStreamServer):
    """Listens at `path`, in threads, until `close`.

    Args:
        path: of the socket.
        gpu: UUID.
        size: bytes that the GPU has.
        exclusive: its compute mode is Exclusive_Process.
    """

    daemon_threads = True

    def __init__(self, path: Path, gpu: str, size: int, *, exclusive: bool = False) -> None:
        super().__init__(str(path), _Connection)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        path.chmod(0o666)
        self._gpu = gpu
        self._size = size
        self._exclusive = exclusive
        self._lock = threading.Lock()
        self._by_client: Counter[int] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    @property
    def used(self) -> int:
        """Bytes that all processes have."""
        with self._lock:
            return self._by_client.total()

    def allocate(self, pid: int, size: int) -> bool:
        """Let a process have memory; whether it gets it."""
        cap = self._cap(_environment(pid), Path(f"/proc/{pid}/root"))
        with self._lock:
            has_room = self._by_client.total() + size <= self._size
            is_below_cap = cap is None or self._by_client[pid] + size <= cap
            if not has_room or not is_below_cap:
                return False
            self._by_client[pid] += size
            return True

    def free(self, pid: int, size: int) -> None:
        with self._lock:
            self._by_client[pid] = max(self._by_client[pid] - size, 0)

    def _cap(self, env: Mapping[str, str], root: Path) -> int | None:
        """Bytes that a process may have; None for any amount."""
        pipes = env.get(PIPES, "")
        directory = root / pipes.lstrip("/")
        is_client = bool(pipes) and (directory / "control").exists()
        if not is_client:
            return 0 if self._exclusive else None
        limit = server_limit(directory)
        of_server = {} if limit is None else {self._gpu: limit}
        mib = effective_caps(env, [self._gpu], of_server)[self._gpu]
        return None if mib is None else mib * MIB


class _Connection(socketserver.BaseRequestHandler):
    """An open device: what was allocated over it is free when no process has it any more."""

    server: MpsMemory

    def handle(self) -> None:
        allocated: list[tuple[int, int]] = []
        received = b""
        while True:
            data, ancillary, _, _ = self.request.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not data:
                break
            pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                answer = self._answer(json.loads(line), pid, allocated)
                self.request.sendall(json.dumps(answer).encode() + b"\n")
        for pid, size in allocated:
            self.server.free(pid, size)

    def _answer(self, request: dict[str, Any], pid: int, allocated: list[tuple[int, int]]) -> Mapping[str, Any]:
        for kind in ("alloc", "managed"):
            if kind not in request:
                continue
            size = int(request[kind])
            if not self.server.allocate(pid, size):
                return _REFUSED
            allocated.append((pid, size))
            return {"ok": True, "allocation": len(allocated)}
        # Others have a part in what is imported, so `free` leaves it. Imports take nothing.
        return {"ok": True}


def _environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty if it has ended."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
