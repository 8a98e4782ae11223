"""What the cluster uses of the machine outside its work directory, and how that is put back."""

import fcntl
import glob
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from .cgroups import Cgroups, remove_unused
from .processes import end_recorded

# Fixed and short: sockets live here (a path of at most 107 bytes), and the next run finds what a crashed one left.
RUN = Path("/run/gpuagent-e2e")
CONTAINERD_STATE = RUN / "containerd"
RECORDS = RUN / "pids"
# kubelet's device-plugins directory stays there whatever its root directory is.
KUBELET_ROOT = Path("/var/lib/kubelet")
_WORKDIR = RUN / "workdir"
_MARKER = KUBELET_ROOT / ".gpuagent-e2e"
_LOG_LINKS = Path("/var/log/containers")


class MachineInUseError(RuntimeError):
    """The machine has a kubelet of its own, or another end-to-end run is going on."""


class Host:
    """Exclusive use of the machine: `with Host(workdir)` starts from and ends with a clean one."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._lock: int | None = None
        self.cgroups = Cgroups()

    def __enter__(self) -> Self:
        RUN.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(RUN / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._unlock()
            raise MachineInUseError("another end-to-end cluster is running on this machine") from None
        if not _MARKER.exists() and any((KUBELET_ROOT / name).exists() for name in ("pki", "pods")):
            self._unlock()
            raise MachineInUseError(f"{KUBELET_ROOT} belongs to a kubelet that these tests have not started")
        _clean()
        self.cgroups.claim()
        RECORDS.mkdir()
        _WORKDIR.write_text(str(self._workdir))
        KUBELET_ROOT.mkdir(mode=0o750, exist_ok=True)
        _MARKER.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _clean()
        self.cgroups.remove()
        shutil.rmtree(RUN, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _clean() -> None:
    end_recorded(RECORDS)
    _end_shims()
    for mount in _mounts_below(RUN, KUBELET_ROOT):
        subprocess.run(("umount", "--lazy", mount), capture_output=True, check=False)
    if left := _mounts_below(RUN, KUBELET_ROOT):
        raise RuntimeError(f"cannot unmount {', '.join(left)}; what is behind them must not be deleted")
    for directory in (CONTAINERD_STATE, RECORDS, KUBELET_ROOT):
        shutil.rmtree(directory, ignore_errors=True)
    remove_unused()
    if _WORKDIR.exists():
        _remove_log_links(Path(_WORKDIR.read_text()))


def _end_shims() -> None:
    """End the shims of our containerd and everything they have started; they outlive it by design."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_shim = b"containerd-shim-runc-v2" in arguments[0]
        if is_shim and bytes(CONTAINERD_STATE / "containerd.sock") in arguments and _sees_our_files(process):
            shim = int(process.name)
            children = _descendants(shim)
            for pid in (shim, *children):
                _kill(pid)


def _sees_our_files(process: Path) -> bool:
    """And so is not of a cluster that has a machine of its own, with a socket of the same name."""
    try:
        return (process / "ns" / "mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return False


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            direct = [int(child) for child in Path(children).read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *_descendants(child)]
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _mounts_below(*roots: Path) -> list[str]:
    """Mount points in the directories, the innermost first; kubelet also mounts its root directory on itself."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    ours = (point for point in points if any(Path(point).is_relative_to(root) for root in roots))
    return sorted(ours, key=len, reverse=True)


def _remove_log_links(workdir: Path) -> None:
    """kubelet links the logs of all containers here, wherever the logs are."""
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(workdir):
            link.unlink()
    if _LOG_LINKS.exists() and not any(_LOG_LINKS.iterdir()):
        _LOG_LINKS.rmdir()
