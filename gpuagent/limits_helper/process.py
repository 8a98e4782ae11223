"""The process of `gpuagent memory-limits`: serves until SIGTERM."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from gpuagent.host.limits_client import LimitsError
from gpuagent.limits_helper.driver_thread import DriverThread
from gpuagent.limits_helper.limit_setter import CgroupPlace, LimitSetter
from gpuagent.limits_helper.newborn_guard import NewbornGuard
from gpuagent.limits_helper.probe import TellBackend, backend_by_files
from gpuagent.limits_helper.server import LimitsServer, SocketPathError
from gpuagent.limits_helper.service import LimitsService
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.system import log as logs
from gpuagent.system.stop_signal import StopSignal

__all__ = ["SocketPathError", "place_of", "serve"]

log = logging.getLogger(__name__)

OWN_POD = "POD_UID"
"""The environment variable with the UID of the pod in which the helper runs, as the chart sets it."""
_LOG = {"GPUAGENT_LOG_FORMAT": "text", "GPUAGENT_LOG_LEVEL": "info"}
"""Settings that the helper shares with the agent, and what holds without them."""
_DESCRIBE_S = 30.0
"""How soon the process notices by itself that kubelet has begun, or has another cgroup for its pods."""
_LOOK_S = 5.0
"""How soon the process ends after it has found out that only a new container helps."""


def serve(socket: Path, place: CgroupPlace, tell_backend: TellBackend | None = None) -> NoReturn:
    """Serve until SIGTERM, and end the process then. Limits stay in place.

    Args:
        socket: where clients ask.
        place: of the cgroups.
        tell_backend: of a simulated driver; None for a real one.

    Raises:
        SocketPathError: it cannot listen there.
    """
    log_format, log_level = [os.environ.get(name, default) for name, default in _LOG.items()]
    write_out = logs.setup(log_format, log_level)
    stop = StopSignal()
    _go_first()
    nvml = LimitCalls()
    setter = LimitSetter(place, nvml, tell_backend or backend_by_files)
    thread = DriverThread(lambda: nvml.pending)
    service = LimitsService(setter, thread)
    guard = NewbornGuard(setter, thread)
    server = LimitsServer(socket, service.answer)
    log.info("Serving memory limits", extra={"socket": socket, "cgroup_root": place.root})
    # NVML opens now, so that the GPUs stay initialized from here on. In a thread, because the driver may hang.
    ending = threading.Event()
    threading.Thread(target=_guard, args=(service, guard, ending), name="limits-guard", daemon=True).start()
    code = 0
    while not stop.wait(_LOOK_S):
        if setter.is_outdated:
            log.error("Ending: the driver was replaced, and only a new container gets its library")
            code = 1
            break
    ending.set()
    server.close()
    write_out()
    sys.stdout.flush()
    os._exit(code)  # a call that hangs in the driver must not keep the process


def _go_first() -> None:
    """Let this process run before all usual ones, if it has CAP_SYS_NICE.

    A new container begins 20 ms after its cgroup appears, or later. On a node whose CPUs are full, this process would
    often be late.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _guard(service: LimitsService, guard: NewbornGuard, ending: threading.Event) -> None:
    """Ask now and then what can be limited, and guard new containers as far as it is."""
    while not ending.is_set():
        with contextlib.suppress(LimitsError):  # the description says it
            guard.follow(service.describe())
        ending.wait(_DESCRIBE_S)
    guard.stop()


def place_of(root: Path, pods: str, env: Mapping[str, str]) -> CgroupPlace:
    """Where the cgroups are, by the flags, and by the UID of this process's pod in the environment."""
    return CgroupPlace(root=root.absolute(), pods=pods, own_pod=env.get(OWN_POD, ""))
