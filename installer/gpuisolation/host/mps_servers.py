"""NVIDIA MPS as its control program reports it: servers, clients, limits, and the clients' usage."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuagent.host.mps_client import CONTROL, CONTROL_SOCKET, KNOWN_DIRECTORIES, OWN_DIRECTORY, untrusted
from gpuisolation.host.root import Host, Output

log = logging.getLogger(__name__)

PIPE_DIRS = tuple(map(str, (OWN_DIRECTORY, *KNOWN_DIRECTORIES)))
"""Directories that may have a daemon's pipes, in the order of the search."""


@dataclass(frozen=True, slots=True)
class MpsClient:
    """One client process; memory is None where the driver does not report it."""

    pid: int
    server: int
    gpu_uuid: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Usage:
    """The GPU of a process and its memory there, as nvidia-smi reports them."""

    gpu_uuid: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class MpsState:
    """The control daemons at one moment; limits are their own words, empty where they give none.

    The agent runs a daemon for each GPU, and gives limits to containers. So limits are those of a daemon for all GPUs.
    """

    servers: tuple[int, ...]
    clients: tuple[MpsClient, ...]
    thread_percentage: str
    memory_limits: tuple[tuple[int, str], ...]


def read(host: Host, pipe_dirs: Iterable[str], gpus: int) -> MpsState | None:
    """Read the state of the daemons in the first of `pipe_dirs` where one answers; None where none does.

    One that serves all GPUs is in the directory itself, and one of a single GPU in a folder of it. A daemon that
    another user may run is left out: that user would choose its answers.
    """
    if not host.has_command(CONTROL):
        return None
    silent: list[str] = []
    for pipe_dir in pipe_dirs:
        places = [pipe_dir, *_folders(host, pipe_dir)]
        trusted = [place for place in places if _is_trusted(host, place)]
        answers = {place: _ask(host, place, "get_server_list") for place in trusted}
        servers = {place: _pids(answer) for place, answer in answers.items() if answer is not None}
        if servers:
            return _state(host, servers, gpus if pipe_dir in servers else 0)
        silent += trusted
    _warn_of_protocol(host, silent)
    return None


def _folders(host: Host, pipe_dir: str) -> list[str]:
    """Pipe directories of the daemons of single GPUs."""
    try:
        folders = [folder for folder in host.at(pipe_dir).iterdir() if (folder / CONTROL_SOCKET).exists()]
    except OSError:
        return []
    return sorted(f"{pipe_dir}/{folder.name}" for folder in folders)


def _state(host: Host, servers: Mapping[str, tuple[int, ...]], gpus: int) -> MpsState:
    """The state of the daemons with these servers, by pipe directory."""
    usage = _usage(host)
    clients: list[MpsClient] = []
    for pipe_dir, pids in servers.items():
        for server in pids:
            clients += _clients(host, pipe_dir, server, usage)
    first = next(iter(servers))
    percentage = _ask(host, first, "get_default_active_thread_percentage") or ""
    return MpsState(
        servers=tuple(pid for pids in servers.values() for pid in pids),
        clients=tuple(clients),
        thread_percentage=percentage.strip(),
        memory_limits=_memory_limits(host, first, gpus),
    )


def _clients(host: Host, pipe_dir: str, server: int, usage: Mapping[int, _Usage]) -> list[MpsClient]:
    """The clients of one server; those of which the driver does not report a GPU have none."""
    answer = _ask(host, pipe_dir, f"get_client_list {server}") or ""
    unknown = _Usage("", None)
    clients = []
    for pid in _pids(answer):
        used = usage.get(pid, unknown)
        clients.append(MpsClient(pid, server, used.gpu_uuid, used.used_bytes))
    return clients


def _memory_limits(host: Host, pipe_dir: str, gpus: int) -> tuple[tuple[int, str], ...]:
    """The default limit on each GPU that has one, as the daemon words it."""
    limits = []
    for gpu in range(gpus):
        limit = _ask(host, pipe_dir, f"get_default_device_pinned_mem_limit {gpu}") or ""
        if limit.strip():
            limits.append((gpu, limit.strip()))
    return tuple(limits)


def _is_trusted(host: Host, pipe_dir: str) -> bool:
    if why := untrusted(host.at(pipe_dir)):
        log.warning("Failed to ask MPS daemon", extra={"why": why})
    return why is None


def _ask(host: Host, pipe_dir: str, question: str) -> str | None:
    output = host.run(CONTROL, stdin=f"{question}\n", env={"CUDA_MPS_PIPE_DIRECTORY": pipe_dir})
    return output.text if _is_answer(output) else None


def _is_answer(output: Output) -> bool:
    """Whether it is a daemon's, and not what the control program says without one."""
    return output.code == 0 and "Cannot find MPS control daemon" not in output.text


def _warn_of_protocol(host: Host, pipe_dirs: Iterable[str]) -> None:
    """Log a daemon of protocol 3, whose commands are arguments: it cannot be asked here."""
    for pipe_dir in pipe_dirs:
        output = host.run(CONTROL, "server", "list", env={"CUDA_MPS_PIPE_DIRECTORY": pipe_dir})
        if _is_answer(output):
            why = f"the daemon at {pipe_dir} speaks protocol 3: start it with protocol 2 ({CONTROL} -d -p 2)"
            log.warning("Failed to ask MPS daemon", extra={"why": why})


def _pids(text: str) -> tuple[int, ...]:
    """The process ids in an answer, which has one on each line; other lines are left out."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(int(line) for line in lines if re.fullmatch(r"\d{1,10}", line, re.ASCII))


def _usage(host: Host) -> dict[int, _Usage]:
    """What each process uses, by its id: of its last GPU if it uses several."""
    output = host.run("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
    if output.code != 0:
        return {}
    usage = {}
    for line in output.text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3:
            continue
        pid, gpu_uuid, used_mib = cells
        if pid.isdigit():
            used_bytes = int(used_mib) * 2**20 if used_mib.isdigit() else None
            usage[int(pid)] = _Usage(gpu_uuid, used_bytes)
    return usage
