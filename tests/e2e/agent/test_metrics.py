"""Prometheus scrapes the agent of a real node: what real containers' processes use is told of the right ones."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from standin.ports import free_port
from tests.e2e.agent.alert_cases import filled
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.prometheus import Prometheus, dcgm_exporter, documented, prometheus
from tests.e2e.cluster import WAIT_S, container, pod_manifest

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
GIB = 1 << 30
ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "manifests/helm/gpuagent/monitoring"
ALL = {"$instance": ".*", "$gpu": ".*", "$namespace": ".*", "$__rate_interval": "30s"}
USED, LIMIT = "gpuagent_container_gpu_memory_used_bytes", "gpuagent_container_gpu_memory_limit_bytes"


@pytest.fixture
def scraped(make_node: Callable[..., Node], tmp_path: Path) -> Iterator[tuple[Node, Prometheus]]:
    """A node where memory and compute are given out, unisolated, and its Prometheus."""
    node = make_node(mode="core_mem", flags=("--allow-unisolated", "true", "--compat-metrics", "true"))
    node.wait_amounts(mem=640, core=800)
    rules = MONITORING / "alerts.yaml"
    with (
        dcgm_exporter(node.agent.status()["gpus"]) as dcgm,
        prometheus(tmp_path / "prometheus", free_port(), rules, gpuagent=node.agent.port, dcgm=dcgm) as server,
    ):
        yield node, server


def gpu_of(node: Node, pod: str, name: str = "main") -> dict[str, Any]:
    (uuid,) = node.gpus_of(pod, name)
    found: dict[str, Any] = next(gpu for gpu in node.agent.status()["gpus"] if gpu["uuid"] == uuid)
    return found


def uses(node: Node, pod: str, gib: int, name: str = "main", sm: int | None = None) -> int:
    """The container's first process has so much of its GPU from now on. Returns its PID on the host."""
    pid = node.cluster.container(pod, name).pid
    node.agent.inject(fault="process", gpu=gpu_of(node, pod, name)["uuid"], pid=pid, mib=gib * 1024, kind="mps", sm=sm)
    return pid


def labels(metric: str, **wanted: str) -> str:
    return f"{metric}{{{','.join(f'{key}={value!r}' for key, value in wanted.items())}}}"


def is_(value: float) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda result: [float(one["value"][1]) for one in result] == [value]


def test_used_memory_is_reported_for_the_container_whose_process_it_is(scraped: tuple[Node, Prometheus]) -> None:
    node, server = scraped
    node.run(pod_manifest("trains", {MEM: 10, CORE: 30}))
    two = pod_manifest("two", {MEM: 4, CORE: 10})
    two["spec"]["containers"].append(container("side", {MEM: 2, CORE: 5}))
    node.run(two)
    uses(node, "trains", 3, sm=25)
    uses(node, "two", 1)
    uses(node, "two", 2, "side")
    gpu = gpu_of(node, "trains")
    here = {"namespace": "default", "UUID": gpu["uuid"], "gpu": str(gpu["minor"])}
    server.wait(labels(USED, pod="trains", container="main", **here), is_(3 * GIB))
    server.wait(labels(LIMIT, pod="trains", container="main", **here), is_(10 * GIB))
    server.wait(labels(USED, pod="two", container="side"), is_(2 * GIB))
    server.wait(labels(USED, pod="two", container="main"), is_(GIB))
    server.wait(labels("gpuagent_container_gpu_compute_used_ratio", pod="trains", **here), is_(0.25))
    server.wait(labels("gpuagent_container_gpu_compute_limit_ratio", pod="trains", **here), is_(0.3))
    assert server.query(labels("gpuagent_container_gpu_compute_used_ratio", pod="two")) == []  # MPS does not say
    # Of no container: this test.
    node.agent.inject(fault="process", gpu=gpu["uuid"], pid=os.getpid(), mib=5 * 1024)
    server.wait(labels("gpuagent_gpu_memory_unattributed_bytes", UUID=gpu["uuid"]), is_(5 * GIB))
    server.wait(labels("gpuagent_gpu_unattributed_processes", UUID=gpu["uuid"]), is_(1))
    # arena's own way of asking.
    arena = (
        '{__name__=~"nvidia_gpu_duty_cycle|nvidia_gpu_memory_used_bytes|nvidia_gpu_memory_total_bytes",pod_name=~"two"}'
    )
    values = {
        "nvidia_gpu_duty_cycle": 0,
        "nvidia_gpu_memory_used_bytes": 3 * GIB,
        "nvidia_gpu_memory_total_bytes": 80 * GIB,
    }
    server.wait(arena, lambda result: {one["metric"]["__name__"]: float(one["value"][1]) for one in result} == values)
    node.audit()


def test_series_follow_a_container_that_restarts_and_end_with_its_pod(scraped: tuple[Node, Prometheus]) -> None:
    node, server = scraped
    node.run(pod_manifest("again", {MEM: 10, CORE: 30}, restart_policy="Always"))
    uuid = gpu_of(node, "again")["uuid"]
    pid = uses(node, "again", 3)
    series = labels(USED, pod="again")
    server.wait(series, is_(3 * GIB))
    before = node.cluster.pod("again")["status"]["containerStatuses"][0]["containerID"]
    os.kill(pid, 9)
    node.agent.inject(fault="end", gpu=uuid, pid=pid)
    server.wait(series, is_(0))

    def runs_again(pod: dict[str, Any]) -> bool:
        status = pod["status"]["containerStatuses"][0]
        return "running" in status["state"] and status["containerID"] != before

    node.cluster.wait_pod("again", runs_again)
    uses(node, "again", 2)
    server.wait(series, is_(2 * GIB))
    node.end("again")
    # The sums stay for five minutes, so that the last scrape gets all of them.
    server.wait('count({pod="again",__name__!~".*_total"}) or vector(0)', is_(0))
    server.wait('count({pod="again",__name__="gpuagent_container_gpu_allocated_seconds_total"})', is_(1))


