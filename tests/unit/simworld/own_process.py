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
from simworld.scenario import Action, Scenario
with TemporaryDirectory() as folder:
    outcome = play({scenario!r}, Path(folder))
print(*outcome.story, sep="\\n")
print(*outcome.broken, sep="\\n")
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


def story_of(scenario: Scenario) -> str:
    """Play a scenario; what happened, and which promises were broken."""
    return output_of(_PLAY.format(scenario=scenario))


PLAYED_WITH_A_FAULT = """
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.play import play
from simworld.put_back import FAULTS, SYMPTOMS
from {module} import {draw}
FAULTS[{fault!r}]()
# pytest's own folders are too long for the sockets in them.
with TemporaryDirectory() as folder:
    outcome = play({draw}({seed}), Path(folder), until=SYMPTOMS.get({fault!r}, ""))
print(*outcome.broken, sep="\\n")
"""


def broken_with_fault(fault, draw, seed):
    """What the checker says, a line each, when a fault is put back into the world that `draw` makes of a seed."""
    script = PLAYED_WITH_A_FAULT.format(module=draw.__module__, draw=draw.__name__, fault=fault, seed=seed)
    return output_of(script)
