"""The runs of `make test` in a row: what they count, what they name, and that the load ends with them."""

import os
import subprocess

import pytest

from bench import stability

GREEN = "....  [100%]\n3494 passed, 2 skipped in 180.12s (0:03:00)\n"
RED = (
    "..F.  [100%]\n=== short test summary info ===\n"
    "FAILED tests/unit/test_a.py::test_x[a b] - assert 1 == 2\nERROR tests/unit/test_b.py::test_y - OSError\n"
    "1 failed, 3492 passed, 1 error in 201.00s (0:03:21)\n"
)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A `make` that says this and ends so, once for each run."""
    monkeypatch.setattr(stability, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def outputs(*runs: tuple[str, int]) -> None:
        for number, (text, _) in enumerate(runs):
            (tmp_path / f"says-{number}").write_text(text)
        codes = " ".join(str(code) for _, code in runs)
        script = tmp_path / "make"
        script.write_text(
            f"#!/bin/sh\ncd {tmp_path}\nn=$(ls | grep -c ^ran)\ntouch ran-$n\ncat says-$n\n"
            f"set -- {codes}\nshift $n\nexit $1\n"
        )
        script.chmod(0o755)

    return outputs


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line[:3].strip().isdigit() and line.count(".") == 1]


def test_each_run_is_a_row_and_what_failed_is_named(make, capsys, tmp_path):
    make((GREEN, 0), (RED, 1))
    assert stability.main(["--runs", "2", "--half", "quiet"]) == 1
    out = capsys.readouterr().out
    assert [(row[1], row[3], row[4]) for row in rows(out)] == [("quiet", "3494", "0"), ("quiet", "3492", "2")]
    assert "     tests/unit/test_a.py::test_x[a b]\n     tests/unit/test_b.py::test_y\n" in out
    assert "1 of 2 runs without a failure" in out
    assert (tmp_path / "kept" / "run-2.log").read_text() == RED


def test_a_run_that_ends_before_its_tests_is_a_failure(make, capsys):
    make(("no such file\n", 2))
    assert stability.main(["--runs", "1", "--half", "quiet"]) == 1
    assert "make test ended with 2" in capsys.readouterr().out


def test_the_second_half_has_the_load_and_the_load_ends(make, capsys, tmp_path):
    make((GREEN, 0), (GREEN, 0))
    (tmp_path / "make").write_text(
        (tmp_path / "make")
        .read_text()
        .replace("cat says", "[ $n = 0 ] || until [ -s pid ]; do sleep 0.01; done\ncat says")
    )
    load = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600"
    assert stability.main(["--runs", "2", "--beside", load]) == 0
    assert [row[1] for row in rows(capsys.readouterr().out)] == ["quiet", "busy"]
    pid = (tmp_path / "pid").read_text().strip()
    assert subprocess.run(["ps", "-p", pid], capture_output=True, check=False).returncode == 1


def test_a_run_whose_load_does_not_run_is_a_failure(make, capsys, tmp_path):
    make((GREEN, 0))
    text = (tmp_path / "make").read_text()
    (tmp_path / "make").write_text(text.replace("cat says", "until [ -s tried-again ]; do sleep 0.01; done\ncat says"))
    load = f"cd {tmp_path}; [ -e tried ] && echo x > tried-again; echo x > tried; echo no such compiler; exit 3"
    assert stability.main(["--runs", "1", "--half", "busy", "--beside", load]) == 1
    assert "the load ended with 3" in capsys.readouterr().out
    assert "no such compiler" in (tmp_path / "kept" / "beside.log").read_text()


def test_without_go_a_load_has_to_be_named(monkeypatch, capsys):
    monkeypatch.setattr(stability.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit):
        stability.main(["--runs", "2"])
    assert "name another load with --beside" in capsys.readouterr().err
