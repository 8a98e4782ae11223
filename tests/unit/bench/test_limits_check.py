"""The check of the driver's memory limits: its answers on the simulated driver, and what it refuses and says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import limits_check
from bench.limits import questions
from bench.limits.own_cgroups import NAME, OwnCgroups
from bench.limits.questions import QUESTIONS, SHARE_MIB, Trial, Verdict
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import CallError

# With cgroup v1, as the simulated driver takes it: the hierarchy of the memory controller.
ROOTS = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
ROOT = next((root for root in ROOTS if (root / "cgroup.procs").exists()), None)
CAN_MAKE_CGROUPS = ROOT is not None and os.geteuid() == 0 and os.access(ROOT, os.W_OK)

in_real_cgroups = pytest.mark.skipif(not CAN_MAKE_CGROUPS, reason="only root makes cgroups, where they are writable")


def check(tmp_path, capsys, *arguments):
    """Run it on a simulated box; its exit code, text, and JSON."""
    path = tmp_path / "out" / "limits.json"
    simulated = ("--simulate", "dgx-a100", "--cgroup-root", str(ROOT), "--json", str(path))
    code = limits_check.main([*simulated, *arguments])
    document = json.loads(path.read_text()) if path.exists() else None
    return code, capsys.readouterr().out, document


# -- on the simulated driver -------------------------------------------------------------------------------------------


@in_real_cgroups
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_every_question_is_answered_as_the_sources_of_the_driver_say(tmp_path, capsys, backend):
    code, text, document = check(tmp_path, capsys, "--backend", backend, "--change-persistence")
    assert (code, document["backend"], document["simulated"]) == (0, backend, True)
    assert "SIMULATED" in text
    verdicts = {name: answer["verdict"] for name, answer in document["answers"].items()}
    # The simulated driver asks nobody for capabilities.
    assert verdicts == dict.fromkeys(QUESTIONS, "as assumed") | {"rights": "better"}, text
    measured = {name: answer["measured"] for name, answer in document["answers"].items()}
    assert (measured["inherited"]["inherited"] > 0) is (backend == "misc")
    assert (measured["total"]["seen_mib"] == SHARE_MIB) is (backend == "misc")
    assert (measured["late"]["taken_mib"] > SHARE_MIB) is (backend == "misc")
    assert measured["persistence"] == {"while_open_mib": SHARE_MIB, "after_closed_mib": None}
    assert not list(ROOT.glob(f"{NAME}{os.getpid()}"))


@in_real_cgroups
def test_persistence_mode_is_changed_on_request_only(tmp_path, capsys):
    code, _, document = check(tmp_path, capsys)
    answer = document["answers"]["persistence"]
    assert (code, answer["verdict"]) == (0, "not asked")
    assert "--change-persistence" in answer["answer"]


@in_real_cgroups
def test_a_driver_without_limits_is_refused_with_the_reason(tmp_path, capsys):
    code, text, document = check(tmp_path, capsys, "--backend", "none")
    assert (code, document) == (0, None)
    assert text.startswith("nothing to check memory limits on: GPU 7 cannot be limited: ")


def test_a_box_that_is_not_known_is_named_with_those_that_are(tmp_path, capsys):
    assert limits_check.main(["--simulate", "dgx-z1000", "--cgroup-root", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("--simulate: unknown box 'dgx-z1000'; known boxes: ")


@in_real_cgroups
@pytest.mark.parametrize("call", ["count", "uuid", "memory_bytes"])
def test_a_gpu_that_is_lost_is_a_sentence(tmp_path, capsys, monkeypatch, call):
    def lost(*_):
        raise CallError("nvmlDeviceGetUUID", 15, "GPU is lost")

    monkeypatch.setattr(LimitCalls, call, lost)
    code, text, document = check(tmp_path, capsys)
    assert (code, document) == (1, None)
    assert text.startswith("the NVIDIA driver does not answer as it should: nvmlDeviceGetUUID: GPU is lost; look at")


@in_real_cgroups
def test_answers_that_cannot_be_written_are_printed_nevertheless(tmp_path, capsys):
    (tmp_path / "out").write_text("a file in the place of the folder", encoding="utf-8")
    code, text, _ = check(tmp_path, capsys)
    assert code == 1
    assert "as assumed" in text
    assert "cannot be written to" in text
    assert "--json" in text


@in_real_cgroups
def test_a_question_that_fails_keeps_no_other_from_its_answer(tmp_path, capsys, monkeypatch):
    def broken(_):
        raise OSError("no inode is left")

    monkeypatch.setitem(QUESTIONS, "total", broken)
    code, text, document = check(tmp_path, capsys)
    assert (code, document["answers"]["total"]["verdict"]) == (1, "FAILED")
    assert document["answers"]["late"]["verdict"] == "as assumed"
    assert "no inode is left" in text


@in_real_cgroups
def test_cgroups_of_a_check_that_was_killed_are_removed(tmp_path, capsys):
    left = ROOT / f"{NAME}1-killed"
    (left / "pod").mkdir(parents=True)
    check(tmp_path, capsys)
    assert not left.exists()


@pytest.mark.parametrize(
    ("available", "enabled", "inside", "afterwards"),
    [
        ("cpu dmem", "cpu", "+dmem", "-dmem"),
        ("cpu dmem", "cpu dmem", "cpu dmem", "cpu dmem"),
        ("cpu", "cpu", "cpu", "cpu"),
    ],
)
def test_the_kernels_controller_is_enabled_while_the_check_runs(tmp_path, available, enabled, inside, afterwards):
    (tmp_path / "cgroup.controllers").write_text(available)
    control = tmp_path / "cgroup.subtree_control"
    control.write_text(enabled)
    with OwnCgroups(tmp_path) as cgroups:
        cgroups.leaf(cgroups.pod("pod"))
        assert control.read_text() == inside
    assert control.read_text() == afterwards
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


# -- without a driver ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="others are refused before that")
def test_without_a_driver_there_is_nothing_to_check(capsys):
    assert limits_check.main([]) == 0
    assert capsys.readouterr().out.startswith("nothing to check memory limits on: no NVIDIA driver")


def test_it_is_for_root(capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert limits_check.main([]) == 1
    assert "run it as root" in capsys.readouterr().out


# -- drivers that behave otherwise -----------------------------------------------------------------------------------


class Program:
    """A program on a GPU that gives `gives` MiB in all, and whose size reads as `size`."""

    def __init__(self, size, gives):
        self._size = size
        self._left = gives

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def size_mib(self):
        return self._size

    def take(self, mib):
        self._left -= mib
        return mib

    def take_managed(self, mib):
        return mib if mib <= self._left else 0

    def fill(self):
        taken, self._left = self._left, 0
        return taken


def trial(backend, *, size=SHARE_MIB, gives=SHARE_MIB, limit=None) -> Trial:
    gpu = SimpleNamespace(
        backend=backend,
        memory=80 << 30,
        machine=SimpleNamespace(removed_s=0.0),
        limit=lambda *_: None,
        limit_of=lambda _: limit,
        used_by=lambda _: 0,
        program=lambda _: Program(size, gives),
    )
    cgroups = SimpleNamespace(pod=Path, leaf=lambda pod: pod / "leaf", remove=lambda _: None)
    return Trial(gpu, cgroups)


@pytest.mark.parametrize(
    ("question", "made", "expected"),
    [
        (questions.promise, trial("misc"), Verdict.WORSE),  # each of two programs gets all of it
        (questions.promise, trial("misc", gives=SHARE_MIB // 2), Verdict.ASSUMED),
        (questions.total, trial("misc"), Verdict.ASSUMED),
        (questions.total, trial("misc", size=81920), Verdict.WORSE),
        (questions.total, trial("misc", gives=81920), Verdict.WORSE),
        (questions.total, trial("dmem", size=81920), Verdict.ASSUMED),
        (questions.total, trial("dmem"), Verdict.BETTER),
        (questions.total, trial("dmem", gives=81920), Verdict.WORSE),
        (questions.late, trial("misc", gives=SHARE_MIB + 512), Verdict.ASSUMED),
        (questions.late, trial("misc"), Verdict.BETTER),
        (questions.late, trial("dmem", gives=SHARE_MIB + 512), Verdict.WORSE),
        (questions.late, trial("dmem"), Verdict.ASSUMED),
        (questions.inherited, trial("misc", limit=1), Verdict.ASSUMED),
        (questions.inherited, trial("misc"), Verdict.BETTER),
        (questions.inherited, trial("dmem", limit=1), Verdict.WORSE),
        (questions.managed, trial("misc"), Verdict.BETTER),
        (questions.managed, trial("misc", gives=81920), Verdict.ASSUMED),
    ],
)
def test_each_answer_is_judged_by_what_the_agent_relies_on(question, made, expected):
    answer = question(made)
    assert answer.verdict is expected, answer


@pytest.mark.skipif(os.geteuid() != 0, reason="others have no capability to give up")
@pytest.mark.parametrize(("kept", "expected"), [("21", 1 << 21), ("None", 0)])
def test_the_process_with_few_rights_has_no_other(kept, expected):
    program = f"from bench.limits.few_rights import *; give_up_all_but({kept}); print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapEff", "CapPrm")} == {expected}
    assert int(fields["CapInh"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
