"""A server that hangs after a client was killed: it is seen, prevented and cured, with the stand-in of NVIDIA's daemon."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.host.cuda_probe import Probed, Verdict
from gpuagent.host.mps_client import Control, MpsError
from gpuagent.isolation.interface import IsolationError, Need, Starting
from gpuagent.isolation.mps.clients.client_state import WedgePolicy
from gpuagent.isolation.mps.clients.client_watch import ClientWatch, GpuPods
from gpuagent.isolation.mps.daemon_state import Phase
from standin.mps import cuda
from standin.mps.control import Daemon
from standin.mps.cuda import CudaClient
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import alive, gpu, memory, wait_for

POD = "0a-uid"
SHARES = PodShares({"GPU-0a": 1 << 30}, {"main": {"GPU-0a": 1 << 30}})
GPUS = (gpu(0), gpu(1))
SERVES = Need(gpus=GPUS, serves=True)
USED = replace(
    SERVES, in_use=True, held=frozenset({"GPU-0a"}), pods={POD: SHARES}, pod_names={POD: "ml/train"}, knows_pods=True
)
PROMPT = WedgePolicy(again_s=0.1, quiet_s=0.0)


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    """A program that hangs is not waited for as long as a real one."""
    monkeypatch.setattr("gpuagent.host.cuda_probe.DEADLINE_S", 2.0)
    monkeypatch.setattr("gpuagent.host.cuda_probe.CudaProbe.__init__.__kwdefaults__", {"deadline_s": 2.0})


def program(host, *, uuid: str = "GPU-0a") -> subprocess.Popen[str]:
    """A program with work on the GPU."""
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(host.of_gpu(uuid))}
    started = subprocess.Popen(
        [sys.executable, "-S", "-E", cuda.__file__, "work"], env=env, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout.readline() == "cuDevicePrimaryCtxRetain 0\n"
    return started


def killed(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


def test_a_kill_wedges_the_server_and_the_daemon_still_answers(host):
    """What `alive` alone would never see."""
    host.run(host.pipes, "-d")
    killed(program(host))
    Control(host.control, host.pipes, deadline_s=PATIENCE_S).alive()
    client = CudaClient(host.pipes, patience_s=0.3)
    client.end()
    assert client.answer == "hangs"


def test_a_wedged_server_is_seen_and_its_gpu_takes_no_pods_until_the_neighbors_have_ended(agent, host):
    one = agent(every_s=0.05, wedges=PROMPT).start(USED)
    one.well()
    given = one.driver.prepare(memory())
    one.driver.verify(given, Starting())
    neighbor, victim = program(host), program(host)
    wait_for(lambda: str(victim.pid) in host.run(host.pipes, asked="ps\n").stdout)
    seen = host.log().count("get_client_list")
    wait_for(lambda: host.log().count("get_client_list") > seen + 1)
    first = host.pid(host.pipes)
    killed(victim)
    layer = one.until(lambda layer: "MPS hangs on GPU 0" in layer.left_out.get("GPU-0a", ""))
    assert list(layer.left_out) == ["GPU-0a"], "the other GPU goes on"
    assert "pods ml/train must end" in layer.left_out["GPU-0a"]
    with pytest.raises(IsolationError, match="has to wait: MPS hangs on GPU 0"):
        one.driver.verify(given, Starting())
    one.driver.verify(one.driver.prepare(memory(gpu(1))), Starting())
    assert host.pid(host.pipes) == first, "no daemon is ended under its clients"
    killed(neighbor)
    one.until(lambda layer: not layer.left_out)
    assert host.pid(host.pipes) != first
    one.driver.verify(given, Starting())


def test_a_wedged_server_is_not_restarted_while_a_program_may_be_connecting(agent, host):
    class Clock:
        now = 0.0

    clock = Clock()
    patient = WedgePolicy(again_s=1000.0, quiet_s=30.0)
    one = agent(every_s=0.05, wedges=patient, clock=lambda: clock.now).start(USED)
    one.well()
    clock.now = 100.0
    one.driver.verify(one.driver.prepare(memory()), Starting())
    first = host.pid(host.pipes)
    client = CudaClient(host.pipes, pid=4711, patience_s=PATIENCE_S)
    client.work()
    seen = host.log().count("get_client_list")
    wait_for(lambda: host.log().count("get_client_list") > seen + 1)
    clock.now = 129.0
    client.end()
    one.until(lambda layer: "is about to be started again" in layer.left_out.get("GPU-0a", ""))
    seen = host.log().count("get_client_list")
    wait_for(lambda: host.log().count("get_client_list") > seen + 2)
    assert host.pid(host.pipes) == first
    clock.now = 130.0
    one.until(lambda layer: "so its daemon was ended" in layer.left_out.get("GPU-0a", ""))
    clock.now = 140.0
    one.until(lambda layer: not layer.left_out)
    assert host.pid(host.pipes) != first


def test_before_a_start_the_server_is_tried(agent, host):
    one = agent(every_s=3600.0, wedges=PROMPT).start(SERVES)
    one.well()
    host.steer(host.pipes, wedged=True)
    with pytest.raises(IsolationError, match="has to wait: MPS hangs on GPU 0"):
        one.driver.verify(one.driver.prepare(memory()), Starting())


def test_where_the_agent_can_be_no_client_containers_start_nevertheless(agent, host):
    one = agent(every_s=0.05, wedges=PROMPT).start(USED)
    one.well()
    first = host.pid(host.pipes)
    host.steer(host.pipes, wedged=True)  # also of the daemon that the agent starts in its place
    with pytest.raises(IsolationError, match="MPS hangs on GPU 0"):
        one.driver.verify(one.driver.prepare(memory()), Starting())
    one.until(lambda layer: not layer.left_out and host.pid(host.pipes) not in {None, first})
    one.driver.verify(one.driver.prepare(memory()), Starting())
    layer = one.until(lambda layer: any("also from a new daemon" in caveat for caveat in layer.caveats))
    assert layer.left_out == {}
    one.driver.verify(one.driver.prepare(memory()), Starting())


def test_a_fatal_fault_takes_the_amounts_of_its_gpu(agent, host):
    one = agent(every_s=0.05, wedges=PROMPT).start(USED)
    one.well()
    client = CudaClient(host.pipes, pid=4711, patience_s=PATIENCE_S)
    host.steer(host.pipes, fault="GPU-0a")
    layer = one.until(lambda layer: "after a fatal fault" in layer.left_out.get("GPU-0a", ""))
    assert "pods ml/train must end" in layer.left_out["GPU-0a"]
    host.steer(host.pipes)
    client.end()
    one.until(lambda layer: not layer.left_out)


def test_a_daemon_that_hangs_is_killed_under_its_clients_only_if_the_operator_says_so(agent, host):
    one = agent(every_s=0.05, wedges=replace(PROMPT, kill_s=0.0)).start(USED)
    one.well()
    first = host.pid(host.pipes)
    client = CudaClient(host.pipes, pid=4711, patience_s=PATIENCE_S)
    other = CudaClient(host.pipes, pid=4712, patience_s=PATIENCE_S)
    other.work()
    seen = host.log().count("get_client_list")
    wait_for(lambda: host.log().count("get_client_list") > seen + 1)
    other.end()
    wait_for(lambda: host.pid(host.pipes) not in {None, first} and alive(host, host.pipes))
    client.end()


def test_a_daemon_of_mps_control_is_asked_to_quit_and_never_killed(agent, host):
    host.run(host.pipes, "-d")
    host.run(host.of_gpu("GPU-1a"), "-d")
    (host.pipes / "restarted-by-mps-control").touch()
    one = agent(every_s=0.05, wedges=PROMPT, starts=False).start(USED)
    one.well()
    host.steer(host.pipes, wedged=True)
    with suppress(IsolationError):
        one.driver.verify(one.driver.prepare(memory()), Starting())
    one.until(lambda layer: "no MPS control daemon answers" in layer.left_out.get("GPU-0a", ""))
    assert not alive(host, host.pipes)
    host.steer(host.pipes)
    host.run(host.pipes, "-d")
    one.until(lambda layer: not layer.left_out)


def test_another_programs_daemon_is_left_alone(agent, host):
    host.run(host.pipes, "-d")
    host.run(host.of_gpu("GPU-1a"), "-d")
    one = agent(every_s=0.05, wedges=PROMPT, starts=False).start(USED)
    one.well()
    first = host.pid(host.pipes)
    host.steer(host.pipes, wedged=True)
    with suppress(IsolationError):
        one.driver.verify(one.driver.prepare(memory()), Starting())
    one.until(lambda layer: "end its daemon" in layer.left_out.get("GPU-0a", ""))
    assert host.pid(host.pipes) == first
    host.steer(host.pipes)
    one.until(lambda layer: not layer.left_out)


# -- prevented -----------------------------------------------------------------------------------------------------


def test_the_clients_of_a_deleted_pod_are_ended_before_kubelet_kills_them(agent, host):
    clients: dict[int, str] = {}
    one = agent(every_s=3600.0, wedges=PROMPT, pod_of=clients.get, wall=lambda: 1000.0).start(USED)
    one.well()
    victim, neighbor = program(host), program(host)
    clients.update({victim.pid: POD, neighbor.pid: "another"})
    one.driver.desire(replace(USED, ending={POD: 1003.0}))
    assert victim.wait(PATIENCE_S) == 0, "the daemon has ended its connection"
    assert neighbor.poll() is None
    client = CudaClient(host.pipes, patience_s=PATIENCE_S)
    client.end()
    assert client.answer == "served"
    killed(neighbor)
    victim.stdout.close()


class InProcess:
    """The stand-in's daemon without processes and sockets' files: `Control` for many deletions."""

    def __init__(self, host) -> None:
        self.daemon = Daemon(host.pipes, host.logs)
        host.pipes.mkdir(parents=True)
        host.logs.mkdir()

    def ask(self, *words: str) -> str:
        return self.daemon.answer(list(words), {})

    def servers(self) -> tuple[int, ...]:
        return tuple(map(int, self.ask("get_server_list").split()))

    def clients_of(self, server: int) -> tuple[int, ...]:
        return tuple(map(int, self.ask("get_client_list", str(server)).split()))

    def status(self, server: int) -> str:
        return self.ask("get_server_status", str(server))

    def terminate(self, server: int, client: int, *, deadline_s: float) -> None:
        answer = self.ask("terminate_client", str(server), str(client))
        if answer:
            raise MpsError(answer)

    def connect(self, pid: int):
        """A client with work; call the result to end it as a kill does."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        thread = threading.Thread(target=self.daemon.serve_client, args=(pid, theirs), daemon=True)
        thread.start()
        assert ours.recv(64) == b"served"
        ours.send(b"work")
        assert ours.recv(64) == b"served"

        def kill() -> None:
            ours.close()
            thread.join(PATIENCE_S)
            theirs.close()

        return kill


