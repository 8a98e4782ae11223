"""The directories of real cgroups, as cgroups of the simulated accounting. They are read only when needed."""

import os
from pathlib import Path

from gpuagent.host.cgroups import CGROUP_ROOT, Identity
from gpuagent.simulation.memory_accounting import MemoryAccounting
from gpuagent.simulation.memory_groups import CgroupId

ROOT = "root"
"""The root cgroup. Its directory need not exist."""
PROC = Path("/proc")
_MOST_TEXT = 1 << 16
"""More than /proc/PID/cgroup ever holds."""
_REMOVED = " (deleted)"
"""What the kernel adds to the path of a cgroup that only a zombie is still in."""


class OutsideError(Exception):
    """A path is not below the root of the cgroups."""


class UnknownCgroupError(Exception):
    """The cgroup of a running process is not below the root of the cgroups, so nothing can be charged to it."""


class CgroupFolders:
    """Tells `accounting` of the cgroups that a program asks about, and of their removal.

    Device and inode tell a directory from a later one of the same path: file systems of cgroups use no inode again.

    Args:
        accounting: its root cgroup is `ROOT`.
        root: where cgroups are mounted: with cgroup v1, those of the memory controller.
        proc: where procfs is mounted, with the cgroups of processes as seen from the root.
    """

    def __init__(self, accounting: MemoryAccounting, root: Path = CGROUP_ROOT, proc: Path = PROC) -> None:
        self._accounting = accounting
        self._root = Path(os.path.realpath(root))
        self._proc = proc
        self._known: dict[Path, Identity] = {}
        self._without_dmem: set[Path] = set()

    def at(self, path: Path) -> CgroupId | None:
        """The cgroup with that directory; None if there is none. Raises OutsideError."""
        real = self._real(path)
        cgroup: CgroupId = ROOT
        directory = self._root
        for name in real.relative_to(self._root).parts:
            directory /= name
            identity = _identity(directory)
            if identity is None:
                return None
            if self._known.get(directory) != identity:
                self._add(directory, identity, parent=cgroup)
            cgroup = identity
        return cgroup

    def of_process(self, pid: int) -> CgroupId | None:
        """The cgroup of a process; None if it has ended. Raises UnknownCgroupError."""
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                text = os.fsdecode(file.read(_MOST_TEXT))
        except OSError:
            return None
        path = _cgroup_path(text)
        if path.endswith(_REMOVED):
            return None
        try:
            cgroup = self.at(Path(f"{self._root}{path}"))
        except OutsideError:
            # This process has a cgroup namespace of its own, and the other is outside of it.
            cgroup = None
        if cgroup is None:
            raise UnknownCgroupError(f"process {pid} is in cgroup {path!r}, which is not below {self._root}")
        return cgroup

    def set_dmem_files(self, path: Path, present: bool) -> None:
        """Let a directory have the files of the kernel's controller ``dmem``, or not. Raises OutsideError.

        All limits of the cgroup, and of those below it, are gone.
        """
        real = self._real(path)
        if present:
            self._without_dmem.discard(real)
        else:
            self._without_dmem.add(real)
        self._forget([known for known in self._known if known.is_relative_to(real)])

    def _real(self, path: Path) -> Path:
        try:
            real = Path(os.path.realpath(path))
        except ValueError:  # a path that no file can have
            raise OutsideError from None
        if not real.is_relative_to(self._root):
            raise OutsideError
        return real

    def _add(self, directory: Path, identity: Identity, parent: CgroupId) -> None:
        # The kernel had the addresses of all cgroups that are gone when it made this one.
        self._forget([known for known, former in self._known.items() if _identity(known) != former])
        self._known[directory] = identity
        self._accounting.add_cgroup(identity, parent, dmem_files=directory not in self._without_dmem)

    def _forget(self, directories: list[Path]) -> None:
        """Tell that cgroups are gone, those below others first."""
        for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
            self._accounting.remove_cgroup(self._known.pop(directory))


def _identity(directory: Path) -> Identity | None:
    """What tells this directory from every other; None if it is not there."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino)


def _cgroup_path(text: str) -> str:
    """The path in /proc/PID/cgroup: that for the memory controller with cgroup v1, else that of cgroup v2."""
    unified = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return path
        if number == "0":
            unified = path
    return unified
