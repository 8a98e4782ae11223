"""A paused process stands still from the moment on at which `pause_process` returns."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.paused_process import pause_process, resume_process

WORKING = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock, so that threads run beside each other
threads = [threading.Thread(target=work) for _ in range(16)]
"""
COMING_AND_GOING = """
import threading
def work():
    while True:
        short = [threading.Thread(target=int) for _ in range(4)]
        for thread in short:
            thread.start()
        for thread in short:
            thread.join()
threads = [threading.Thread(target=work) for _ in range(4)]
"""
START = """
for thread in threads:
    thread.start()
print("started", flush=True)
"""


@pytest.fixture(params=[WORKING, COMING_AND_GOING], ids=["working", "coming and going"])
def pid(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a process whose threads work all the time."""
    with subprocess.Popen((sys.executable, "-c", request.param + START), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield process.pid
        process.kill()


def test_each_thread_is_stopped(pid: int) -> None:
    for _ in range(20):
        pause_process(pid)
        # The kernel reports a stop to the parent when the last of the threads has stopped.
        report = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
        assert report is not None
        assert report.si_status == signal.SIGSTOP
        resume_process(pid)
        assert os.waitid(os.P_PID, pid, os.WCONTINUED) is not None


def test_a_process_that_has_ended_is_reported() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
            pause_process(process.pid)
    with pytest.raises(ProcessLookupError):
        pause_process(process.pid)
