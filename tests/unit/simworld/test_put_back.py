"""Faults that are put back into the product, and whether the simulation finds them."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PUT_ALL_BACK = """
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.put_back import FAULTS
for put_back in FAULTS.values():
    put_back()
print(len(FAULTS))
"""

CANNOT_BE_PUT_BACK = """
import sys, tempfile
from pathlib import Path
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld import put_back_table
def put_back():
    raise AttributeError("that decision has another place now")
put_back_table.FAULTS["moved"] = put_back
with tempfile.TemporaryDirectory() as root:
    search = put_back_table.Search(first=1, seconds=0.01, jobs=1, root=Path(root))
    sys.exit(put_back_table.print_table("moved", search))
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
    said = re.search(r"There are (\d+) of them", (ROOT / "docs/how-we-test.md").read_text())
    assert said is not None
    assert int(output) == int(said[1]), "docs/how-we-test.md"


def test_a_fault_that_cannot_be_put_back_is_not_found():
    status, output = run("-c", CANNOT_BE_PUT_BACK)
    assert status == 1
    assert "| moved | no |" in output


def test_a_fault_is_looked_for_in_the_worlds_of_the_kind_that_is_given():
    fault = "units_that_kubelet_offers_are_free"
    status, output = run(
        "-m", "simworld", "--put-back", fault, "--admissions", "--first", "3", "--minutes", "1", "--jobs", "1"
    )
    assert status == 0
    assert "| yes | admissions 3 |" in output
