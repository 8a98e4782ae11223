"""Scenarios that have found something once: each is played again."""

import subprocess
import sys

import pytest

from simworld.scenario import draw
from simworld.stored import FOLDER, Stored, keep, read_stored

FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_scenario_breaks_no_promise_any_more(path):
    played = play(path)
    assert played.returncode == 0, played.stdout


@pytest.mark.parametrize("path", [path for path in FILES if read_stored(path).fault], ids=lambda path: path.stem)
def test_a_kept_scenario_still_finds_the_fault_that_it_was_kept_for(path):
    played = play(path, "--put-back", read_stored(path).fault)
    assert played.returncode == 1, played.stdout
    assert "BROKEN" in played.stdout


def play(path, *arguments):
    command = [sys.executable, "-m", "simworld", "--scenario", str(path), *arguments]
    played = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert played.returncode in (0, 1), played.stderr
    return played


@pytest.mark.parametrize("seed", range(5))
def test_a_scenario_is_read_as_it_was_kept(tmp_path, seed):
    stored = Stored('pod-3 was "refused"', "nothing_is_reserved", draw(seed))
    path = tmp_path / "kept.json"
    keep(stored, path)
    assert read_stored(path) == stored
