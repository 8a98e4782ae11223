"""The file with what resized pods were granted."""

import json

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.resize import Resize
from gpuagent.system.resize_file import ResizeFile

RESIZES = {"uid": Resize(PodName("ml", "train"), {"main": 12}, {"main": 12}, frozenset({"jgl5nn3brc-mc-12"}))}


def test_the_next_run_reads_what_was_stored(tmp_path):
    assert ResizeFile(tmp_path).keep(RESIZES) is None
    assert ResizeFile(tmp_path).load() == RESIZES


def test_the_first_run_has_none(tmp_path):
    file = ResizeFile(tmp_path / "missing")
    assert file.load() == {}
    assert file.keep({}) is None
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"pods": []}',
        '{"pods": {"uid": 1}}',
        '{"pods": {"uid": {"namespace": "ml", "name": "train", "limits": {}, "most": {}, "extra": ["x"]}}}',
        '{"pods": {"uid": {"namespace": "ml", "name": "train", "limits": {"main": "many"}, "most": {}, "extra": []}}}',
        '{"pods": {"uid": {"limits": [], "most": {}, "extra": 1}}}',
    ],
)
def test_a_damaged_file_is_none(tmp_path, text):
    (tmp_path / "resizes.json").write_text(text, encoding="utf-8")
    assert ResizeFile(tmp_path).load() == {}


def test_a_failed_write_is_told_and_tried_again_in_time(tmp_path):
    now = [0.0]
    blocked = tmp_path / "state"
    blocked.write_text("a file where the directory should be", encoding="utf-8")
    file = ResizeFile(blocked, clock=lambda: now[0])
    problem = file.keep(RESIZES)
    assert problem
    assert "cannot be recorded" in problem
    assert file.saved == {}
    blocked.unlink()
    assert file.keep(RESIZES) == problem, "not at once"
    now[0] += 60
    assert file.keep(RESIZES) is None
    assert json.loads((blocked / "resizes.json").read_text(encoding="utf-8"))["pods"].keys() == {"uid"}
