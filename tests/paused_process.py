"""Pauses a process, which then stands still as one that hangs does, with its files and connections."""

import os
import signal
import time

PAUSES_S = 60.0
"""A limit for what never comes, such as the stop of a thread that waits for a broken disk."""
_LOOK_S = 0.002
_ENDED = frozenset("ZX")


def pause_process(pid: int) -> None:
    """Send SIGSTOP, and wait until each thread of the process is stopped.

    The signal alone pauses nothing yet: each thread runs until it takes the stop itself. On a busy machine, a thread
    may therefore still answer a request that was sent after the signal.

    Raises:
        ProcessLookupError: the process has ended.
        TimeoutError: a thread still runs.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PAUSES_S
    quiet_looks = 0
    # While the first look was made, a thread that still ran may have begun another, which this look has not listed.
    # The second look lists that one as well, because no stopped thread begins another.
    while quiet_looks < 2:
        running = [thread for thread, state in _threads(pid).items() if state != "T"]
        quiet_looks = 0 if running else quiet_looks + 1
        if time.monotonic() > deadline:
            # Callers take it for running, and so would all later tests.
            os.kill(pid, signal.SIGCONT)
            raise TimeoutError(f"process {pid} was sent SIGSTOP {PAUSES_S:g} s ago, and threads still run: {running}")
        time.sleep(_LOOK_S)


def resume_process(pid: int) -> None:
    """Let a paused process go on."""
    os.kill(pid, signal.SIGCONT)


def _threads(pid: int) -> dict[str, str]:
    """The state of each thread that has not ended, by its ID. T stands for a stopped one, see `proc_pid_stat(5)`.

    Raises:
        ProcessLookupError: all have ended.
    """
    states = {}
    for thread in _listed(pid):
        state = _state(pid, thread)
        if state not in _ENDED:
            states[thread] = state
    if not states:
        raise ProcessLookupError(f"process {pid} has ended, so it cannot be paused")
    return states


def _listed(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(pid: int, thread: str) -> str:
    """One letter; that of a dead thread if it has ended meanwhile."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    # The name in parentheses may itself contain spaces and parentheses.
    return fields.rpartition(")")[2].split()[0]
