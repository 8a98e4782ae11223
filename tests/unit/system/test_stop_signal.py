"""A process that waits for its end receives the signal wherever it is, and whatever its threads do."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from standin.waiting import PATIENCE_S

PROCESSES, SIGNALS = 4, 250
POLLS = """
from gpuagent.system.stop_signal import StopSignal
stop = StopSignal()
print("waits", flush=True)
while not stop.wait(0):
    pass
"""
# A thread that starts another blocks and unblocks its signals, and takes one that is meant for the process.
STARTS_THREADS = f"""
import threading
from gpuagent.system.stop_signal import StopSignal

def start_threads():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

for _ in range(2):
    threading.Thread(target=start_threads, daemon=True).start()
for _ in range({SIGNALS}):
    stop = StopSignal()
    print("waits", flush=True)
    stop.wait()
print("ends", flush=True)
"""


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_received_at_any_step_of_a_wait(number):
    for _ in range(10):  # an Event's lock is held for a good part of such a loop: half of the processes never ended
        with program(POLLS) as process:
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(300)
def test_every_signal_ends_the_wait_while_threads_start_threads(number):
    for _ in range(PROCESSES):
        with program(STARTS_THREADS) as process:
            for _ in range(SIGNALS):
                assert process.stdout.readline() == "waits\n"
                process.send_signal(number)
            assert process.stdout.readline() == "ends\n"
            assert process.wait(PATIENCE_S) == 0


def in_pid_namespace(*command: str) -> list[str]:
    """A command as the first process of its PID namespace, as in a container."""
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("it takes the right to make a PID namespace")
    return [*alone, *command]


FIRST_PROCESS = """
import os, sys
from gpuagent.system.output import exit_with

def run():
    print(os.getpid(), flush=True)
    sys.stdin.read()  # as long as imports take

exit_with("test", run)
"""


def test_the_first_process_of_a_container_ends_before_it_waits_for_signals():
    command = in_pid_namespace(sys.executable, "-c", FIRST_PROCESS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as unshare:
        assert unshare.stdout.readline() == "1\n"
        child = subprocess.run(["pgrep", "-P", str(unshare.pid)], capture_output=True, text=True, check=True)
        subprocess.run(["kill", "-TERM", child.stdout.strip()], check=True)
        assert unshare.wait(PATIENCE_S) == 128 + signal.SIGTERM


BETWEEN = """
import os, signal
from gpuagent.system.stop_signal import StopSignal

install = signal.signal

def install_and_receive(number, handler):
    install(number, handler)
    os.kill(os.getpid(), number)

signal.signal = install_and_receive
assert StopSignal().wait(0)
"""


def test_a_signal_as_soon_as_there_is_a_handler_is_received():
    with program(BETWEEN) as process:
        assert process.wait(PATIENCE_S) == 0
