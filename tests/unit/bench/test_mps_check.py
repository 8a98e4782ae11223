"""The check of MPS on a GPU: its findings where the stand-in does what was measured, and where it does not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from bench.mps import ceiling_checks, fault_checks, programs
from bench.mps.checked_driver import Check
from gpuagent.host.cuda_probe import CudaProbe
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps import ceiling_keeper, driver
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import PROBE, gpu

H200 = gpu(model="NVIDIA H200", memory_mib=143_771, compute_capability=(9, 0))


def program(env, *what, prefix=()):
    """A program that uses the stand-in."""
    command = [sys.executable, "-m", "tests.unit.bench.mps_program", *what]
    return subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def host(monkeypatch) -> Iterator[MpsHost]:
    monkeypatch.setattr(programs, "popen", program)
    monkeypatch.setattr(fault_checks, "CudaProbe", partial(CudaProbe, PROBE))
    # The machine may be busy.
    monkeypatch.setattr(ceiling_keeper, "START_S", PATIENCE_S)
    monkeypatch.setattr(driver, "VERIFY_S", PATIENCE_S)
    with MpsHost() as host:
        monkeypatch.setenv("PATH", f"{host.control.parent}:{os.environ['PATH']}")
        yield host


@pytest.fixture
def check(host) -> Iterator[Check]:
    check = Check(H200, host.root)
    check.driver.desire(Need(gpus=(H200,), serves=True))
    check.well()
    yield check
    check.driver.stop()


CHECKS: list[Callable[[Check], None]] = [
    ceiling_checks.managed_memory,
    ceiling_checks.ceiling_of_memory,
    ceiling_checks.ceiling_under_programs,
    ceiling_checks.ceiling_of_compute,
    ceiling_checks.ceiling_of_a_new_daemon,
    fault_checks.fault,
]


@pytest.mark.parametrize("find", CHECKS)
def test_nothing_is_wrong_where_mps_does_what_was_measured(check, capsys, find):
    find(check)
    text = capsys.readouterr().out
    assert check.wrong == 0, text
    assert "ok    " in text


def test_a_program_that_voids_every_limit_is_no_fault_of_the_check(check, capsys):
    ceiling_checks.ceiling_of_memory(check)
    assert "note  ceiling of 4107 MiB: a program that names a GPU which is not there (9=1G) gets 16384 MiB" in (
        capsys.readouterr().out
    )


def test_a_daemon_that_takes_no_ceiling_is_wrong(host, check, monkeypatch, capsys):
    monkeypatch.setattr("bench.mps.checked_driver.PATIENCE_S", 1.0)
    host.steer(check.daemon.pipe_dir, limits="stuck")
    ceiling_checks.ceiling_of_memory(check)
    text = capsys.readouterr().out
    assert "WRONG the ceiling was not set" in text
    assert "WRONG ceiling of 4107 MiB: a program that clears its cap gets 16384 MiB" in text
