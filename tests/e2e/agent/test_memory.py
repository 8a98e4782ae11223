"""Memory of the agent beside real peers: TLS, a real API server's objects, a real kubelet's lists."""

import time
from collections.abc import Callable

from tests.e2e.agent.conftest import Node
from tests.e2e.amounts import only_long
from tests.e2e.cluster import container, pod_manifest

MEM = "aliyun.com/gpu-mem"
PODS, CONTAINERS, FAILED = 7, 10, 20
QUIET_MIB, FULL_MIB, START_MIB = 80.0, 96.0, 110.0
SETTLE_S = 12.0
"""Until everything is loaded, and garbage is collected less often."""


@only_long
def test_seventy_containers_and_large_annotations_cost_little(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", fresh=True)
    node.wait_amounts(mem=640)
    time.sleep(SETTLE_S)
    quiet, _ = node.agent.memory_mib()
    for n in range(PODS):
        manifest = pod_manifest(f"many-{n}", {MEM: 1}, annotations={"example.com/notes": "x" * 250_000})
        manifest["spec"]["containers"] += [container(f"c-{c}", {MEM: 1}) for c in range(1, CONTAINERS)]
        node.run(manifest, timeout=180)
    for n in range(FAILED):
        failed = pod_manifest(
            f"failed-{n}", {}, command=["/bin/false"], annotations={"example.com/notes": "x" * 250_000}
        )
        node.pods.append(failed["metadata"]["name"])
        node.cluster.create_pod(failed)
    for n in range(FAILED):
        node.cluster.wait_phase(f"failed-{n}", "Failed", timeout=180)
    node.agent.page("metrics")
    time.sleep(3)
    full, _ = node.agent.memory_mib()
    node.agent.stop()
    node.agent.start()
    node.agent.wait_ready()
    node.wait_amounts(mem=640)
    time.sleep(SETTLE_S)
    again, peak = node.agent.memory_mib()
    print(f"resident: {quiet:.1f} MiB quiet, {full:.1f} full, {again:.1f} after a restart, whose peak was {peak:.1f}")
    assert quiet < QUIET_MIB
    assert full < FULL_MIB
    assert peak < START_MIB
    assert "Python warning" not in node.agent.log_text()
