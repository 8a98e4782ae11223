"""A client of MPS, as far as its memory caps go: which of the GPUs that a program sees are limited, and to what.

NVIDIA documents that CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has entries ``device=limit``, separated by commas, with the
semantics of CUDA_VISIBLE_DEVICES for its devices. They count the GPUs that the program sees. Measured on driver 615
(NVIDIA Dynamo's guide to GPU sharing): an entry for a GPU that the program does not see drops every limit.

Measured on driver 580.159.04, on an H200: a device may be a UUID, and of two entries for one GPU the first counts. A
limit of the server holds, too: a client can go below it, and not above. But an entry for a GPU that the program does
not see also drops the server's.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMITS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_ENTRY = re.compile(r"([0-9]+|GPU-[0-9a-f-]+)=([0-9]+)([MG])")
_PACKET = 65536


def effective_caps(
    env: Mapping[str, str], visible: Sequence[str], of_server: Mapping[str, int] | None = None
) -> dict[str, int | None]:
    """MiB to which each visible GPU is limited; None for no limit.

    Args:
        env: environment of the program.
        visible: UUIDs of the GPUs that it sees, in CUDA's order.
        of_server: GPU UUID to the MiB of the server's limit.
    """
    limits: dict[str, int] = {}
    for text in filter(None, env.get(LIMITS, "").split(",")):
        entry = _ENTRY.fullmatch(text.strip())
        gpu = _gpu(entry[1], visible) if entry else None
        if entry is None or gpu is None:
            return dict.fromkeys(visible)
        limits.setdefault(gpu, _mib(entry[2], entry[3]))
    caps: dict[str, int | None] = {}
    for gpu in visible:
        of_gpu = [limit[gpu] for limit in (limits, of_server or {}) if gpu in limit]
        caps[gpu] = min(of_gpu, default=None)
    return caps


def server_limit(pipes: Path) -> int | None:
    """MiB to which a client at this pipe directory is limited by its server, which begins with the first client."""
    limit = _ask(pipes, f"exact_memory_limit {_server(pipes)} 0")
    return _mib(limit[:-1], limit[-1]) if limit else None


def server_percentage(pipes: Path) -> float:
    """Percentage to which a client is limited by its server."""
    return float(_ask(pipes, f"get_active_thread_percentage {_server(pipes)}"))


def _server(pipes: Path) -> str:
    """PID of the server of a client, which begins with the first one."""
    if not _ask(pipes, "get_server_list"):
        _ask(pipes, "start_server -uid 0")
    return _ask(pipes, "get_server_list").split()[0]


def _gpu(device: str, visible: Sequence[str]) -> str | None:
    """UUID of the visible GPU that an entry names."""
    if not device.isdigit():
        return device if device in visible else None
    return visible[int(device)] if int(device) < len(visible) else None


def _mib(amount: str, unit: str) -> int:
    return int(amount) * (1024 if unit == "G" else 1)


def _ask(pipes: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(pipes / "control"))
        connection.send(command.encode())
        return connection.recv(_PACKET).decode().strip()
