"""`kubectl inspect cgpu` on the stand-ins: the Node has the amounts that kubelet counts, as on a real cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gpuagent.domain.sharing.mode import MODE_LABEL
from standin.kubelet.reporting import StatusReporter
from tests.contract.harness import MEM, REPOSITORY, Node, box, command, pod

MakeNode = Callable[..., Node]


def inspected(one: Node) -> dict[str, Any]:
    config = one.server.write_kubeconfig(one.root / "kubeconfig")
    done = subprocess.run(
        [sys.executable, "-m", "inspectcgpu", "--kubeconfig", str(config), "--no-agents", "-o", "json"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "kubectl")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def test_inspect_shows_what_the_stand_in_node_offers(node: MakeNode) -> None:
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    reporter = StatusReporter(one.kubelet, one.server.patch_node_status)
    reporter.start()
    try:
        one.run()
        one.offers(mem=48)
        assert one.server.wait(lambda: one.server.node()["status"]["allocatable"].get(MEM) == "48")
        assert one.kubelet.admit(one.bind(pod("p", {MEM: 4})))
        (shown,) = inspected(one)["nodes"]
        assert shown["allocatable"] == {MEM: 48, "aliyun.com/gpu-count": 2}
        assert shown["amounts"] == {MEM: {"allocated": 4, "total": 48, "percent": 8}}
        one.label("topology")
        assert one.server.wait(lambda: one.server.node()["status"]["allocatable"].get("aliyun.com/gpu") == "1")
    finally:
        reporter.stop()


def test_status_shows_what_the_agent_shows_itself(node: MakeNode) -> None:
    """Through the API server's proxy to the node, as for an agent that is a service of the host."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "shrae"})
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers()
    assert one.server.wait(lambda: "GPUAgentReady" in {c["type"] for c in one.server.node()["status"]["conditions"]})
    addresses = {"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}}
    one.server.objects.patch(("nodes", "", one.server.node_name), "status", addresses, strategic=True)
    port = str(agent.http_port)
    own = command("status", "--url", f"http://127.0.0.1:{port}").stdout
    assert "InvalidModeLabel" in own
    assert plugin(one, "status", one.server.node_name, "--agent-port", port) == (0, own)
    code, out = plugin(one, "--health", "--agent-port", port)
    assert code == 1
    assert "InvalidModeLabel" in out
    assert "1 of 1 nodes have a problem" in out


def plugin(one: Node, *arguments: str) -> tuple[int, str]:
    config = one.server.write_kubeconfig(one.root / "kubeconfig")
    done = subprocess.run(
        [sys.executable, "-m", "inspectcgpu", "--kubeconfig", str(config), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "kubectl")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
