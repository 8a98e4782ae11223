"""containerd, and the containers on the node as the machine sees them: no API server needed."""

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .host import CONTAINERD_STATE
from .waiting import WAIT_S

_BUNDLES = CONTAINERD_STATE / "io.containerd.runtime.v2.task" / "k8s.io"
_ANNOTATION = "io.kubernetes.cri"


@dataclass(frozen=True)
class Container:
    """A started container (or the sandbox of a pod, then ``name`` is empty)."""

    id: str
    pid: int
    namespace: str
    pod: str
    pod_uid: str
    name: str

    @property
    def alive(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def has_own_process(self) -> bool:
        """Whether its PID is still of a process in its control group. The kernel soon gives a PID to another process."""
        try:
            return self.id in Path(f"/proc/{self.pid}/cgroup").read_text()
        except OSError:
            return False

    def kill(self) -> None:
        """End its first process, and with it all others."""
        os.kill(self.pid, signal.SIGKILL)

    def parent(self) -> int:
        """PID of the runtime's process that keeps the containers of its pod, and ends them."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def environment(self) -> dict[str, str]:
        """What the first process was started with."""
        pairs = Path(f"/proc/{self.pid}/environ").read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def devices(self) -> list[str]:
        """The names in its /dev."""
        return sorted(os.listdir(f"/proc/{self.pid}/root/dev"))


def containers() -> Iterator[Container]:
    for bundle in _BUNDLES.glob("*"):
        try:
            annotations = json.loads((bundle / "config.json").read_text())["annotations"]
            pid = int((bundle / "init.pid").read_text())
        except (OSError, ValueError):
            # Just being made or removed.
            continue
        yield Container(
            id=bundle.name,
            pid=pid,
            namespace=annotations[f"{_ANNOTATION}.sandbox-namespace"],
            pod=annotations[f"{_ANNOTATION}.sandbox-name"],
            pod_uid=annotations[f"{_ANNOTATION}.sandbox-uid"],
            name=annotations.get(f"{_ANNOTATION}.container-name", ""),
        )


@dataclass(frozen=True)
class Ctr:
    """containerd's own command-line client."""

    binary: Path
    socket: Path

    def answers(self) -> bool:
        return self.socket.exists() and self._run("version").returncode == 0

    def import_images(self, archive: Path) -> None:
        self._run("images", "import", str(archive)).check_returncode()

    def name_image(self, name: str, other: str) -> None:
        self._run("images", "tag", "--force", name, other).check_returncode()

    def execute(self, container: Container, *command: str) -> subprocess.CompletedProcess[str]:
        pipes = ("--fifo-dir", str(CONTAINERD_STATE / "fifo"))
        return self._run("tasks", "exec", *pipes, "--exec-id", uuid.uuid4().hex, container.id, *command)

    def remove_all(self) -> None:
        """Kill every container; what this leaves, the cleaning of the host ends."""
        tasks = self._run("tasks", "ls", "--quiet").stdout.split()
        if tasks:
            self._run("tasks", "rm", "--force", *tasks)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (str(self.binary), "--address", str(self.socket), "--namespace", "k8s.io", *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
