"""The users of the GPUs now: processes with a GPU's device node open or mapped, and cGPU's instances."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpuagent.host import cgpu_proc
from gpuagent.system.printable import printable
from gpuisolation.host.root import Host

_GPU_NODE = re.compile(r"/dev/(nvidia\d+|nvidia-uvm|nvidia-caps/\S+|cgpu\S*)$", re.ASCII)
# cgroup v1 and v2, cgroupfs and systemd drivers, Docker, containerd and CRI-O: 64 hexadecimal digits at a path's end.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.ASCII | re.MULTILINE)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One process on a GPU, or one cGPU instance whose processes are not seen (`pid` None).

    Attributes:
        command: the process's name.
        container: id of its container, or the first 12 characters of it; empty for a process of the host.
        pod: its pod's UID, empty where the cgroup names none.
        nodes: device nodes it holds.
        hidden: this process may not read which nodes it holds.
    """

    pid: int | None
    command: str
    container: str = ""
    pod: str = ""
    nodes: tuple[str, ...] = ()
    hidden: bool = False

    def __str__(self) -> str:
        parts = [f"container {self.container[:12]}" if self.container else "host process"]
        if self.pod:
            parts.append(f"pod {self.pod}")
        if self.pid is not None:
            parts.append(f"pid {self.pid} ({self.command})")
        if self.hidden:
            parts.append("what it has open cannot be seen: run privileged")
        if self.nodes:
            parts.append(" ".join(self.nodes))
        return ", ".join(parts)


def identity(cgroup: str) -> tuple[str, str]:
    """Container id and pod UID in the text of /proc/<pid>/cgroup; empty where it names none."""
    # The innermost cgroup comes last: a pod may run in a container of its node.
    containers = _CONTAINER.findall(cgroup)
    pods = _POD.findall(cgroup)
    container = containers[-1] if containers else ""
    pod = pods[-1].replace("_", "-") if pods else ""
    return container, pod


def find(host: Host) -> tuple[User, ...]:
    """All users of the GPUs: processes by pid, then instances of which no process is seen."""
    processes = _processes(host)
    # An instance is named by the first 12 characters of its container's id.
    seen = {user.container[:12] for user in processes}
    instances = [user for user in _instances(host) if user.container not in seen]
    return (*processes, *instances)


def blocking(users: Collection[User], ignore: Collection[str]) -> tuple[User, ...]:
    """The users that forbid a change of the layer: all in containers, except the monitors in `ignore`."""
    in_containers = [user for user in users if user.container]
    return tuple(user for user in in_containers if user.pid is None or user.command not in ignore)


def _processes(host: Host) -> list[User]:
    """The processes on a GPU, by pid."""
    pids = sorted(int(name) for name in host.names("/proc") if name.isdigit())
    users = []
    for pid in pids:
        user = _process(host, pid)
        if user is not None:
            users.append(user)
    return users


def _instances(host: Host) -> list[User]:
    """The containers that cGPU has on a GPU, by its own account: their processes may not be visible from here."""
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    users = []
    for gpu in state.gpus if state else ():
        nodes = (f"cGPU instance on GPU {gpu.index}",)
        users += [User(pid=None, command="", container=instance.name, nodes=nodes) for instance in gpu.instances]
    return users


def _process(host: Host, pid: int) -> User | None:
    folder = host.root / "proc" / str(pid)
    nodes = _mapped_nodes(folder)
    hidden = False
    try:
        nodes |= _open_nodes(folder)
    except PermissionError:
        hidden = True
    container = ""
    pod = ""
    if nodes or hidden:
        container, pod = identity(_read(folder / "cgroup"))
    if not nodes and not container:
        return None
    return User(
        pid=pid,
        command=printable(_read(folder / "comm").strip()),  # a process names itself
        container=container,
        pod=pod,
        nodes=tuple(sorted(nodes)),
        hidden=hidden,
    )


def _open_nodes(folder: Path) -> set[str]:
    """Device nodes that the process has open; PermissionError where they may not be read."""
    nodes: set[str] = set()
    try:
        links = list((folder / "fd").iterdir())
    except PermissionError:
        raise
    except OSError:  # the process ended
        return nodes
    for link in links:
        try:
            target = os.readlink(link)  # noqa: PTH115 (the text as it stands: it may lie in another mount namespace)
        except PermissionError:
            raise
        except OSError:  # it was closed meanwhile
            continue
        if _GPU_NODE.match(target):
            nodes.add(target)
    return nodes


def _mapped_nodes(folder: Path) -> set[str]:
    """Device nodes that the process has mapped."""
    nodes = set()
    for line in _read(folder / "maps").splitlines():
        # The path is the sixth field; a mapping without a file has five.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and _GPU_NODE.match(fields[5]):
            nodes.add(fields[5])
    return nodes


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
