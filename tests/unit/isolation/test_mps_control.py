"""`gpuagent mps-control` as the first process of a container, with the stand-ins of NVIDIA's programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.host.mps_client import Control, MpsError, is_started_again
from gpuagent.simulation import boxes
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S

BOX = "pcie-4x-a10"
GPUS = [gpu.uuid for gpu in boxes.load(BOX).gpus]


def pipes(host: MpsHost, index: int = 0) -> Path:
    """Of a GPU's daemon."""
    return host.ack / key_of(GPUS[index])


@pytest.fixture
def control(host) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*more: str, program: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpuagent", "mps-control", "--program", program or str(host.control)]
        command += ["--pipe-dir", str(host.ack), "--log-dir", str(host.logs), "--simulate", BOX, *more]
        env = {**os.environ, "PATH": f"{host.root / 'bin'}:{os.environ['PATH']}"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=env, **pipes))
        return started[-1]

    yield start
    for one in started:
        one.terminate()
        one.communicate(timeout=PATIENCE_S)


def until_it_says(process: subprocess.Popen[str], words: str, times: int = 1) -> str:
    lines = []
    for line in process.stdout:
        lines.append(line)
        times -= words in line
        if not times:
            return line
    pytest.fail("".join(lines))


def until_it_runs(process: subprocess.Popen[str]) -> str:
    """Until the daemon of each GPU runs; the last one's line."""
    return until_it_says(process, "control daemon runs", len(GPUS))


def answers(host: MpsHost, index: int) -> bool:
    try:
        Control(host.control, pipes(host, index), deadline_s=PATIENCE_S).alive()
    except MpsError:
        return False
    return True


def wait_for(so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_daemon_for_each_gpu_answers_until_quit(host, control):
    process = control()
    assert " -f -M, " in until_it_runs(process)
    assert all(answers(host, index) for index in range(4))
    environ = Path(f"/proc/{host.pid(pipes(host, 2))}/environ").read_text().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={GPUS[2]}" in environ
    assert is_started_again(pipes(host, 2))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert not any(answers(host, index) for index in range(4))


def test_daemons_that_do_not_quit_are_killed(host, control):
    process = control()
    until_it_runs(process)
    host.steer(pipes(host), hang=True)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "GPU 0: the daemon does not quit, it is killed" in out
    assert "GPU 1: the daemon does not quit" not in out


def test_a_signal_ends_the_wait_for_daemons_that_do_not_answer(host, control):
    for index in range(4):
        host.steer(pipes(host, index), hang=True)
    process = control()
    wait_for(lambda: all(host.pid(pipes(host, index)) for index in range(4)))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out.count("does not quit, it is killed") == 4


def test_a_daemon_that_ends_is_started_again_and_the_others_go_on(host, control):
    process = control()
    until_it_runs(process)
    first, others = host.pid(pipes(host)), [host.pid(pipes(host, index)) for index in (1, 2, 3)]
    host.kill(pipes(host))
    until_it_says(process, "GPU 0: the daemon has ended by itself")
    until_it_says(process, "GPU 0: MPS control daemon runs")
    assert host.pid(pipes(host)) != first
    assert [host.pid(pipes(host, index)) for index in (1, 2, 3)] == others


def test_a_gpu_whose_daemon_does_not_start_leaves_the_others_theirs(host, control):
    host.steer(pipes(host, 1), refuse="no CUDA-capable device is detected")
    process = control()
    until_it_says(process, "control daemon runs", 3)
    host.steer(pipes(host, 1))
    until_it_says(process, "GPU 1: MPS control daemon runs")


def test_a_program_without_multi_user_mode_runs_without_it(host, control):
    for index in range(4):
        host.steer(pipes(host, index), multi_user=False)
    assert " -f, " in until_it_runs(control())


def test_a_second_daemon_at_one_place_is_refused(host, control):
    until_it_runs(control())
    second = control()
    out, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "another MPS control daemon answers" in out


def test_a_daemon_for_all_gpus_that_is_there_already_is_left(host, control):
    host.run(host.ack, "-d")
    process = control()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"another MPS control daemon answers at {host.ack}: leave it, or end it first" in out


def test_no_program(control):
    process = control(program="no-such-program")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "no-such-program was not found" in out
    assert "NVIDIA_DRIVER_CAPABILITIES" in out


def test_compute_modes_are_exclusive_as_long_as_it_runs(host, control):
    host.write_smi({"modes": dict.fromkeys([*GPUS, "GPU-other"], "Default")})
    process = control("--exclusive")
    until_it_runs(process)
    assert {host.mode(uuid) for uuid in GPUS} == {"Exclusive_Process"}
    assert host.mode("GPU-other") == "Default"
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    assert set(host.read_smi()["modes"].values()) == {"Default"}


def test_a_compute_mode_that_cannot_be_set_is_reported(host, control):
    host.write_smi({"modes": dict.fromkeys(GPUS, "Default"), "refuse": "Insufficient Permissions"})
    process = control("--exclusive")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "it takes a privileged container" in out


def test_a_program_that_is_none_is_reported(host, control):
    odd = host.root / "odd"
    odd.write_bytes(b"\x7fELF nonsense")
    odd.chmod(0o755)
    process = control(program=str(odd))
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Exec format error" in out
    assert "Traceback" not in out


def test_a_program_that_fails_is_reported_without_a_traceback(host, control):
    process = control(program="/bin/false")
    output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 1
    assert output.startswith("gpuagent: 'get_default_active_thread_percentage' at ")
    assert "Traceback" not in output
