"""The mps driver against the stand-in daemon: how its daemon starts and ends, and what containers get."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.sharing.grant import Mount
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import Control, HangsError
from gpuagent.isolation.interface import Isolation, IsolationError, Need, Starting
from gpuagent.isolation.mps import driver
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.isolation.mps.driver import MpsIsolation
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import OWNER, alive, gpu, memory, running, wait_for

P4 = gpu(1, model="Tesla P4", compute_capability=(6, 1))
SERVES = Need(gpus=(gpu(),), serves=True)
IN_USE = Need(gpus=(gpu(),), in_use=True)
NOTHING = Need(gpus=(gpu(),))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released at the begin of each round trip to a daemon."""
    begun, alive = threading.Semaphore(0), Control.alive

    def noted(control: Control, **options: Any) -> None:
        begun.release()
        alive(control, **options)

    monkeypatch.setattr(Control, "alive", noted)
    return begun


# -- how the daemon starts and ends --------------------------------------------------------------------------------


def test_it_is_an_isolation_driver(agent):
    driver: Isolation = agent().driver
    assert driver.name == "mps"


def test_nothing_is_started_before_it_is_needed(agent, host):
    one = agent().start()
    layer = one.next()
    assert (layer.driver, layer.installed) == ("mps", True)
    assert layer.problem is not None
    one.driver.desire(NOTHING)
    one.problem("not needed")
    assert not host.own.exists()


def test_the_daemon_starts_when_the_mode_asks_for_it(agent, host):
    layer = agent().start(SERVES).well()
    assert alive(host, host.pipes)
    assert layer.isolates == {Isolates.MEMORY, Isolates.COMPUTE}
    assert layer.modes == {Mode.CGPU, Mode.MPS, Mode.CORE_MEM}
    assert layer.max_sharers == 48
    assert layer.left_out == {}
    assert any("each client process" in caveat for caveat in layer.caveats)


def test_directories_let_other_users_in(agent, host):
    agent().start(SERVES).well()
    assert host.pipes.stat().st_mode & 0o777 == 0o755


def test_the_daemon_starts_for_containers_that_run_though_the_mode_is_another(agent, host):
    agent().start(IN_USE).well()
    assert alive(host, host.pipes)


def test_a_crash_is_reported_at_once_and_healed(agent, host):
    one = agent(every_s=3600.0).start(SERVES)  # only the death itself can wake it
    one.well()
    first = host.pid(host.pipes)
    host.kill(host.pipes)
    layer = one.next()
    assert f"no MPS control daemon runs at {host.pipes}: it died; it is started again" in (layer.problem or "")
    assert one.next().problem is None
    assert alive(host, host.pipes)
    assert host.pid(host.pipes) != first
    assert one.quiet()


def test_restarts_come_later_each_time(agent, host, asked):
    class Clock:
        now = 0.0

    clock = Clock()
    one = agent(first_retry_s=8.0, every_s=0.05, clock=lambda: clock.now).start(SERVES)
    one.well()
    for least_s in (6.0, 12.0):  # 8 s and 16 s, a quarter less at most
        host.kill(host.pipes)
        one.problem("it died")
        clock.now += least_s - 0.1
        time.sleep(0.2)
        assert one.quiet(), "not started before its time"
        clock.now += least_s
        one.well()
    clock.now += 60.0  # it lived long enough: the next pause is short again
    while asked.acquire(blocking=False):
        pass
    for _ in range(2):  # the first of them has ended, and with it the turn
        assert asked.acquire(timeout=PATIENCE_S)
    host.kill(host.pipes)
    one.problem("it died")
    clock.now += 10.0  # 8 s, a quarter more at most
    one.well()


def test_a_daemon_that_does_not_start_is_reported_with_its_reason_and_tried_again(agent, host):
    host.steer(host.pipes, refuse="no CUDA-capable device is detected")
    one = agent().start(SERVES)
    problem = one.problem("cannot be started")
    assert "-d failed: no CUDA-capable device is detected (exit code 1)" in problem
    host.steer(host.pipes)
    one.well()


