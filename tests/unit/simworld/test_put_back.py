"""Faults that are put back into the product, and whether the simulation finds them."""

import os
import subprocess
import sys

PUT_ALL_BACK = """
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.put_back import FAULTS
for put_back in FAULTS.values():
    put_back()
print(len(FAULTS))
"""


def run(*arguments):
    """Exit status and output of a Python that has the product for itself."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def test_each_fault_finds_the_decision_that_it_takes_away():
    status, output = run("-c", PUT_ALL_BACK)
    assert status == 0
    assert int(output) > 40
