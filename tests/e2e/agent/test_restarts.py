"""Kubelet and agent killed and restarted, two agents, an API server that is away: on kubelet 1.36, and on 1.30."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.process import AgentProcess
from tests.e2e.amounts import SEED, count
from tests.e2e.cluster import Cluster, pod_manifest

MEM, GPU = "aliyun.com/gpu-mem", "aliyun.com/gpu"
KILLS = count(30, 200)
"""After which kubelet would kill the agent."""


def connected(page: dict[str, Any]) -> bool:
    return all(view["registered"] for view in page["resources"].values())


def test_pods_and_amounts_survive_a_kubelet_restart(kubelet: str, make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    for name in ("a", "b", "c"):
        node.run(pod_manifest(name, {MEM: 10}))
    before = {name: node.cluster.container(name) for name in "abc"}
    node.agent.wait(lambda _page: bool(_registrations(node.agent)))
    registrations = _registrations(node.agent)
    node.cluster.kill_kubelet()
    node.cluster.start_kubelet()
    node.agent.wait(lambda page: connected(page) and _all_more(_registrations(node.agent), registrations))
    node.wait_amounts(mem=640)
    assert {name: node.cluster.container(name) for name in "abc"} == before
    assert all(node.cluster.pod(name)["status"]["phase"] == "Running" for name in "abc")
    node.audit()
    node.run(pod_manifest("d", {MEM: 10}))


def _registrations(agent: AgentProcess) -> dict[str, float]:
    """How often the agent has registered, by the series of each resource."""
    lines = (agent.page("metrics") or b"").decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line.startswith("gpuagent_registrations_total{"))
    return {series: float(value) for series, value in values}


def _all_more(counts: dict[str, float], before: dict[str, float]) -> bool:
    return bool(before) and all(counts.get(series, 0.0) > count for series, count in before.items())


def test_an_agent_started_before_kubelet_registers_at_once(kubelet: str, make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.agent.stop()
    node.cluster.stop_kubelet()
    node.agent.start()
    node.agent.wait(lambda page: not connected(page) and page["gpus"])
    node.cluster.start_kubelet()
    node.agent.wait(connected)
    node.wait_amounts(mem=640)


def test_a_sigterm_ends_the_agent_in_order_and_pods_live_on(kubelet: str, make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("lives", {MEM: 10}))
    before = node.cluster.container("lives")
    node.agent.stop()
    assert node.agent.exit_code == 0
    node.cluster.wait_node(lambda found: found["status"]["allocatable"][MEM] == "0")
    assert node.cluster.node()["status"]["capacity"][MEM] == "640"
    node.agent.start()
    node.wait_amounts(mem=640)
    assert node.cluster.container("lives") == before


def test_a_container_that_crashes_restarts_while_the_agent_is_away(
    kubelet: str, make_node: Callable[..., Node]
) -> None:
    """No layer has to be verified in mode share, so kubelet does not call the agent."""
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    made = pod_manifest("crashes", {MEM: 10})
    made["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "sleep 2; exit 1"]
    made["spec"]["restartPolicy"] = "Always"
    node.run(made)
    node.agent.kill()
    before = _restarts(node.cluster.pod("crashes"))
    node.cluster.wait_pod("crashes", lambda pod: _restarts(pod) > before)
    node.agent.start()
    node.agent.wait_ready()


def _restarts(pod: dict[str, Any]) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def test_two_agents_overlap_and_the_newcomer_stays(
    kubelet: str, make_node: Callable[..., Node], cluster: Cluster, tmp_path: Path
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    newcomer = AgentProcess(cluster, tmp_path / "newcomer", "dgx-a100")
    newcomer.start()
    try:
        newcomer.wait(connected)
        newcomer.wait(lambda _page: bool(_registrations(newcomer)))
        registered = _registrations(newcomer)
        node.agent.stop()
        # With the former stream of a resource, kubelet also ends the newcomer's. So it registers all of them again.
        newcomer.wait(lambda page: connected(page) and _all_more(_registrations(newcomer), registered))
        node.wait_amounts(mem=640)
        node.run(pod_manifest("after", {MEM: 10}))
    finally:
        newcomer.stop()
    node.agent.start()
    node.agent.wait_ready()


def test_killed_at_random_moments_no_unit_is_lost_or_held_twice(kubelet: str, make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    rng = random.Random(f"{kubelet} {SEED}")
    node.run(pod_manifest("constant", {MEM: 10}))
    constant = node.cluster.container("constant")
    leaving = []
    # The older kubelet's share of the kills is smaller: its registration code is what matters there.
    for number in range(KILLS if kubelet == "1.36" else KILLS // 3):
        name = f"churn-{number}"
        node.cluster.create_pod(pod_manifest(name, {MEM: rng.randint(1, 80)}))
        node.pods.append(name)
        time.sleep(rng.uniform(0, 0.4))
        node.agent.kill()
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.5))
        node.agent.start()
        if len(node.pods) > 6:
            gone = node.pods[1]
            node.pods.remove(gone)
            node.cluster.delete_pod(gone, grace=1, timeout=0)
            leaving.append(gone)
        if number % 10 == 9:
            node.agent.wait_ready()
            node.audit()
    node.agent.wait_ready()
    node.wait_amounts(mem=640)
    node.audit()
    assert node.cluster.container("constant") == constant
    for name in list(node.pods):
        if name != "constant":
            node.end(name)
    for name in leaving:
        node.cluster.wait_pod_gone(name)
    # Everything that was handed out is free again: eight pods of a whole GPU's memory but the constant one's fit.
    for number in range(7):
        node.run(pod_manifest(f"full-{number}", {MEM: 80}))
    node.run(pod_manifest("rest", {MEM: 70}))


def test_an_api_server_that_hangs_or_is_down_stops_nothing(make_node: Callable[..., Node], cluster: Cluster) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("before", {MEM: 10}))
    for away, back in (
        (cluster.pause_apiserver, cluster.resume_apiserver),
        (cluster.stop_apiserver, cluster.start_apiserver),
    ):
        away()
        try:
            node.restart_agent(node.agent.kill)
            page = node.agent.status()
            assert (page["mode"], page["resources"][MEM]["healthy"]) == ("share", 640)
            assert node.agent.page("healthz") is not None
        finally:
            back()
        node.run(pod_manifest(f"after-{away.__name__.replace('_', '-')}", {MEM: 10}))
    node.label("topology")
    node.agent.wait(lambda page: page["mode"] == "topology")


def test_a_fatal_xid_takes_one_gpu_out_and_running_pods_stay(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("on-it", {MEM: 10}))
    (uuid,) = node.gpus_of("on-it")
    index = next(gpu["index"] for gpu in node.agent.status()["gpus"] if gpu["uuid"] == uuid)
    node.agent.inject(fault="xid", gpu=index, code=79)
    node.cluster.wait_node(lambda found: found["status"]["allocatable"][MEM] == "560")
    assert node.cluster.node()["status"]["capacity"][MEM] == "640"
    node.run(pod_manifest("next", {MEM: 10}))
    assert node.gpus_of("next") != [uuid]
    assert node.cluster.pod("on-it")["status"]["phase"] == "Running"
