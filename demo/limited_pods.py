"""Cgroups of the demo's pods, as folders, and what runs in them."""

import shutil
import subprocess
import sys
from pathlib import Path

from demo.limits_helper import CGROUPS, DEVICE, PROC, SOCKET
from standin.kubelet.pods import Pod
from standin.waiting import PATIENCE_S


class LimitedPods:
    """The folders that kubelet and the container runtime would make, the helper, and programs.

    Args:
        folder: for all of them.
        box: the simulated box.
    """

    def __init__(self, folder: Path, box: str) -> None:
        self._folder = folder
        self._box = box
        self._root = folder / CGROUPS / "kubepods"
        self._root.mkdir(parents=True)
        self._helper: subprocess.Popen[str] | None = None
        self._programs: dict[str, list[subprocess.Popen[str]]] = {}
        self.socket = folder / SOCKET

    def begin(self, uid: str) -> None:
        """As kubelet does before it asks the agent about a pod."""
        (self._root / f"pod{uid}").mkdir()

    def start_container(self, uid: str) -> None:
        """As the runtime does."""
        self._container(uid).mkdir()

    def end(self, uid: str) -> None:
        """The pod's programs end, and kubelet removes its cgroup."""
        for program in self._programs.pop(uid, ()):
            program.kill()
            program.wait()
            # Its input was closed before it began, so `communicate` would fail.
            if program.stdout:
                program.stdout.close()
        shutil.rmtree(self._root / f"pod{uid}", ignore_errors=True)

    def start_helper(self) -> None:
        """As the chart's value limits.enabled does."""
        command = [sys.executable, "-m", "demo.limits_helper", str(self._folder), self._box]
        self._helper = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 (ourselves)

    def take_all(self, pod: Pod, uuid: str) -> str:
        """Have a program in the pod's container take what it can get of a GPU; what it says."""
        command = [sys.executable, "-m", "demo.gpu_program", str(self._folder / DEVICE), uuid]
        pipe = subprocess.PIPE
        program = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 (ourselves)
        self._programs.setdefault(pod.uid, []).append(program)
        # Written before the program connects: the driver asks the kernel for its cgroup.
        cgroup = self._container(pod.uid).relative_to(self._folder / CGROUPS)
        entry = self._folder / PROC / str(program.pid)
        entry.mkdir(parents=True)
        (entry / "cgroup").write_text(f"0::/{cgroup}\n")
        assert program.stdin
        assert program.stdout
        program.stdin.close()
        return program.stdout.readline().strip()

    def close(self) -> None:
        for uid in tuple(self._programs):
            self.end(uid)
        if self._helper:
            self._helper.terminate()
            self._helper.wait(PATIENCE_S)

    def _container(self, uid: str) -> Path:
        return self._root / f"pod{uid}" / uid.replace("-", "").ljust(64, "0")[:64]
