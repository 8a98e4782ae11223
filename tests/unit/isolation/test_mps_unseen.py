"""Containers that began while the agent was away: kubelet started again meanwhile, and asked nobody."""

import os
import time
from dataclasses import replace

import pytest

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.clients.unseen import ContainerStart, remaining, unseen
from gpuagent.isolation.mps.clients.unseen_starts import container_starts
from gpuagent.system.process_cgroups import ProcessCgroups
from tests.unit.isolation.mps_under_test import alive, gpu, wait_for

POD = "0a-uid"
SHARES = PodShares({"GPU-0a": 1 << 30}, {"main": {"GPU-0a": 1 << 30}})
USED = Need(
    gpus=(gpu(0), gpu(1)),
    serves=True,
    in_use=True,
    held=frozenset({"GPU-0a"}),
    pods={POD: SHARES},
    knows_pods=True,
    containers={"c1": "main"},
    pod_names={POD: "ml/train"},
)


def found(began_at: float, *, daemon_at: float | None, container: str = "c1"):
    daemons = {} if daemon_at is None else {"GPU-0a": daemon_at}
    start = ContainerStart(POD, container, began_at)
    return unseen([start], USED.containers, {POD: SHARES.containers}, daemons, last_seen_at=100.0)


def test_a_container_that_began_without_agent_and_daemon_is_found():
    assert [each.name for each in found(150.0, daemon_at=200.0)] == ["main"]
    assert [each.gpus for each in found(150.0, daemon_at=None)] == [("GPU-0a",)]


@pytest.mark.parametrize(
    ("began_at", "daemon_at"),
    [(150.0, 50.0), (90.0, 200.0), (90.0, 50.0)],
    ids=["a daemon was there", "the former agent was there", "both were there"],
)
def test_a_container_that_agent_or_daemon_saw_is_not(began_at, daemon_at):
    assert found(began_at, daemon_at=daemon_at) == ()


def test_the_sandbox_of_a_pod_is_no_container():
    assert found(150.0, daemon_at=200.0, container="pause") == ()


def test_a_container_counts_until_it_ends():
    containers = found(150.0, daemon_at=200.0)
    assert remaining(containers, [ContainerStart(POD, "c1", 150.0)]) == containers
    assert remaining(containers, [ContainerStart(POD, "c2", 300.0)]) == ()


def test_it_is_reported_and_its_gpu_takes_no_pods_until_the_pod_is_deleted(agent, host):
    before = agent(every_s=0.05).start(USED)
    before.well()
    wait_for(lambda: (host.root / "state" / "mps.alive").exists())
    before.driver.stop()
    sign = host.root / "state" / "mps.alive"
    os.utime(sign, (sign.stat().st_mtime - 60, sign.stat().st_mtime - 60))
    host.kill_all()
    wait_for(lambda: not alive(host, host.pipes))
    starts = [ContainerStart(POD, "c1", time.time() - 30)]
    one = agent(every_s=0.05, container_starts=lambda: list(starts)).start(USED)
    layer = one.until(lambda layer: bool(layer.unlimited))
    assert layer.unlimited[POD] == (
        "its container main began while the agent was away and GPU 0 had no MPS daemon, so its programs may use the GPU "
        "without limits. Delete the pod"
    )
    assert list(layer.left_out) == ["GPU-0a"]
    assert "pod ml/train may have no limits" in layer.left_out["GPU-0a"]
    starts.clear()
    layer = one.until(lambda layer: not layer.unlimited)
    assert layer.left_out == {}


def test_an_agent_that_finds_its_daemon_reports_nobody(agent, host):
    before = agent(every_s=0.05).start(USED)
    before.well()
    wait_for(lambda: (host.root / "state" / "mps.alive").exists())
    before.driver.stop()
    looked: list[int] = []

    def starts() -> list[ContainerStart]:
        looked.append(1)
        return [ContainerStart(POD, "c1", time.time() + 1)]

    one = agent(every_s=0.05, container_starts=starts).start(USED)
    assert one.well().unlimited == {}
    wait_for(lambda: bool(looked))
    one.driver.desire(replace(USED, held=frozenset({"GPU-0a", "GPU-1a"})))
    assert one.quiet()


def test_the_first_agent_of_a_node_reports_nobody(agent):
    one = agent(every_s=0.05, container_starts=lambda: [ContainerStart(POD, "c1", 1.0)]).start(USED)
    assert one.well().unlimited == {}


def test_the_start_of_a_container_is_that_of_its_oldest_process(tmp_path, monkeypatch):
    uid, container = "12345678-1234-1234-1234-123456789abc", "ab" * 32
    for pid, ticks in ((7, 1000), (8, 500), (9, 100)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) S " + " ".join(["0"] * 18) + f" {ticks} 0")
        place = f"/kubepods/pod{uid}/{container}" if pid != 9 else "/init.scope"
        (folder / "cgroup").write_text(f"0::{place}\n")
    (tmp_path / "self").mkdir()
    monkeypatch.setattr("gpuagent.isolation.mps.clients.unseen_starts.ProcessCgroups", lambda: ProcessCgroups(tmp_path))
    (start,) = container_starts()
    assert (start.pod, start.container) == (uid, container)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert start.began_at == pytest.approx(booted + 500 / os.sysconf("SC_CLK_TCK"), abs=1.0)