def test_every_documented_expression_gives_data_where_a_gpu_is_shared(scraped: tuple[Node, Prometheus]) -> None:
    node, server = scraped
    for pod in ("one", "other"):
        node.run(pod_manifest(pod, {MEM: 10, CORE: 30}))
        uses(node, pod, 3)
    assert node.gpus_of("one", "main") == node.gpus_of("other", "main")
    server.wait(f"count({USED})", is_(2))
    expressions = documented(ROOT)
    assert len(expressions) > 3
    for where, expression in expressions.items():
        for one in server.wait(expression):
            assert {"pod", "namespace"} & one["metric"].keys(), where
    # A left side that is a GPU's, with containers on the right, is what a shared GPU refuses.
    server.wait_refused(f"DCGM_FI_DEV_SM_CLOCK * on (UUID) group_left (pod) {USED}", HTTPStatus.UNPROCESSABLE_ENTITY)


def test_every_panel_shows_something_and_the_page_is_clean(scraped: tuple[Node, Prometheus]) -> None:
    node, server = scraped
    node.run(pod_manifest("runs", {MEM: 10, CORE: 30}))
    node.run(pod_manifest("beside", {MEM: 10, CORE: 30}))
    assert node.gpus_of("runs", "main") == node.gpus_of("beside", "main")
    uses(node, "runs", 9, sm=10)
    gpu = gpu_of(node, "runs")
    server.wait("gpuagent_registered")
    # What a good node has none of: a refusal, an XID of a program's making, and an XID without a GPU.
    node.run(pod_manifest("odd", {MEM: 1, CORE: 7}), phase="Failed")
    node.agent.inject(fault="xid", gpu=gpu["uuid"], code=31)
    node.agent.inject(fault="xid", gpu=None, code=45)
    asked = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in (one for row in asked["panels"] for one in (row, *row.get("panels", ()))):
        for target in panel.get("targets", ()):
            expression = re.sub(r"\$\w+", lambda found: ALL[found[0]], target["expr"])
            # Modes, drivers and a scheduler that this node does not have: tests of claims, memory limits and resizes have
            # these.
            absent = ("claim_info", "limits_repaired", "memory_withheld", "gpuscheduler_")
            if any(name in expression for name in absent):
                server.query(expression)
            else:
                server.wait(expression)
    # Kubelet gives units, and no pod gets them with the isolation that the mode promises.
    server.wait("max(gpuagent_gpu_memory_free_bytes)", is_(0))
    for variable in asked["templating"]["list"]:
        if variable["type"] == "query":
            expression = re.sub(r"\$\w+", lambda found: ALL[found[0]], variable["definition"])
            selector, _, label = expression.removeprefix("label_values(").removesuffix(")").rpartition(", ")
            assert all(label in one["metric"] for one in server.wait(selector)), expression
    checked = subprocess.run(
        ("promtool", "check", "metrics"), input=node.agent.page("metrics"), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    wait_evaluated(server)
    # The rules are in force: unisolated is not what the mode promises.
    server.wait('ALERTS{alertname="GPUIsolationDown",alertstate="pending"}')
    server.wait('ALERTS{alertname="GPUUnhealthy"}', lambda result: not result)


def wait_evaluated(server: Prometheus) -> None:
    """Until each rule was evaluated, without an error."""
    end = time.monotonic() + WAIT_S
    while True:
        rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        if rules and {rule["health"] for rule in rules} == {"ok"}:
            return
        assert time.monotonic() < end, rules
        time.sleep(0.1)


def test_the_recipes_give_what_their_tests_say() -> None:
    command = ("promtool", "test", "rules", "recipes_test.yaml")
    done = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_names_its_cause_and_the_pods_that_are_hit(scraped: tuple[Node, Prometheus]) -> None:
    node, server = scraped
    node.run(pod_manifest("trains", {MEM: 10, CORE: 30}))
    server.wait(f"count({LIMIT})", is_(1))
    node.agent.inject(fault="xid", gpu=gpu_of(node, "trains")["uuid"], code=79)
    pods = "Pods on the GPU: default/trains."
    server.wait_alert("GPUUnhealthy", lambda text: "Its last XID is 79." in text and text.endswith(pods))
    # Its pods are not forgotten while the driver is away.
    node.agent.inject(fault="driver", present=False, error="LIBRARY_NOT_FOUND")
    pods = "Pods with GPUs of the node: default/trains."
    server.wait_alert("GPUDriverUnavailable", lambda text: text.endswith(pods))


def test_the_rules_hold_what_their_tests_say(tmp_path: Path) -> None:
    for name in ("alerts", "scheduler-alerts"):
        cases = tmp_path / f"{name}_test.yaml"
        cases.write_text(json.dumps(filled(MONITORING, name)))
        for command in (("check", "rules", f"{name}.yaml"), ("test", "rules", str(cases))):
            done = subprocess.run(("promtool", *command), cwd=MONITORING, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
