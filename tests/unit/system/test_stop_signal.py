"""A process that waits for its end hears it wherever it is."""

import signal
import subprocess
import sys

from standin.waiting import PATIENCE_S

WAITS = """
from gpuagent.system.stop_signal import StopSignal
stop = StopSignal()
print("waits", flush=True)
while not stop.wait({timeout_s}):
    pass
"""


def test_a_signal_is_heard_at_any_step_of_the_wait():
    for _ in range(10):  # an Event's lock is held for a good part of such a loop: half of the processes never ended
        process = subprocess.Popen([sys.executable, "-c", WAITS.format(timeout_s=0)], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        with process.stdout:
            assert process.wait(PATIENCE_S) == 0


def test_a_wait_without_limit_ends_with_the_signal():
    process = subprocess.Popen([sys.executable, "-c", WAITS.format(timeout_s=None)], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    with process.stdout:
        assert process.wait(PATIENCE_S) == 0
