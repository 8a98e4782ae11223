"""`gpuagent mps-control` as the first process of a container, with the stand-ins of NVIDIA's programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from gpuagent.host.mps_client import Control, MpsError
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S


@pytest.fixture
def host() -> Iterator[MpsHost]:
    with MpsHost() as host:
        yield host


@pytest.fixture
def control(host) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*more: str, program: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpuagent", "mps-control", "--program", program or str(host.control)]
        command += ["--pipe-dir", str(host.ack), "--log-dir", str(host.logs), *more]
        env = {**os.environ, "PATH": f"{host.root / 'bin'}:{os.environ['PATH']}"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=env, **pipes))
        return started[-1]

    yield start
    for one in started:
        one.terminate()
        one.communicate(timeout=PATIENCE_S)


def until_it_runs(process: subprocess.Popen[str]) -> str:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "control daemon runs" in line:
            return line
    pytest.fail("".join(lines))


def test_a_daemon_answers_until_quit(host, control):
    process = control()
    assert " -f -M, " in until_it_runs(process)
    asked = Control(host.control, host.ack, deadline_s=PATIENCE_S)
    asked.alive()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    with pytest.raises(MpsError):
        asked.alive()


def test_a_daemon_that_does_not_quit_is_killed(host, control):
    process = control()
    until_it_runs(process)
    host.steer(host.ack, hang=True)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "does not quit, it is killed" in out


def test_a_signal_ends_the_wait_for_a_daemon_that_does_not_answer(host, control):
    host.steer(host.ack, hang=True)
    process = control()
    end = time.monotonic() + PATIENCE_S
    while host.pid(host.ack) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "does not quit, it is killed" in out


def test_the_end_of_the_daemon_is_the_end_of_the_container(host, control):
    process = control()
    until_it_runs(process)
    host.kill(host.ack)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "ended by itself" in out


def test_a_program_without_multi_user_mode_runs_without_it(host, control):
    host.steer(host.ack, multi_user=False)
    assert " -f, " in until_it_runs(control())


def test_a_second_daemon_at_one_place_is_refused(host, control):
    until_it_runs(control())
    second = control()
    out, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "another MPS control daemon answers" in out


def test_no_program(control):
    process = control(program="no-such-program")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "no-such-program was not found" in out
    assert "NVIDIA_DRIVER_CAPABILITIES" in out


def test_compute_modes_are_exclusive_as_long_as_it_runs(host, control):
    host.modes(GPU_0a="Default", GPU_1a="Default")
    process = control("--exclusive")
    until_it_runs(process)
    assert set(host.read_smi()["modes"].values()) == {"Exclusive_Process"}
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    assert set(host.read_smi()["modes"].values()) == {"Default"}


def test_a_compute_mode_that_cannot_be_set_is_reported(host, control):
    host.write_smi({"modes": {"GPU-0a": "Default"}, "refuse": "Insufficient Permissions"})
    process = control("--exclusive")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "it takes a privileged container" in out


def test_a_program_that_fails_is_reported_without_a_traceback(host, control):
    process = control(program="/bin/false")
    output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 1
    assert output.startswith("gpuagent: 'get_default_active_thread_percentage' at ")
    assert "Traceback" not in output
