"""A daemon for each GPU: what goes wrong on one GPU takes that GPU's amounts alone, and the change from one daemon."""

import json
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import Kind
from gpuagent.isolation.interface import CannotIsolateError, IsolationError, Need, Starting
from gpuagent.isolation.mps.daemon_record import NODE, MpsRecord
from standin.mps.cuda import CudaClient
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import MpsUnderTest, alive, gpu, memory, wait_for

GPUS = (gpu(0), gpu(1))
SERVES = Need(gpus=GPUS, serves=True)
IN_USE = Need(gpus=GPUS, serves=True, in_use=True, held=frozenset({"GPU-0a"}))
PIPES = "CUDA_MPS_PIPE_DIRECTORY"


def start_on(agent: MpsUnderTest, index: int) -> str:
    """What CUDA says to a program in a container that starts on this GPU."""
    given = agent.driver.prepare(memory(gpu(index)))
    agent.driver.verify(given, Starting())
    client = CudaClient(agent.host.root / given.env[PIPES], pid=1, patience_s=PATIENCE_S)
    client.end()
    return client.answer


def former_daemon(host: MpsHost) -> int:
    """The daemon for all GPUs that an earlier release of the agent started, with that release's record."""
    host.run(host.own, "-d")
    pid = host.pid(host.own)
    state = host.root / "state"
    state.mkdir()
    (state / "mps.json").write_text(json.dumps({"daemon": pid, "modes": {}}))
    return pid


# -- faults --------------------------------------------------------------------------------------------------------


def test_a_fault_on_one_gpu_keeps_no_program_from_another(agent, host):
    one = agent().start(SERVES)
    one.well()
    given = one.driver.prepare(memory(gpu(0))).env[PIPES]
    host.steer(host.root / given, fault="GPU-0a")
    with pytest.raises(IsolationError, match=r"has to wait: MPS hangs on GPU 0.* CUDA error 807"):
        start_on(one, 0)
    assert [start_on(one, 1) for _ in range(50)] == ["served"] * 50


def test_the_end_of_one_daemon_takes_the_amounts_of_its_gpu_alone(agent, host):
    one = agent(every_s=0.05, first_retry_s=0.2).start(SERVES)
    one.well()
    program = host.control.read_text()
    host.rewrite_control("#!/bin/sh\ntest $# = 0 && exec " + program.split("exec ")[1] + "echo out of order; exit 1\n")
    host.kill(host.of_gpu("GPU-0a"))
    layer = one.until(lambda layer: "out of order" in layer.left_out.get("GPU-0a", ""))
    assert list(layer.left_out) == ["GPU-0a"]
    assert layer.problem is None
    assert start_on(one, 1) == "served"
    host.rewrite_control(program)
    assert one.until(lambda layer: not layer.left_out).problem is None


def test_a_daemon_that_hangs_delays_no_other_gpu(agent, host):
    one = agent(every_s=0.05)
    one.start(SERVES).well()
    host.steer(host.of_gpu("GPU-0a"), hang=True)  # an answer may take as long as a test
    wait_for(lambda: "hang" in (host.of_gpu("GPU-0a") / "standin.json").read_text())
    first = host.pid(host.of_gpu("GPU-1a"))
    host.kill(host.of_gpu("GPU-1a"))
    wait_for(lambda: alive(host, host.of_gpu("GPU-1a")) and host.pid(host.of_gpu("GPU-1a")) != first)
    host.steer(host.of_gpu("GPU-0a"))


def test_what_no_daemon_can_do_is_a_problem_of_the_node(agent, host):
    host.steer(host.of_gpu("GPU-0a"), refuse="no CUDA-capable device is detected")
    host.steer(host.of_gpu("GPU-1a"), refuse="no CUDA-capable device is detected")
    layer = agent().start(SERVES).until(lambda layer: "cannot be started" in (layer.problem or ""))
    assert layer.left_out == {}


def test_the_amounts_of_all_gpus_appear_together(agent):
    one = agent().start(SERVES)
    assert one.well().left_out == {}


def test_each_daemon_sees_its_own_gpu(agent, host):
    agent().start(SERVES).well()
    for uuid in ("GPU-0a", "GPU-1a"):
        environ = Path(f"/proc/{host.pid(host.of_gpu(uuid))}/environ").read_text().split("\0")
        assert f"CUDA_VISIBLE_DEVICES={uuid}" in environ


def test_compute_of_several_gpus_is_refused_because_a_program_reaches_one_daemon(agent):
    with pytest.raises(CannotIsolateError, match="a program reaches one daemon: ask for one GPU per container"):
        agent().driver.prepare(memory(*GPUS, kind=Kind.CORE_CORE_MEM, units=30))


def test_the_daemon_of_a_gpu_that_can_no_longer_be_shared_is_ended(agent, host):
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    one.driver.desire(Need(gpus=(gpu(0), gpu(1, mig=True)), serves=True))
    wait_for(lambda: not alive(host, host.of_gpu("GPU-1a")))
    assert alive(host, host.of_gpu("GPU-0a"))


# -- another program's daemon for all GPUs --------------------------------------------------------------------------


def test_a_daemon_for_all_gpus_is_named_as_a_caveat(agent, host):
    host.run(host.ack, "-d")
    layer = agent().start(SERVES).well()
    assert any(f"The MPS daemon at {host.ack} serves all GPUs" in caveat for caveat in layer.caveats)
    host.kill(host.ack)


