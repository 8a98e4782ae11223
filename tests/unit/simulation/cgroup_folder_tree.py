"""Directories that stand for cgroups, and a procfs that says which process is in which."""

import itertools
from pathlib import Path

from gpuagent.simulation.devices.device_memory import CgroupSource


class CgroupFolderTree:
    """Made by a test below its own folder; `source` is what a simulated driver looks them up in."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.proc = folder / "proc"
        self._removed = folder / "removed"
        for directory in (self.root, self.proc, self._removed):
            directory.mkdir()
        self._numbers = itertools.count()
        self.source = CgroupSource(self.root, self.proc)

    def make(self, path: str) -> Path:
        directory = self.root / path
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def remove(self, path: str) -> None:
        # Elsewhere it keeps its inode, which file systems of cgroups use only once.
        (self.root / path).rename(self._removed / str(next(self._numbers)))

    def process(self, pid: int, path: str, line: str = "0::/{}") -> None:
        """Let a process be in that cgroup."""
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(line.format(path) + "\n")

    def end(self, pid: int) -> None:
        (self.proc / str(pid) / "cgroup").unlink()
        (self.proc / str(pid)).rmdir()
