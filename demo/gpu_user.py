"""A process that uses a GPU for a pod, in the pictures: a real one, where the agent looks for the pods of processes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HIERARCHIES = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Of cgroup v1 and v2."""
_LONG_S = "3600"


@contextmanager
def gpu_user(pod_uid: str) -> Iterator[int]:
    """The PID of a process in a cgroup with the name that kubelet gives to the one of the pod.

    Raises:
        RuntimeError: cgroups cannot be made; that needs root.
    """
    cgroup = _hierarchy() / f"pod{pod_uid}"
    try:
        cgroup.mkdir()
    except OSError as err:
        raise RuntimeError(f"{cgroup} cannot be made: {err.strerror}. Run this as root") from None
    process = subprocess.Popen(("/bin/sleep", _LONG_S))  # noqa: S603 (a fixed command)
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        process.wait()
        cgroup.rmdir()


def _hierarchy() -> Path:
    for folder in _HIERARCHIES:
        if (folder / "cgroup.procs").exists():
            return folder
    raise RuntimeError(f"no cgroups at {' or '.join(map(str, _HIERARCHIES))}: mount them")