@pytest.mark.parametrize("drains", [True, False])
def test_200_deletions_wedge_no_server_that_is_drained(host, monkeypatch, drains):
    control = InProcess(host)
    daemon = SimpleNamespace(control=control, pipe_dir=host.pipes, gpu="GPU-0a", may_end=False)
    watch = SimpleNamespace(daemon=daemon, state=SimpleNamespace(phase=Phase.SERVING, has_daemon=True))
    probe = SimpleNamespace(run=lambda *_: Probed(Verdict.SERVED, ""))
    now = [0.0]
    pod_of = {pid: f"pod-{pid}" for pid in range(1, 201)}.get if drains else None
    clients = ClientWatch(watch, probe, pod_of, PROMPT, lambda: now[0], lambda: now[0])
    wedged = 0
    for pid in range(1, 201):
        kill = control.connect(pid)
        kill_at = now[0] + 30.0
        pods = GpuPods("GPU 0", True, {f"pod-{pid}": "ml/train"}, {f"pod-{pid}": kill_at})
        clients.look(pods)
        assert pid in control.daemon.clients, "not ended before its time"
        now[0] = kill_at - 2.0
        clients.look(pods)
        kill()
        wedged += control.daemon.wedged
        control.daemon.wedged = False
        now[0] = kill_at
    assert wedged == (0 if drains else 200)
