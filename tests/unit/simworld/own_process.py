"""Code that replaces the machine for itself, and so has to run in a Python of its own."""

import os
import subprocess
import sys

from simworld.scenario import Scenario

_PLAY = """
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.play import play
from simworld.put_back import FAULTS, SYMPTOMS
from simworld.scenario import Action, Scenario
fault = {fault!r}
if fault:
    FAULTS[fault]()
until = SYMPTOMS.get(fault, "") if {ends_when_broken} else None
# pytest's own folders are too long for the sockets in them.
with TemporaryDirectory() as folder:
    outcome = play({scenario!r}, Path(folder), until=until)
print(*outcome.story, sep="\\n")
"""


def output_of(code: str, timeout_s: float = 500) -> str:
    """Run the code, with an order of sets that is the same each time, and return what it has printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def story_of(scenario: Scenario, fault: str = "", *, ends_when_broken: bool = False) -> str:
    """Play a scenario; what happened, and which promises were broken.

    A fault of `put_back` is put back first. With `ends_when_broken`, the world ends when a promise is broken that shows it.
    """
    return output_of(_PLAY.format(scenario=scenario, fault=fault, ends_when_broken=ends_when_broken))
