"""The driver's two sockets: one in kubelet's folder of registrations, and the one to which that leads.

Kubelet finds the first by itself, at its start too. Both have the instance in their names, so that two agents can serve
side by side while one replaces the other. Kubelet calls the one that registered last.
"""

import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc

from gpuagent._pb import pluginregistration_v1_pb2_grpc as reg_grpc
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kubelet.dra.servicer import DraServicer, RegistrationServicer
from gpuagent.kubelet.rpc_errors import bind
from gpuagent.kubelet.sockets import accepts, is_socket
from gpuagent.system.inotify import DirectoryWatch

log = logging.getLogger(__name__)

WORKERS = 512
"""Calls at one time. Each may wait for an isolation layer, so there is one for each pod that a node can have: kubelet
calls for each of them separately. A thread is made when there is a call for it."""
GRACE_S = 1.0
"""How long a call may go on when the agent ends."""
LOOK_AGAIN_S = 1.0
"""How often to look whether another agent still serves: one that was killed leaves its socket."""


class DraPlugin:
    """Serves and registers the driver from `start` to `stop`. For one thread.

    Args:
        kubelet_dir: kubelet's own folder.
        servicer: answers kubelet's calls.
        notified: called with why kubelet does not accept the driver; None where it does.
        superseded: called with whether a newer agent serves beside this one, when that changes.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        servicer: DraServicer,
        notified: Callable[[str | None], None],
        superseded: Callable[[bool], None],
    ) -> None:
        instance = uuid.uuid4().hex[:8]
        self._folder = kubelet_dir / "plugins" / DRA_DRIVER
        self._registry = kubelet_dir / "plugins_registry"
        self._socket = self._folder / f"dra-{instance}.sock"
        self._registration = self._registry / f"{DRA_DRIVER}-{instance}-reg.sock"
        self._servicer = servicer
        self._notified = notified
        self._servers: list[tuple[grpc.Server, ThreadPoolExecutor]] = []
        self._superseded = superseded
        self._is_superseded = False
        self._watch = DirectoryWatch(self._registry, self._look, name="registry-watch")

    def start(self) -> None:
        """Serve, then register: kubelet calls as soon as it sees the second socket. Raises OSError."""
        self._sweep()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._registry.mkdir(parents=True, exist_ok=True)
        registration = RegistrationServicer(str(self._socket), self._notified)
        self._serve("rpc dra", WORKERS, self._socket, self._servicer.add_to)
        self._serve(
            "rpc registration",
            2,
            self._registration,
            lambda server: reg_grpc.add_RegistrationServicer_to_server(registration, server),
        )
        self._watch.start()

    def stop(self) -> None:
        """End with the calls in progress, then deregister: kubelet cancels its calls then. Prepared claims stay."""
        self._watch.stop()
        self._servicer.end_streams()
        for server, threads in self._servers:
            server.stop(grace=GRACE_S).wait(2 * GRACE_S)
            threads.shutdown(wait=False)
        self._servers.clear()
        for path in (self._registration, self._socket):
            with suppress(OSError):  # `start` may have failed for want of the folder
                path.unlink()

    def _serve(self, name: str, workers: int, path: Path, add_to: Callable[[grpc.Server], None]) -> None:
        threads = ThreadPoolExecutor(workers, thread_name_prefix=name)
        server = grpc.server(threads)
        add_to(server)
        bind(server, path)
        server.start()
        self._servers.append((server, threads))

    def _look(self) -> float | None:
        """Look for a newer agent."""
        others = [path for path in self._registry.glob(f"{DRA_DRIVER}-*-reg.sock") if path != self._registration]
        mine = _made(self._registration)
        newer = [path for path in others if _made(path) > mine]
        superseded = any(map(accepts, newer))
        if superseded != self._is_superseded:
            self._is_superseded = superseded
            log.info("A newer agent serves claims" if superseded else "No newer agent serves claims any more")
            self._superseded(superseded)
        return LOOK_AGAIN_S if others else None

    def _sweep(self) -> None:
        """Remove sockets that a former run left behind."""
        sockets = [*self._folder.glob("dra-*.sock")]
        sockets += self._registry.glob(f"{DRA_DRIVER}-*-reg.sock")
        for path in sockets:
            if is_socket(path) and not accepts(path):
                path.unlink(missing_ok=True)
                log.info("Removed a socket of a former run", extra={"path": str(path)})


def _made(path: Path) -> tuple[int, str]:
    """When a socket was made, and of two at one time which counts as newer; a time before all others if it is gone."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
