"""The check's own cgroups. All of them are removed when it ends."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = "gpuagent.limits-check-"
"""And the process that makes them."""
_ENDING_S = 10.0
"""A process that was killed stays in its cgroup until the kernel has taken it down."""
_CONTROLLER = "dmem"


class OwnCgroups:
    """Makes cgroups below `root`, in one of its own; a context manager. Raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = root / f"{NAME}{os.getpid()}"
        self._enabled_here = False
        self._lock = -1

    def __enter__(self) -> Self:
        for former in self._root.glob(f"{NAME}*"):
            _remove_if_left(former)
        try:
            self._enabled_here = _enable(self._root)
            self._top.mkdir()
            self._lock = _locked(self._top)
            _enable(self._top)
        except OSError:
            self._undo()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo()

    def _undo(self) -> None:
        _remove_all(self._top)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._enabled_here:
            with suppress(OSError):
                (self._root / "cgroup.subtree_control").write_text(f"-{_CONTROLLER}")

    def pod(self, name: str) -> Path:
        """A cgroup that gets cgroups of its own, and no process."""
        directory = self._top / name
        directory.mkdir()
        _enable(directory)
        return directory

    def leaf(self, pod: Path, name: str = "leaf") -> Path:
        """A cgroup for processes."""
        directory = pod / name
        directory.mkdir()
        return directory

    def remove(self, directory: Path) -> None:
        """Remove a cgroup, and those in it."""
        _remove_all(directory)


def _enable(directory: Path) -> bool:
    """Let the cgroups below have the kernel's controller of device memory, as kubelet does; whether this changed it."""
    control = directory / "cgroup.subtree_control"
    try:
        available = (directory / "cgroup.controllers").read_text().split()
        enabled = control.read_text().split()
    except OSError:
        return False
    if _CONTROLLER not in available or _CONTROLLER in enabled:
        return False
    control.write_text(f"+{_CONTROLLER}")
    return True


def _locked(directory: Path) -> int:
    """A descriptor that is locked while this process lives. Raises OSError: another process has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_left(top: Path) -> None:
    """Remove the cgroups of a check that was killed."""
    with suppress(OSError):  # it runs, or its programs have not ended
        descriptor = _locked(top)
        try:
            _remove_all(top)
        finally:
            os.close(descriptor)


def _remove_all(top: Path) -> None:
    directories = [path for path in top.rglob("*") if path.is_dir()]
    deepest_first = sorted(directories, key=lambda path: len(path.parts), reverse=True)
    for directory in (*deepest_first, top):
        _remove(directory)


def _remove(directory: Path) -> None:
    until = time.monotonic() + _ENDING_S
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
