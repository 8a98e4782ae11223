"""Every output on stderr is a line of the log, also what Python and libraries would print themselves."""

import json
import subprocess
import sys

import pytest

from standin.waiting import PATIENCE_S

SPEAKERS = """
import gc, sys, threading, time, warnings
from gpuagent.system import log
end = log.setup("json", "info")
from urllib3.exceptions import InsecureRequestWarning

class Odd:
    def __del__(self):
        raise ValueError("while it was collected")

def fail():
    raise KeyError("in a thread")

for _ in range(300):
    warnings.warn("Unverified HTTPS request is being made to host '10.0.0.1'.", InsecureRequestWarning)
warnings.warn("of another kind", UserWarning)
thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
Odd()
gc.collect()
threading.Thread(target=sys.exit).start()
raise RuntimeError("at last")
"""


@pytest.fixture(scope="session")
def lines():
    done = subprocess.run([sys.executable, "-c", SPEAKERS], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 1
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_warning_of_a_library_is_one_line(lines):
    warnings = [line for line in lines if line["event"] == "Python warning"]
    assert [(line["category"], line["level"]) for line in warnings] == [
        ("InsecureRequestWarning", "warning"),
        ("UserWarning", "warning"),
    ]
    assert warnings[0]["text"] == "Unverified HTTPS request is being made to host '10.0.0.1'."


def test_what_fails_outside_of_a_handler_is_logged_with_its_trace(lines):
    failed = {line["event"]: line for line in lines if line["event"] != "Python warning"}
    assert failed.keys() == {"Thread failed", "Exception ignored", "Program failed"}
    assert failed["Thread failed"]["thread_name"] == "worker"
    assert "KeyError: 'in a thread'" in failed["Thread failed"]["exception"]
    assert "Odd.__del__" in failed["Exception ignored"]["where"]
    assert "ValueError: while it was collected" in failed["Exception ignored"]["exception"]
    assert "RuntimeError: at last" in failed["Program failed"]["exception"]


NOBODY_READS = """
import logging, os
from gpuagent.system import log
write_out = log.setup("text", "info")
for _ in range(200):
    logging.info("x" * 1000)
write_out()
os._exit(0)
"""


def test_a_process_whose_log_nobody_reads_ends():
    with subprocess.Popen([sys.executable, "-c", NOBODY_READS], stderr=subprocess.PIPE) as process:
        process.wait(PATIENCE_S)
        assert len(process.stderr.read()) < 200_000, "the pipe took every line: the test shows nothing"
