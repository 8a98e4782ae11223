"""Faults from other processes: a unix stream socket, one JSON object a line, one answer a line."""

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuagent.simulation.driver import FaultError

log = logging.getLogger(__name__)

CLIENT_S = 2.0
"""How long a client may take to send its fault."""


def inject(path: str | Path, fault: Mapping[str, Any], *, timeout_s: float = 5.0) -> dict[str, Any]:
    """Inject a fault into the process that listens at `path` (`Simulator.listen`). Returns its answer.

    Faults (``gpu`` is an index or a UUID)::

        {"fault": "xid", "gpu": 0, "code": 79}              gpu null: tied to no GPU; answers {"heard_by": 1}
        {"fault": "xid", "gpu": 0, "code": 79, "any_waiter": true}      the event goes to a waiter of another GPU
        {"fault": "ecc", "gpu": 0}                          a double-bit ECC error; answers {"heard_by": 1}
        {"fault": "lose", "gpu": 0}                         until {"fault": "restore", "gpu": 0}
        {"fault": "lose", "gpu": 0, "silent": true}         only calls about it show that, no wait for events
        {"fault": "hang", "function": "nvmlDeviceGetMemoryInfo", "gpu": 3}    gpu left out: on every GPU
        {"fault": "unhang"}                                 everything, or "function" and "gpu" as above
        {"fault": "fail", "function": "nvmlDeviceGetUUID", "gpu": 1, "error": "UNKNOWN"}    error null: works again
        {"fault": "action", "gpu": 0, "value": 1}           the driver asks for a recovery action; 0: none any more
        {"fault": "remap", "gpu": 0, "pending": true, "failed": false}
        {"fault": "throttle", "gpu": 0, "thermal": true, "power": false}
        {"fault": "mig", "gpu": 0, "enabled": true}
        {"fault": "odd", "gpu": 0, "what": "uuid", "value": "GPU-1,GPU-2"}     the driver answers so, for any of uuid,
                                model, minor, pci_bus_id, memory_mib, reserved_mib; value null: as in the box again
        {"fault": "nvlink", "gpu": 0, "link": 3, "up": false}       this end only; its other end stays as it is
        {"fault": "fabric", "gpu": 0, "ready": false}
        {"fault": "driver", "present": false, "error": "LIBRARY_NOT_FOUND"}
        {"fault": "process", "gpu": 0, "pid": 4711, "mib": 2048, "kind": "mps", "sm": 30}   uses the GPU from now on;
                                kind compute if left out, or graphics; mib null: not reported; sm null: no sample
        {"fault": "end", "gpu": 0, "pid": 4711}             ends its use of the GPU
        {"fault": "busy", "gpu": 0, "percent": 80}          busy for this part of the time

    Faults about memory limits of cgroups (``pid`` and ``path`` as the simulating process sees them)::

        {"fault": "limits", "backend": "misc", "seed": 1, "reused": 84}     the driver is loaded anew, as 615 if it is
                                older, with backend dmem, misc, or none (RmMemacctMode=0); this percentage of new
                                cgroups, chosen by the seed, has the address of a removed one
        {"fault": "alloc", "gpu": 0, "pid": 4711, "mib": 2048, "kind": "managed", "creator": 4710}      allocates until
                                "end"; kind device if left out; creator: the process that opened the driver
        {"fault": "hook", "path": "/sys/fs/cgroup/…", "limit": "4096", "request": "0", "gpu": null}     NVIDIA's toolkit
                                sets the limits of a container by these variables of its environment (in MiB)
        {"fault": "dmem_files", "path": "/sys/fs/cgroup/…", "present": false}   the controller dmem is not enabled there
        {"fault": "persistence", "gpu": 0, "enabled": false}    a GPU that no process has open forgets its limits
        {"fault": "reset", "gpu": 0}                        memory and limits are gone, as after mig, driver, restore

    Raises:
        FaultError: there is no such fault, or that box does not support it.
        OSError: no process listens at `path`, or no answer comes.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout_s)
        client.connect(str(path))
        client.sendall(json.dumps(fault).encode() + b"\n")
        with client.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        raise ConnectionResetError(errno.ECONNRESET, "the simulator closed the connection")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise FaultError(answer["error"])
    return answer


class FaultSocket:
    """Listens at `path` in a thread of its own and passes every fault to `apply`.

    A socket file that a former process left is replaced. Raises OSError, also if a live process listens there.
    """

    def __init__(self, path: Path, apply: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._path = path
        self._apply = apply
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            remove_stale(path)
            self._socket.bind(str(path))
            # A process that can write to it can make GPUs fail.
            path.chmod(0o600)
            self._socket.listen(8)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="nvml-faults", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join(CLIENT_S)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closing:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                try:
                    self._answer(client)
                except OSError as err:
                    log.warning("Lost a client that injects faults", extra={"error": err})

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(CLIENT_S)
        with client.makefile("rb") as lines:
            line = lines.readline()
        try:
            fault = json.loads(line)
            if not isinstance(fault, dict):
                raise FaultError(f"a fault is a JSON object, not {line.decode().strip()}")
            answer = {"ok": True, **self._apply(fault)}
            log.info("Injected fault", extra={"fault": line.decode().strip()})
        except (ValueError, RecursionError) as err:  # FaultError is a ValueError, so is what JSON raises
            answer = {"ok": False, "error": str(err)}
        client.sendall(json.dumps(answer).encode() + b"\n")


def remove_stale(path: Path) -> None:
    """Remove a socket file that a former process left. Raises OSError if a live process listens there."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, f"another process listens at {path}")