def test_a_daemon_that_hangs_is_reported_and_not_killed(agent, host):
    one = agent(every_s=0.05)
    one.daemons.ask_s = 0.5
    one.start(SERVES).well()
    pid = host.pid(host.pipes)
    host.steer(host.pipes, hang=True)
    problem = one.problem("did not answer")
    assert f"end process {pid}" in problem
    host.steer(host.pipes)
    one.well()
    assert host.pid(host.pipes) == pid


def test_multi_user_mode_is_used_where_the_program_knows_it(agent, host):
    layer = agent().start(SERVES).well()
    assert not any("one user at a time" in caveat for caveat in layer.caveats)
    host.kill(host.pipes)
    host.steer(host.pipes, multi_user=False)
    layer = agent().start(SERVES).well()
    assert any("one user at a time" in caveat for caveat in layer.caveats)


def test_stop_leaves_the_daemon_and_the_next_agent_finds_it(agent, host):
    one = agent().start(SERVES)
    one.well()
    pid = host.pid(host.pipes)
    one.driver.stop()
    assert alive(host, host.pipes)
    two = agent().start(SERVES)
    two.well()
    assert host.pid(host.pipes) == pid
    assert two.daemon.is_ours


AGENT = """
import sys, threading
from pathlib import Path
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.driver import MpsIsolation
from gpuagent.isolation.mps.daemon import MpsDaemons
from gpuagent.isolation.mps.daemon_record import MpsRecord

control, own, state = sys.argv[1:]
gpu = Gpu(uuid="GPU-0a", index=0, minor=0, pci_bus_id="", model="", memory_mib=1024, compute_capability=(8, 6))
daemons = MpsDaemons(control, MpsRecord(Path(state)), own=Path(own), logs=Path(own).parent / "log", known=())
driver = MpsIsolation(daemons, None, unit=MemoryUnit())
driver.desire(Need(gpus=(gpu,), serves=True))
driver.start(lambda layer: layer.problem or print("works", flush=True))
threading.Event().wait()
"""


