"""The ConfigMap of a node's links, as `arena top node` reads it."""

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import NODE_NAME

MAPS, NAME = "/api/v1/namespaces/kube-system/configmaps", f"{NODE_NAME}-gputopo-report"
FIRST_BANDWIDTHS = [0, 25, 25, 50, 50, 7.88, 7.88, 7.88]
FIRST_TYPES = ["N/A", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]


def wait(node: Node, wanted: Callable[[dict[str, Any] | None], bool]) -> dict[str, Any]:
    return node.cluster.client.wait(MAPS, NAME, wanted) or {}


def first_bandwidths(report: dict[str, Any]) -> list[float]:
    """Those of GPU 0; not of the former box, whose report stands until the agent has read this one."""
    return json.loads(report["data"]["bandwidth"])[0]  # type: ignore[no-any-return]


def test_the_report_is_there_in_mode_topology_alone_and_reports_a_gpu_that_became_unhealthy(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(box="dgx1-v100", mode="topology")
    report = wait(node, lambda found: found is not None and first_bandwidths(found) == FIRST_BANDWIDTHS)
    # Arena finds it by these labels.
    assert report["metadata"]["labels"] == {"ack.node.gpu.schedule": "topology", "nodename": NODE_NAME}
    data = report["data"]
    assert data["nodeName"] == NODE_NAME
    assert json.loads(data["devices"]) == {str(minor): "Healthy" for minor in range(8)}
    bandwidths, types = json.loads(data["bandwidth"]), json.loads(data["linkType"])
    assert (bandwidths[0], types[0]) == (FIRST_BANDWIDTHS, FIRST_TYPES)
    assert [len(row) for row in bandwidths] == [len(row) for row in types] == [8] * 8
    assert bandwidths == [list(column) for column in zip(*bandwidths, strict=True)]

    node.agent.inject(fault="xid", gpu=5, code=79)
    report = wait(node, lambda found: found is not None and found["data"]["devices"] != data["devices"])
    assert [minor for minor, health in json.loads(report["data"]["devices"]).items() if health != "Healthy"] == ["5"]
    node.wait_amounts(gpu=7)

    node.switch("share", mem=7 * 16)
    wait(node, lambda found: found is None)
