"""`kubectl inspect cgpu` on the stand-ins: the Node has the amounts that kubelet counts, as on a real cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gpuagent.domain.sharing.mode import MODE_LABEL
from standin.kubelet.reporting import StatusReporter
from tests.contract.harness import MEM, REPOSITORY, Node, box, pod

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