def test_the_daemon_outlives_an_agent_that_is_killed_with_its_whole_process_group(agent, host):
    arguments = [str(host.control), str(host.own), str(host.root / "state")]
    killed = subprocess.Popen(
        [sys.executable, "-c", AGENT, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with killed:
        assert killed.stdout.readline() == "works\n"
        pid = host.pid(host.pipes)
        os.killpg(killed.pid, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    two = agent().start(SERVES)
    two.well()
    assert host.pid(host.pipes) == pid
    assert two.daemon.is_ours, "noted by the one that was killed"


def test_nothing_is_reported_after_stop(agent, host):
    one = agent().start(SERVES)
    one.well()
    one.driver.stop()
    host.kill(host.pipes)
    one.driver.desire(NOTHING)
    assert not running()
    assert one.quiet()


def test_somebody_elses_daemon_is_adopted_and_never_stopped(agent, host):
    host.run(host.ack, "-d")
    one = agent().start(SERVES)
    one.well()
    assert not host.own.exists(), "the daemon for all GPUs serves them"
    assert not one.record.daemons
    assert one.driver.prepare(memory()).env["CUDA_MPS_PIPE_DIRECTORY"] == str(host.ack)
    one.driver.desire(NOTHING)
    one.problem("not needed")
    one.driver.desire(SERVES)
    one.well()
    assert "quit" not in host.log()


def test_the_owner_of_an_adopted_daemon_may_bring_it_back(agent, host):
    host.run(host.ack, "-d")
    one = agent(every_s=0.05, owner_s=600.0).start(SERVES)
    one.well()
    host.kill(host.ack)
    assert "its owner has 600 s to bring it back" in one.problem("it died")
    host.run(host.ack, "-d")
    one.well()
    assert not host.own.exists()


def test_an_adopted_daemon_that_stays_away_is_replaced(agent, host):
    host.run(host.ack, "-d")
    one = agent(every_s=0.05, owner_s=0.1).start(SERVES)
    one.well()
    host.kill(host.ack)
    one.problem("it died")
    one.well()
    assert alive(host, host.pipes)
    assert one.daemon.is_ours


def test_the_daemon_quits_when_nobody_needs_it_and_no_client_runs(agent, host):
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    host.steer(host.pipes, clients=[4711])
    one.driver.desire(NOTHING)
    one.problem("not needed")
    wait_for(lambda: host.log().count("Cmd:get_client_list") >= 2)
    assert alive(host, host.pipes)
    host.steer(host.pipes)
    wait_for(lambda: not alive(host, host.pipes))
    wait_for(lambda: not one.record.daemons)


def test_it_does_not_quit_while_containers_run(agent, host):
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    one.driver.desire(IN_USE)
    seen = host.log().count("Cmd:")
    wait_for(lambda: host.log().count("Cmd:") > seen + 3)
    assert alive(host, host.pipes)
    assert "quit" not in host.log()


def test_it_does_not_quit_before_its_time(agent, host):
    one = agent(every_s=0.05, release_s=600.0).start(SERVES)
    one.well()
    one.driver.stop()
    two = agent(every_s=0.05, release_s=600.0).start()  # an agent that does not know yet what runs
    two.problem("not needed")
    two.driver.desire(SERVES)
    two.well()
    assert "quit" not in host.log()


def test_a_daemon_that_somebody_else_started_in_our_place_is_not_stopped(agent, host):
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    one.driver.stop()
    host.kill(host.pipes)
    wait_for(lambda: host.run(host.pipes, "-d").returncode == 0)
    wait_for(lambda: host.pid(host.pipes) not in {None, one.record.daemons["GPU-0a"]})
    two = agent(every_s=0.05).start(NOTHING)
    wait_for(lambda: not two.record.daemons)
    assert alive(host, host.pipes)


def test_a_missing_program_is_reported_and_one_that_comes_late_is_used(agent, host):
    late = host.root / "late"
    one = agent(program=str(late), every_s=0.05).start(SERVES)
    layer = one.until(lambda layer: "install the driver's compute utilities" in (layer.problem or ""))
    assert not layer.installed
    with pytest.raises(IsolationError, match="was not found"):
        one.driver.prepare(memory())
    host.control.rename(late)
    assert one.well().installed
    late.rename(host.control)


def test_a_pipe_directory_that_is_too_long_is_reported(agent, host):
    one = agent(own=host.root / ("x" * 100))
    assert "choose a shorter one" in one.start(SERVES).problem("too long")


def test_a_pid_file_of_an_ended_process_does_not_keep_the_agent_busy(agent, host, asked, monkeypatch):
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    daemon = host.pid(host.pipes)
    named = host.root / "nvidia-cuda-mps-control"
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    ended = subprocess.Popen([named])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie still has its name
    awaited: list[int] = []
    pidfd_open = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: (awaited.append(pid), pidfd_open(pid))[1])
    noted = host.pipes / "nvidia-cuda-mps-control.pid"
    noted.write_text(str(ended.pid))
    wait_for(lambda: ended.pid in awaited)
    while asked.acquire(blocking=False):
        pass
    for _ in range(5):
        assert asked.acquire(timeout=PATIENCE_S)
    assert awaited.count(ended.pid) == 1, "its end would end every wait at once"
    ended.wait()
    noted.write_text(str(daemon))


# -- which GPUs ----------------------------------------------------------------------------------------------------


def test_gpus_before_volta_are_left_out(agent, host):
    one = agent().start(Need(gpus=(gpu(), P4, gpu(2, compute_capability=(7, 0))), serves=True))
    layer = one.well()
    assert list(layer.left_out) == [P4.uuid]
    assert "Tesla P4) has compute capability 6.1; MPS limits need 7.0" in layer.left_out[P4.uuid]
    environ = Path(f"/proc/{host.pid(host.pipes)}/environ").read_text().split("\0")
    assert "CUDA_VISIBLE_DEVICES=GPU-0a" in environ, "the server must not see the old one"
    assert not host.of_gpu(P4.uuid).exists()


@pytest.mark.parametrize("odd", [gpu(0, mig=True), gpu(0, compute_capability=None)])
def test_gpus_that_cannot_be_judged_are_left_out(agent, odd):
    one = agent().start(Need(gpus=(odd,), serves=True))
    layer = one.until(lambda layer: "none of the node's GPUs" in (layer.problem or ""))
    assert list(layer.left_out) == [odd.uuid]
    with pytest.raises(IsolationError):
        one.driver.prepare(memory(odd))


# -- what a container gets -----------------------------------------------------------------------------------------


def test_a_share_of_one_gpu(agent, host):
    given = agent().driver.prepare(memory(units=4))
    assert given.env == {
        "A": "b",
        "CUDA_MPS_PIPE_DIRECTORY": str(host.pipes),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={23028 * 4 // 22}M",
    }
    assert given.mounts == (Mount(str(host.pipes), str(host.pipes), read_only=False),)


def test_a_share_of_two_gpus_is_refused(agent):
    with pytest.raises(IsolationError, match="ask for one GPU per container"):
        agent().driver.prepare(memory(gpu(3), gpu(5, memory_mib=15360), units=2))


@pytest.mark.parametrize(
    ("mib", "units", "cap"), [(1024, 22, 23028), (256, 1, 23028 // 89), (3000, 5, 23028 * 5 // 7), (1, 100, 100)]
)
def test_odd_units_are_rounded_down_to_whole_mib(agent, mib, units, cap):
    given = agent(unit=MemoryUnit(mib)).driver.prepare(memory(units=units))
    assert given.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={cap}M"


def test_memory_and_compute_of_one_container(agent):
    driver = agent().driver
    of_memory = driver.prepare(memory(kind=Kind.MEMORY_CORE_MEM, env={}))
    of_compute = driver.prepare(memory(kind=Kind.CORE_CORE_MEM, units=30, env={}))
    assert of_compute.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert of_compute.mounts == of_memory.mounts, "what both answers say kubelet takes once"
    same = of_memory.env.keys() & of_compute.env.keys()
    assert same == {"CUDA_MPS_PIPE_DIRECTORY"}
    assert all(of_memory.env[name] == of_compute.env[name] for name in same)


@pytest.mark.parametrize("kind", [Kind.MEMORY_MPS, Kind.CORE_CORE_MEM])
def test_prepare_is_repeatable(agent, kind):
    driver = agent().driver
    once = driver.prepare(memory(kind=kind))
    assert driver.prepare(memory(kind=kind)) == once
    assert driver.prepare(once) == once


def test_shared_memory_is_mounted_on_request_only(agent, host):
    given = agent(shm=host.root / "shm").driver.prepare(memory())
    assert given.mounts[1] == Mount(str(host.root / "shm"), "/dev/shm", read_only=False)


def test_an_old_gpu_is_refused(agent):
    with pytest.raises(IsolationError, match="use mode share or default"):
        agent().driver.prepare(memory(P4))


# -- just before a container starts --------------------------------------------------------------------------------


def test_a_daemon_of_another_user_is_not_adopted_and_the_problem_says_so(agent, host, monkeypatch):
    host.run(host.ack, "-d")
    foreign = f"the MPS control daemon at {host.ack} is not used"
    monkeypatch.setattr(
        "gpuagent.isolation.mps.daemon.untrusted", lambda pipe_dir: foreign if pipe_dir == host.ack else None
    )
    one = agent()
    layer = one.start(SERVES).well()
    assert alive(host, host.pipes), "the agent starts its own"
    assert layer.untrusted == (foreign,)
    assert host.log().count("Starting control daemon") == 2


def test_a_daemon_that_another_user_takes_over_is_left(agent, host, monkeypatch):
    host.run(host.ack, "-d")
    one = agent(owner_s=0.0)
    one.start(SERVES).well()
    assert one.driver.prepare(memory()).env["CUDA_MPS_PIPE_DIRECTORY"] == str(host.ack)
    foreign = f"the MPS control daemon at {host.ack} is not used"
    monkeypatch.setattr(
        "gpuagent.isolation.mps.daemon.untrusted", lambda pipe_dir: foreign if pipe_dir == host.ack else None
    )
    with pytest.raises(IsolationError, match="is not used; the agent brings it back"):
        one.driver.verify(one.driver.prepare(memory()), OWNER)
    wait_for(lambda: alive(host, host.pipes))


def test_verify_asks_the_daemon(agent, host, monkeypatch):
    one = agent()
    with pytest.raises(IsolationError, match=r"default/train\[main\] has to wait for MPS: no MPS control daemon runs"):
        one.driver.verify(memory(), OWNER)
    one.start(SERVES).well()
    one.driver.verify(one.driver.prepare(memory()), OWNER)
    one.daemons.ask_s = 1.0
    host.steer(host.pipes, hang=True)
    monkeypatch.setattr(driver, "VERIFY_S", 1.0)
    with pytest.raises(IsolationError, match="did not answer"):
        one.driver.verify(memory(), Starting())
    host.steer(host.pipes)


def test_verify_of_a_dead_daemon_has_it_looked_at(agent, host, monkeypatch):
    one = agent(every_s=60.0)  # nobody else looks meanwhile
    monkeypatch.setattr("gpuagent.isolation.mps.daemon_watch.daemon_pid", lambda _: None)  # its death is not seen
    one.start(SERVES).well()
    host.kill(host.pipes)
    wait_for(lambda: not alive(host, host.pipes))
    with pytest.raises(IsolationError, match="brings it back"):
        one.driver.verify(memory(), OWNER)
    one.problem("it died")
    one.well()
    one.driver.verify(memory(), OWNER)


def test_verify_refuses_a_container_that_was_given_another_daemon(agent):
    one = agent().start(SERVES)
    one.well()
    with pytest.raises(IsolationError, match=r"given MPS at /elsewhere.*delete the pod"):
        one.driver.verify(memory(env={"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}), OWNER)


# -- compute mode --------------------------------------------------------------------------------------------------


def test_a_gpu_becomes_exclusive_with_its_first_container_only(agent, host):
    host.modes(GPU_0a="Default", GPU_1a="Default")
    one = agent(exclusive=True).start(Need(gpus=(gpu(), gpu(1)), serves=True))
    one.well()
    assert host.mode("GPU-0a") == "Default", "a container of another mode may still compute there"
    one.driver.verify(memory(gpu()), OWNER)
    assert (host.mode("GPU-0a"), host.mode("GPU-1a")) == ("Exclusive_Process", "Default")


def test_the_compute_mode_is_given_back_also_by_the_next_agent_and_not_under_a_program(agent, host):
    host.modes(GPU_0a="Default", GPU_1a="Prohibited")
    need = Need(gpus=(gpu(), gpu(1)), serves=True)
    one = agent(exclusive=True).start(need)
    one.well()
    one.driver.verify(memory(gpu()), OWNER)
    one.driver.verify(memory(gpu(1)), OWNER)
    one.driver.stop()
    server = ["GPU-0a", "/usr/bin/nvidia-cuda-mps-server"]
    host.write_smi({**host.read_smi(), "apps": [["GPU-1a", "python"], server]})
    two = agent(exclusive=True, every_s=0.05).start(Need(gpus=need.gpus))
    wait_for(lambda: host.mode("GPU-0a") == "Default")
    assert host.mode("GPU-1a") == "Exclusive_Process"
    host.write_smi({**host.read_smi(), "apps": [server]})
    wait_for(lambda: host.mode("GPU-1a") == "Prohibited")
    wait_for(lambda: two.record.modes == {})


def test_a_gpu_that_a_container_holds_stays_exclusive(agent, host):
    host.modes(GPU_0a="Default", GPU_1a="Default")
    gpus = (gpu(), gpu(1))
    one = agent(exclusive=True, every_s=0.05).start(Need(gpus=gpus, serves=True))
    one.well()
    for each in gpus:
        one.driver.verify(memory(each), OWNER)
    one.driver.desire(Need(gpus=gpus, in_use=True))  # by whom is not known yet
    one.driver.desire(Need(gpus=gpus, in_use=True, held=frozenset({"GPU-0a"})))
    wait_for(lambda: host.mode("GPU-1a") == "Default")
    assert host.mode("GPU-0a") == "Exclusive_Process"
    one.driver.desire(NOTHING)
    wait_for(lambda: host.mode("GPU-0a") == "Default")


def test_a_compute_mode_that_was_there_before_or_was_changed_since_is_left_alone(agent, host):
    host.modes(GPU_0a="Exclusive_Process", GPU_1a="Default")
    one = agent(exclusive=True, every_s=0.05).start(Need(gpus=(gpu(), gpu(1)), serves=True))
    one.well()
    one.driver.verify(memory(gpu()), OWNER)
    one.driver.verify(memory(gpu(1)), OWNER)
    host.modes(GPU_0a="Exclusive_Process", GPU_1a="Prohibited")
    one.driver.desire(NOTHING)
    wait_for(lambda: one.record.modes == {})
    assert (host.mode("GPU-0a"), host.mode("GPU-1a")) == ("Exclusive_Process", "Prohibited")


def test_a_gpu_that_cannot_be_set_is_left_out_until_it_can(agent, host):
    host.write_smi({"modes": {"GPU-0a": "Default"}, "refuse": "Insufficient Permissions"})
    one = agent(exclusive=True, every_s=0.05).start(SERVES)
    one.well()
    with pytest.raises(IsolationError, match=r"Insufficient Permissions; make it work for root"):
        one.driver.verify(memory(), OWNER)
    layer = one.until(lambda layer: "cannot be made exclusive to MPS" in layer.left_out.get("GPU-0a", ""))
    assert layer.problem is None, "the others go on"
    host.modes(GPU_0a="Default")
    one.until(lambda layer: not layer.left_out)
    assert host.mode("GPU-0a") == "Exclusive_Process"


def test_the_compute_mode_under_an_adopted_daemon_is_its_owners(agent, host):
    host.modes(GPU_0a="Default")
    host.run(host.ack, "-d")
    one = agent(exclusive=True).start(SERVES)
    one.well()
    one.driver.verify(memory(), OWNER)
    assert host.mode("GPU-0a") == "Default"


# -- the record ----------------------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_read_is_reported_and_nothing_is_ours(tmp_path, caplog):
    (tmp_path / "mps.json").write_text("[]")
    record = MpsRecord(tmp_path)
    assert (record.daemons, record.modes) == ({}, {})
    assert "Failed to read the record of MPS" in caplog.text


def test_the_driver_as_the_agent_makes_it(host):
    driver = MpsIsolation.on_host(host.root / "state", unit=MemoryUnit(), control=str(host.control), pipe_dir=host.own)
    assert driver.prepare(memory()).mounts[0].host_path == str(host.pipes)
    driver.stop()


def test_desire_returns_at_once_while_the_thread_is_busy(agent, monkeypatch):
    one = agent().start(SERVES)
    one.well()
    asked, leave = threading.Event(), threading.Event()

    def hangs(*_: object, **__: object) -> str:
        asked.set()
        leave.wait(PATIENCE_S)
        raise HangsError("it did not answer")

    monkeypatch.setattr(Control, "ask", hangs)
    one.driver.desire(IN_USE)
    assert asked.wait(PATIENCE_S)
    for need in (SERVES, IN_USE, NOTHING, SERVES):
        one.driver.desire(need)
    assert one.quiet(), "the question still hangs"
    leave.set()
    one.problem("did not answer")
    monkeypatch.undo()


# -- a daemon that is somebody else's to run ------------------------------------------------------------------------


def test_no_daemon_is_started_where_it_is_somebody_elses_to_run(agent, host):
    one = agent(starts=False, every_s=0.05).start(SERVES)
    problem = one.problem("no MPS control daemon answers")
    assert str(host.ack) in problem
    assert "mps-control" in problem
    host.run(host.ack, "-d")
    one.well()
    assert not host.own.exists()


def test_a_daemon_of_somebody_elses_that_died_is_waited_for(agent, host):
    host.run(host.ack, "-d")
    one = agent(starts=False, every_s=0.05, owner_s=0.0).start(SERVES)
    one.well()
    host.kill(host.ack)
    one.problem("who runs it has to bring it back")
    one.problem("no MPS control daemon answers")
    host.run(host.ack, "-d")
    one.well()
    assert not host.own.exists()