def test_a_daemon_of_protocol_3_is_a_problem_until_it_is_ended(agent, host):
    """Root's daemons are in /run/nvidia-mps from driver 615 on, which is one of the known directories."""
    host.run(host.ack, "-d")
    host.steer(host.ack, protocol=3)
    one = agent(every_s=0.05, owner_s=0.1).start(SERVES)
    assert "is not adopted. End it and the agent starts its own" in one.problem("speaks protocol 3")
    with pytest.raises(IsolationError, match="speaks protocol 3"):
        one.driver.verify(memory(), Starting())
    assert not host.own.exists(), "a second daemon would get no GPU"
    host.kill(host.ack)
    one.well()
    assert start_on(one, 0) == "served"


def test_a_fault_under_a_daemon_for_all_gpus_keeps_programs_from_every_gpu(agent, host):
    host.run(host.ack, "-d")
    one = agent().start(SERVES)
    one.well()
    host.steer(host.ack, fault="GPU-0a")
    assert [start_on(one, index) for index in (0, 1)] == ["error 807", "error 807"]


def test_daemons_of_gpus_are_found_again_and_no_other_is_adopted(agent, host):
    one = agent().start(SERVES)
    one.well()
    one.driver.stop()
    host.run(host.ack, "-d")
    two = agent().start(SERVES)
    two.well()
    assert start_on(two, 1) == "served"
    assert two.driver.prepare(memory(gpu(1))).env[PIPES] == str(host.of_gpu("GPU-1a"))


# -- the daemon for all GPUs of an earlier release ------------------------------------------------------------------


def test_containers_keep_the_former_daemon_until_the_last_has_ended(agent, host):
    pid = former_daemon(host)
    one = agent(every_s=0.05).start(IN_USE)
    layer = one.well()
    assert any("serves all GPUs" in caveat for caveat in layer.caveats)
    given = one.driver.prepare(memory())
    assert given.env[PIPES] == str(host.own)
    one.driver.verify(given, Starting())
    seen = host.log().count("Cmd:")
    wait_for(lambda: host.log().count("Cmd:") > seen + 3)
    assert host.pid(host.own) == pid
    one.driver.desire(SERVES)
    wait_for(lambda: alive(host, host.of_gpu("GPU-0a")) and alive(host, host.of_gpu("GPU-1a")))
    assert not alive(host, host.own)
    assert NODE not in MpsRecord(host.root / "state").daemons
    assert one.driver.prepare(memory()).env[PIPES] == str(host.of_gpu("GPU-0a"))


def test_the_former_daemon_serves_a_client_to_its_end(agent, host):
    former_daemon(host)
    client = CudaClient(host.own, pid=4711, patience_s=PATIENCE_S)
    one = agent(every_s=0.05).start(SERVES)
    one.well()
    wait_for(lambda: host.log().count("get_client_list") > 2)
    assert alive(host, host.own)
    client.end()
    wait_for(lambda: alive(host, host.of_gpu("GPU-0a")))


def test_a_container_that_has_just_got_the_former_directory_keeps_it(agent, host):
    """Kubelet's allocations show it some seconds later."""
    former_daemon(host)

    class Clock:
        now = 0.0

    clock = Clock()
    one = agent(every_s=0.05, release_s=30.0, clock=lambda: clock.now).start(IN_USE)
    one.well()
    clock.now = 100.0
    given = one.driver.prepare(memory())
    one.driver.desire(SERVES)
    clock.now = 129.0
    seen = host.log().count("Cmd:")
    wait_for(lambda: host.log().count("Cmd:") > seen + 3)
    one.driver.verify(given, Starting())
    clock.now = 131.0
    wait_for(lambda: alive(host, host.of_gpu("GPU-0a")))


def test_a_former_daemon_that_dies_is_replaced_and_its_containers_are_told_to_go(agent, host):
    former_daemon(host)
    one = agent(every_s=0.05).start(IN_USE)
    one.well()
    given = one.driver.prepare(memory())
    host.kill(host.own)
    wait_for(lambda: alive(host, host.of_gpu("GPU-0a")))
    one.until(lambda layer: layer.problem is None and not any("serves all GPUs" in text for text in layer.caveats))
    with pytest.raises(IsolationError, match="was given MPS at .* now: delete the pod"):
        one.driver.verify(given, Starting())
    assert start_on(one, 0) == "served"


def test_a_former_daemon_that_nobody_needs_is_ended(agent, host):
    former_daemon(host)
    agent(every_s=0.05).start(Need(gpus=GPUS))
    wait_for(lambda: not alive(host, host.own))
    wait_for(lambda: not MpsRecord(host.root / "state").daemons)


def test_the_record_is_read_by_both_releases(tmp_path):
    (tmp_path / "mps.json").write_text('{"daemon": 7, "modes": {"GPU-0a": "Default"}}')
    record = MpsRecord(tmp_path)
    assert (record.daemons, record.modes) == ({NODE: 7}, {"GPU-0a": "Default"})
    record.started("GPU-0a", 8)
    written = json.loads((tmp_path / "mps.json").read_text())
    assert written == {"daemon": 7, "daemons": {"GPU-0a": 8}, "modes": {"GPU-0a": "Default"}}
