"""The control groups that a cluster uses. What the machine had before is neither changed nor removed.

They are the machine's also where a cluster has a machine of its own, see `apart`. So several clusters share them.
"""

import fcntl
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from gpuagent.limits_helper.probe import NAME as PROBE

# containerd's, for containers that kubelet gives no group.
_WITHOUT_KUBELET = "k8s.io"
# Kubelet's, for its pods. Each cluster has a group of its own in it, so that no two kubelets share one.
_OF_KUBELETS = "gpuagent-e2e"
USERS = Path("/tmp/gpuagent-e2e-cgroups.lock")
"""Locked by all clusters. It says which controllers the last one has to disable."""
_NVIDIA = Path("/proc/driver/nvidia")
_KINDS = {"cgroup", "cgroup2"}
_DEATHS_S = 10.0
"""A process that was killed stays in its group until the kernel has taken it down."""


class Cgroups:
    """The groups of one cluster, from `claim` to `remove`."""

    def __init__(self) -> None:
        self._own = f"{_OF_KUBELETS}/{uuid.uuid4().hex[:8]}"
        self._users: int | None = None

    @property
    def kubelet_root(self) -> str:
        """For kubelet's setting `cgroupRoot`."""
        return f"/{self._own}"

    def claim(self) -> None:
        """Keep other clusters from removing groups that look unused: a container that is just being made has one."""
        self._users = os.open(USERS, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def make_kubelet_root(self) -> None:
        """In every hierarchy of cgroup v1, or in the one of v2: kubelet starts only where its root is."""
        for hierarchy in hierarchies():
            group = hierarchy / self._own
            group.mkdir(parents=True, exist_ok=True)
            for above in (hierarchy, group.parent):
                _enable_controllers(above)

    def remove(self) -> None:
        """To be called when no container is left."""
        if self._users is not None:
            os.close(self._users)
            self._users = None
        until = time.monotonic() + _DEATHS_S
        while not _removed(self._own) and time.monotonic() < until:
            time.sleep(0.05)
        remove_unused()


def remove_unused() -> None:
    """Remove what this run has left, or a run that was killed, unless another cluster uses control groups now."""
    users = os.open(USERS, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _removed(_WITHOUT_KUBELET)
        _removed(_OF_KUBELETS)
        if not _NVIDIA.exists():
            # A helper of memory limits leaves it, because a real driver might know it.
            _removed(PROBE)
        _disable_controllers()
    except BlockingIOError:
        return
    finally:
        os.close(users)


def hierarchies() -> list[Path]:
    """Where the machine's control groups are mounted: v1 has one for each controller, v2 has one for all."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4]) for line in lines if _kind(line) in _KINDS]


def pods_hierarchy() -> Path:
    """The hierarchy of the memory controller: GPU memory is accounted for by its groups on cgroup v1, and on v2."""
    v1 = [hierarchy for hierarchy in hierarchies() if hierarchy.name == "memory"]
    v2 = [hierarchy for hierarchy in hierarchies() if (hierarchy / "cgroup.controllers").exists()]
    return (v1 or v2)[0]


def _enable_controllers(group: Path) -> None:
    """Let the groups below have all controllers, on cgroup v2; container runtimes do the same to the whole path.

    What is enabled now is noted in the file that also is the lock.
    """
    if not (group / "cgroup.controllers").exists():
        return
    enabled = group / "cgroup.subtree_control"
    missing = set((group / "cgroup.controllers").read_text().split()) - set(enabled.read_text().split())
    for controller in missing:
        with USERS.open("a") as notes:
            notes.write(f"{enabled} {controller}\n")
        enabled.write_text(f"+{controller}")


def _disable_controllers() -> None:
    """Undo what is noted."""
    for line in USERS.read_text().splitlines():
        enabled, _, controller = line.partition(" ")
        with suppress(OSError):  # it has gone
            Path(enabled).write_text(f"-{controller}")
    USERS.write_text("")


def _kind(line: str) -> str:
    """The type of the file system, after a list of fields that ends with a dash."""
    return line.partition(" - ")[2].split()[0]


def _removed(group: str) -> bool:
    """Whether no hierarchy has the group any more. A group with a process in it stays."""
    for hierarchy in hierarchies():
        for directory, _, _ in os.walk(hierarchy / group, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                continue
    return not any((hierarchy / group).exists() for hierarchy in hierarchies())
