"""Which failures of a run of tests are played again, and what is said of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONCE = """
import pathlib
def fails_once(name):
    file = pathlib.Path(__file__).with_name(name)
    seen = file.exists()
    file.touch()
    assert seen
"""
"""Fails the first time that it's called with a name."""
UNSTABLE = "def test_unstable(): fails_once('unstable')\n"
STEADY = "def test_steady(): pass\n"
BROKEN = "def test_broken(): assert False\n"
MANY = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_many(n): fails_once(f'many-{n}')\n"
AUDIT = """
import pytest
@pytest.fixture
def audited():
    yield
    fails_once("audit")
def test_audited(audited): pass
"""
SETUP = """
import pytest
@pytest.fixture
def machine():
    fails_once("machine")
def test_machine(machine): pass
"""
CRASH = """
import os, pathlib
def test_crash():
    file = pathlib.Path(__file__).with_name("crashed")
    if not file.exists():
        file.touch()
        os._exit(3)
"""
RETRIED = "and are played again"


def played(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(ONCE + tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = (sys.executable, "-m", "tests.retry_failed", str(folder), "--rootdir", str(folder), *arguments)
    of_this_run = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in of_this_run}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "two"])
def test_a_test_that_passes_when_it_is_played_again_is_named_and_fails_nothing(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    run = played(tmp_path, UNSTABLE + STEADY, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    first, again = run.stdout.split(RETRIED)
    assert "1 failed, 1 passed" in first
    assert "1 passed" in again
    unstable = again.partition("UNSTABLE")[2]
    assert "test_it.py::test_unstable" in unstable
    assert "test_steady" not in unstable


def test_a_fixture_that_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    run = played(tmp_path, SETUP)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "UNSTABLE" in run.stdout


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    run = played(tmp_path, BROKEN + UNSTABLE)
    assert run.returncode == 1
    assert RETRIED in run.stdout
    assert "UNSTABLE" not in run.stdout


@pytest.mark.parametrize(
    ("tests", "code"),
    [(MANY, 1), (AUDIT, 1), (UNSTABLE + AUDIT, 1), ("no Python", 2), ("", 5)],
    ids=["more than chance explains", "audit", "audit and a test", "not collected", "no test"],
)
def test_what_could_hide_something_is_not_played_again(tmp_path: Path, tests: str, code: int) -> None:
    run = played(tmp_path, tests)
    assert run.returncode == code, run.stdout + run.stderr
    assert RETRIED not in run.stdout


def test_after_a_crash_nothing_is_played_again(tmp_path: Path) -> None:
    """The tests of the process that crashed may be missing."""
    run = played(tmp_path, CRASH + UNSTABLE, "-n", "2")
    assert run.returncode == 1, run.stdout + run.stderr
    assert RETRIED not in run.stdout


def test_a_run_without_failures_is_played_once(tmp_path: Path) -> None:
    run = played(tmp_path, STEADY)
    assert run.returncode == 0
    assert RETRIED not in run.stdout
