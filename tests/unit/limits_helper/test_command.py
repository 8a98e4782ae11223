"""`gpuagent memory-limits` as a process, with a simulated driver that limits memory by cgroup."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuagent import cli, limits_command
from gpuagent.host.limits_client import HelperGoneError, Limit, LimitDriverError, LimitsClient, Target
from gpuagent.simulation.simulator import inject
from standin.waiting import PATIENCE_S
from tests.cgroup_trees import CONTAINER, OTHER_POD, POD, CgroupTree

GIB = 1 << 30


class Process:
    """The command, and what it needs."""

    def __init__(self, folder: Path) -> None:
        self.tree = CgroupTree(folder / "cgroup")
        self.socket = folder / "run" / "limits.sock"
        self.faults = folder / "run" / "faults.sock"
        self.device = folder / "run" / "device.sock"
        self.log = folder / "log"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, box: str = "limits-misc", **env: str) -> "Process":
        command = [sys.executable, "-m", "gpuagent", "memory-limits", "--socket", str(self.socket)]
        command += ["--cgroup-root", str(self.tree.root), "--simulate", box]
        command += ["--simulate-socket", str(self.faults), "--simulate-device", str(self.device), *more]
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(command, stderr=log, env={**os.environ, **env})
        return self

    def until_it_answers(self) -> LimitsClient:
        client = LimitsClient(self.socket, deadline_s=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                client.describe()
                return client
            except HelperGoneError:
                assert self._running.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> float:
        """How long it takes to end."""
        began = time.monotonic()
        self._running.send_signal(number)
        self._running.wait(PATIENCE_S)
        return time.monotonic() - began

    @property
    def code(self) -> int | None:
        return self._running.poll()

    @property
    def pid(self) -> int:
        return self._running.pid

    def close(self) -> None:
        if self._running and self._running.poll() is None:
            self._running.kill()
            self._running.wait()


@pytest.fixture
def process(tmp_path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.close()


def check(process: Process) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuagent", "memory-limits", "--check", "--socket", str(process.socket)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backend", ["dmem", "misc"])
def test_limits_of_a_simulated_driver(process, backend):
    pod = process.tree.add_pod(POD)
    process.tree.add_container(pod)
    with closing(process.start(box=f"limits-{backend}").until_it_answers()) as client:
        description = client.describe()
        assert description.problem is None
        assert description.backend == backend
        assert description.pods_root == process.tree.pods_root
        assert len(description.gpus) >= 1
        gpu = next(iter(description.gpus))
        target = Target(gpu, POD)
        assert client.set(target, 8 * GIB) == Limit(8 * GIB, 0)
        leaf = Target(gpu, POD, CONTAINER)
        assert client.get(leaf).hard == {"misc": 8 * GIB, "dmem": None}[backend]
        assert client.set(leaf, 4 * GIB) == Limit(4 * GIB, 0)
        process.tree.add_pod(OTHER_POD)
        results = client.get_many([target, leaf, Target(gpu, OTHER_POD)])
        assert [limit.hard for limit in results.values()] == [8 * GIB, 4 * GIB, None]
        done = check(process)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"backend  {backend}" in done.stdout
        assert f"{gpu}  memory can be limited" in done.stdout
        assert process.end() < PATIENCE_S
        assert process.code == 0
        assert not process.socket.exists()
    assert f'"pod": "{POD}"' in process.log.read_text() or f"pod={POD}" in process.log.read_text()


def test_a_driver_that_is_upgraded(process):
    with closing(process.start(box="dgx-a100").until_it_answers()) as client:
        description = client.describe()
        assert "NVIDIA driver 580.95.05 has no memory limits: install driver 615" in description.problem
        assert set(description.gpus.values()) == {description.problem}
        inject(process.faults, {"fault": "limits", "backend": "dmem"})
        assert until(client, lambda description: not description.problem).backend == "dmem"
        inject(process.faults, {"fault": "limits", "backend": "none"})
        inject(process.faults, {"fault": "driver", "present": False})
        assert "modprobe nvidia" in until(client, lambda description: description.problem).problem
        inject(process.faults, {"fault": "driver", "present": True})
        assert "no cgroup v2" in until(client, lambda description: description.gpus).problem


def until(client: LimitsClient, holds: Callable):
    deadline = time.monotonic() + PATIENCE_S
    while not holds(description := client.describe()):
        assert time.monotonic() < deadline, description
        time.sleep(0.05)
    return description


def test_a_check_without_a_helper(process):
    done = check(process)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpuagent: no helper for memory limits answers at ")


def test_a_driver_call_that_hangs(process):
    process.tree.add_pod(POD)
    process.start()
    with closing(process.until_it_answers()) as client:
        gpu = next(iter(client.describe().gpus))
        inject(process.faults, {"fault": "hang", "function": "nvmlDeviceSetMemoryLimits"})
        with pytest.raises(LimitDriverError, match="nvmlDeviceSetMemoryLimits_v1 on GPU 0 has not returned"):
            client.set(Target(gpu, POD), GIB)
        assert "has not returned" in client.describe().problem
        done = check(process)
        assert done.returncode == 0, "the process is alive, and a restart would not help"
        assert "problem  the NVIDIA driver does not answer" in done.stdout
        process.end()
        assert process.code == 0


def test_a_killed_helper_is_replaced_and_the_client_goes_on(process):
    process.tree.add_pod(POD)
    with closing(process.start().until_it_answers()) as client:
        process.end(signal.SIGKILL)
        with pytest.raises(HelperGoneError):
            client.describe()
        process.start().until_it_answers().close()
        assert client.describe().pods_root == process.tree.pods_root


def test_two_helpers_at_one_socket(process, tmp_path):
    process.start().until_it_answers().close()
    second = subprocess.run(
        [sys.executable, "-m", "gpuagent", "memory-limits", "--socket", str(process.socket), "--simulate", "dgx-a100"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert "another helper listens there" in second.stderr


def test_the_own_pod_decides_between_two_trees(process):
    CgroupTree(process.tree.root, above="kubelet")
    process.tree.add_pod(POD)
    process.start(POD_UID=POD)
    with closing(process.until_it_answers()) as client:
        assert client.describe().pods_root == process.tree.pods_root


def test_log_lines_as_the_agents(process):
    process.start(GPUAGENT_LOG_FORMAT="json").until_it_answers().close()
    process.end()
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert {"Serving memory limits", "Tried whether memory can be limited"} <= {line["event"] for line in lines}


def test_processes_allocate_at_the_device(process):
    process.start().until_it_answers().close()
    with socket.socket(socket.AF_UNIX) as device:
        device.settimeout(PATIENCE_S)
        device.connect(str(process.device))
        device.sendall(b'{"info": true}\n')
        assert json.loads(device.recv(4096))["ok"] in (True, False)


def test_the_command_alone_has_the_help_of_the_whole_program(capsys):
    helps = []
    for run in (lambda: cli.run(["memory-limits", "--help"]), lambda: limits_command.run(["--help"])):
        with pytest.raises(SystemExit):
            run()
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1] != ""


@pytest.mark.parametrize("flag", ["--simulate-socket", "--simulate-device"])
def test_flags_of_the_simulation_alone(flag, tmp_path, capsys):
    assert cli.run(["memory-limits", "--socket", str(tmp_path / "s"), flag, str(tmp_path / "x")]) == 2
    assert "with --simulate only" in capsys.readouterr().err


def test_neither_grpc_nor_kubernetes_is_loaded(process):
    process.start().until_it_answers().close()
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "grpc" not in maps
    code = (
        "import sys, gpuagent.cli, gpuagent.limits_command\n"
        "print([name for name in ('grpc', 'google.protobuf', 'kubernetes', 'urllib3', 'prometheus_client', 'yaml') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
