"""Finds the container of a process in this PID namespace: reads its cgroups, and checks that the PID was not reused."""

import os
import time
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

from gpuagent.domain.usage.process_cgroup import ProcessContainer, parse_cgroup

PROC = Path("/proc")
HOST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first PID namespace: PROC_PID_INIT_INO in Linux's include/linux/proc_ns.h."""
_CHUNK = 65536
_START_FIELD = 19
"""Place of the start time in /proc/PID/stat, counted from the field after the name."""
_ENDED = frozenset({"Z", "X"})
"""States of a process that has ended and is still listed."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def boot_s() -> float:
    """Seconds since the machine started: the clock by which the kernel notes when a process began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sees_every_pid(proc: Path = PROC) -> bool:
    """Whether this process is certainly in the machine's own PID namespace, which shows the PIDs of containers."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


class ProcessCgroups:
    """The cgroups of processes by PID, so that each process is read only once. For one thread at a time.

    Args:
        proc: where procfs of the agent's own PID namespace is mounted; NVML returns PIDs of that namespace.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[int, tuple[str, ProcessContainer]] = {}
        try:
            self._of_agent = self._read("self", "cgroup")
        except OSError:
            self._of_agent = ""

    def of(self, pid: int, asked_s: float) -> ProcessContainer | None:
        """The place of the process that had this PID at `asked_s` (`boot_s`); None if hidden or ended."""
        began = self._began(pid)
        if began is None:
            return None
        known = self._known.get(pid)
        if known and known[0] == began:
            return known[1]
        if int(began) * _TICK_S > asked_s + _TICK_S:  # another process has the PID by now
            return None
        try:
            cgroups = self._read(pid, "cgroup")
        except OSError:
            return None
        place = parse_cgroup(cgroups)
        if cgroups and cgroups == self._of_agent:
            # From within the agent's cgroup namespace, its own cgroups do not name its pod.
            place = replace(place, of_agent=True)
        # The process may have ended meanwhile, and the cgroup be that of another with the same PID.
        if self._began(pid) != began:
            return None
        self._known[pid] = (began, place)
        return place

    def all(self) -> Iterator[tuple[ProcessContainer, float]]:
        """The place of every process in a container, and when the process began, in seconds of `boot_s`."""
        for folder in self._proc.iterdir():
            if not folder.name.isdecimal():
                continue
            pid = int(folder.name)
            place = self.of(pid, boot_s())
            if place and place.container:
                began, _ = self._known[pid]
                yield place, int(began) * _TICK_S

    def forget_all_but(self, pids: Container[int]) -> None:
        """Drop the cgroups of all other processes."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}

    def _began(self, pid: int) -> str | None:
        """The start time of the process in ticks; None if there is no such process, or only a zombie."""
        try:
            text = self._read(pid, "stat")
        except OSError:
            return None
        # A program's name may hold blanks and brackets.
        _, _, after_name = text.rpartition(")")
        fields = after_name.split()
        if len(fields) <= _START_FIELD or fields[0] in _ENDED:
            return None
        return fields[_START_FIELD]

    def _read(self, pid: int | str, name: str) -> str:
        """Read a small file, in half the time that a file object takes: there may be hundreds of processes."""
        file = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = iter(lambda: os.read(file, _CHUNK), b"")
            return b"".join(chunks).decode("utf-8", "replace")
        finally:
            os.close(file)
