"""`kubectl inspect cgpu`, the one file of it, on the real API server: real pods of modes share, core_mem and topology.

The agent is a process of the machine here. A pod on the host's network stands for the one of its DaemonSet, so that the
way to the agent's pages through the API server is the real one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.test_modes import CORE, GPU, MEM, UNISOLATED
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest

ROOT = Path(__file__).parents[3]

PATIENT = ("--agent-timeout", f"{WAIT_S:g}")
UNANNOTATED = "--annotate-pods=false"
"""So that only the agents know who has what, and are asked."""


@pytest.fixture(scope="session")
def onefile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, in a folder that can stand in PATH. It is made before: that needs a network, and tests have none."""
    made = ROOT / "build" / "kubectl-inspect-cgpu"
    if not made.exists():
        pytest.fail("run `make inspect-onefile` first", pytrace=False)
    return Path(shutil.copy(made, tmp_path_factory.mktemp("plugin")))


class Plugin:
    """`kubectl inspect cgpu` with nothing in the environment but what it needs, from another folder."""

    def __init__(self, onefile: Path, cluster: Cluster, home: Path) -> None:
        self._cluster = cluster
        self._folder = home
        path = f"{onefile.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = {"PATH": path, "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig())}
        self.flags: tuple[str, ...] = ()

    def __call__(self, *arguments: str, user: str = "", code: int = 0) -> str:
        environ = self.environ | ({"KUBECONFIG": str(self._cluster.kubeconfig(user))} if user else {})
        command = ["kubectl", "inspect", "cgpu", *self.flags, *arguments]
        done = subprocess.run(command, env=environ, cwd=self._folder, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def document(self) -> dict[str, Any]:
        return dict(json.loads(self("-o", "json")))


@pytest.fixture
def plugin(onefile: Path, cluster: Cluster, tmp_path: Path) -> Plugin:
    home = tmp_path / "home"
    home.mkdir()
    return Plugin(onefile, cluster, home)


def stand_for_the_daemonset(node: Node, plugin: Plugin) -> None:
    labels = {"app.kubernetes.io/name": "gpuagent", "app.kubernetes.io/component": "agent"}
    node.run(pod_manifest("gpuagent", {}, labels=labels, node=NODE_NAME))
    plugin.flags = ("--agent-namespace", "default", "--agent-port", str(node.agent.port), *PATIENT)


def wait_held(node: Node, *pods: str) -> dict[str, Any]:
    """The agent's page once it shows these pods."""

    def shown(page: dict[str, Any]) -> bool:
        holders = {c["container"].partition("[")[0] for gpu in page["gpus"] for c in gpu["containers"]}
        return holders >= {f"default/{name}" for name in pods}

    return node.agent.wait(shown)


def held(page: dict[str, Any], resource: str) -> dict[int, int]:
    return {gpu["minor"]: gpu["held"].get(resource, 0) for gpu in page["gpus"]}


def shown(document: dict[str, Any], resource: str) -> dict[int, int]:
    gpus = document["nodes"][0]["gpus"]
    return {gpu["gpu"]: gpu["amounts"].get(resource, {"allocated": 0})["allocated"] for gpu in gpus}


def test_what_every_gpu_has_on_it_in_modes_share_core_mem_and_topology(
    make_node: Callable[..., Node], plugin: Plugin
) -> None:
    node = make_node(mode="share", flags=(*UNISOLATED, UNANNOTATED))
    node.wait_amounts(mem=640)
    stand_for_the_daemonset(node, plugin)
    node.run(pod_manifest("one", {MEM: 10}))
    node.run(pod_manifest("two", {MEM: 75}))
    refused = node.run(pod_manifest("three", {MEM: 100}), phase="Failed")
    page = wait_held(node, "one", "two")
    document = plugin.document()
    (seen,) = document["nodes"]
    assert (seen["name"], seen["unit"], seen["agent"]) == (NODE_NAME, "GiB", "seen")
    assert shown(document, MEM) == held(page, MEM)
    assert document["totals"]["memory"] == [{"unit": "GiB", "allocated": 85, "total": 640, "percent": 13}]
    assert {pod["name"]: pod["toldBy"] for pod in seen["pods"]} == {"one": {MEM: "agent"}, "two": {MEM: "agent"}}
    (waiting,) = document["waiting"]
    assert waiting["why"] == f"refused, UnexpectedAdmissionError: {refused['status']['message']}"
    head, line, _, title, total, *_ = plugin().splitlines()
    assert head.split()[:3] == ["NAME", "IPADDRESS", "GPU0(Allocated/Total)"]
    assert line.split()[2:] == [*(f"{units}/80" for _, units in sorted(held(page, MEM).items())), "85/640"]
    assert (title, total) == ("Allocated/Total GPU Memory In Cluster:", "85/640 (13%)")
    assert line in plugin(NODE_NAME)
    assert "there is no node nobody" in plugin("nobody", code=1)

    node.end("one", "two", "three")
    node.switch("core_mem", mem=640, core=800)
    node.run(pod_manifest("four", {MEM: 10, CORE: 20}))
    page = wait_held(node, "four")
    document = plugin.document()
    assert (shown(document, MEM), shown(document, CORE)) == (held(page, MEM), held(page, CORE))
    assert "20/800" in plugin().splitlines()[1].split()
    assert "Allocated/Total GPU Core In Cluster:\n20/800 (2%)" in plugin()

    node.end("four")
    node.switch("topology", gpu=8)
    annotations = {GROUP_ANNOTATION: "2,3", VISIBLE_ANNOTATION: "2,3"}
    node.run(pod_manifest("five", {GPU: 2}, annotations=annotations))
    node.run(pod_manifest("six", {GPU: 1}))
    page = wait_held(node, "five", "six")
    document = plugin.document()
    assert shown(document, GPU) == held(page, GPU)
    assert {pod["name"]: pod["differs"] for pod in document["nodes"][0]["pods"]} == {"five": None, "six": None}
    assert "Allocated/Total GPUs In Cluster:\n3/8 (37%)" in plugin()
    # The links are those of the ConfigMap that the agent writes.
    assert "Links:\n      GPU0" in plugin("-d")


def test_without_the_right_to_agents_pages_the_reason_is_reported(
    make_node: Callable[..., Node], plugin: Plugin
) -> None:
    node = make_node(mode="share", flags=(UNANNOTATED,))
    node.wait_amounts(mem=640)
    stand_for_the_daemonset(node, plugin)
    node.run(pod_manifest("one", {MEM: 10}))
    out = plugin(user="gpuagent")
    assert 'RBAC refuses: allow verb "get" on resource "pods/proxy" in API group ""' in out
    assert "default    one   gpu-node  10 gpu-mem  not annotated by a scheduler" in out


def test_status_completion_and_kubectls_flags_on_the_real_api_server(
    make_node: Callable[..., Node], plugin: Plugin
) -> None:
    node = make_node(mode="share", flags=(UNANNOTATED,))
    node.wait_amounts(mem=640)
    stand_for_the_daemonset(node, plugin)
    node.run(pod_manifest("one", {MEM: 10}))
    wait_held(node, "one")
    flags = plugin.flags
    plugin.flags = flags[: -len(PATIENT)]  # which it refuses here
    assert "default/one[" in plugin("status", NODE_NAME)
    plugin.flags = flags
    named = f"node/{NODE_NAME}\n"
    assert 'RBAC refuses: allow verb "list" on resource "nodes"' in plugin("--as", "nobody", code=1)
    assert plugin("--as", "nobody", "--as-group", "a", "--as-group", "system:masters", "-o", "name") == named
    assert plugin("-l", f"kubernetes.io/hostname in ({NODE_NAME}, other)", "-o", "name") == named
    assert plugin("-l", "kubernetes.io/hostname=other") == "no GPU node has the labels kubernetes.io/hostname=other\n"
    # Only the metadata of objects is read for it.
    plugin.flags = ()
    wait_completed(plugin, "status", "", lambda words: words == f"{NODE_NAME}\n:4\n")
    wait_completed(plugin, "-n", "", lambda words: "kube-system\n" in words)


def wait_completed(plugin: Plugin, flag: str, word: str, wanted: Callable[[str], bool]) -> None:
    """Complete the word until the answer is as wanted: for a person who waits, there is none after three seconds."""
    end = time.monotonic() + WAIT_S
    while not wanted(words := plugin("__complete", flag, word)):
        assert time.monotonic() < end, words


# As at a terminal: a shell that runs the tests in the background has its children ignore Ctrl-C.
INTERRUPTIBLE = ["env", "--default-signal=INT"]


def test_a_watch_shows_a_new_pod_and_ends_cleanly(
    make_node: Callable[..., Node], plugin: Plugin, onefile: Path
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    command = [*INTERRUPTIBLE, str(onefile), "--watch", "--interval", "0.2", "--no-agents"]
    with subprocess.Popen(command, env=plugin.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        late = threading.Timer(WAIT_S, process.kill)
        late.start()
        try:
            assert any("0/640 (0%)" in line for line in lines)
            node.run(pod_manifest("one", {MEM: 10}))
            assert any("10/640 (1%)" in line for line in lines)
        finally:
            late.cancel()
            process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
