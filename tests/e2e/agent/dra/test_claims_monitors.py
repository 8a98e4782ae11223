"""Monitors: the example of a claim with `adminAccess`, on a node whose GPUs are in use, unhealthy or fenced."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import claiming, wait_published
from tests.e2e.agent.dra.test_claims_health import index_of, wait_taints
from tests.e2e.cluster import Cluster

Json = dict[str, Any]
EXAMPLE = Path(__file__).parents[4] / "examples" / "claims" / "monitor.yaml"


@pytest.fixture
def monitor(cluster: Cluster, of_administrators: None) -> Iterator[Json]:
    """A pod as the example's DaemonSet makes it."""
    template, daemon_set = yaml.safe_load_all(EXAMPLE.read_text())
    cluster.apply(template)
    made = daemon_set["spec"]["template"]
    made["metadata"]["name"] = "monitor"
    made["spec"]["hostNetwork"] = True  # the cluster of the tests has no network for pods
    yield {"apiVersion": "v1", "kind": "Pod", **made}
    cluster.api("DELETE", cluster.client.path_of(template))


@pytest.fixture
def node(make_node: Callable[..., Node], classes: None, no_claims: None, tmp_path: Path) -> Node:
    made = make_node(
        mode="dra", flags=("--settle", "1", "--evict-claims", "--fence-file", str(tmp_path / "fence.json"))
    )
    wait_published(made)
    return made


def test_a_monitor_sees_gpus_that_no_other_claim_gets(
    node: Node, monitor: Json, tmp_path: Path, cluster: Cluster
) -> None:
    """The scheduler asks for a toleration also from a claim with `adminAccess`."""
    uuids = [gpu["uuid"] for gpu in node.agent.status()["gpus"]]
    (tmp_path / "fence.json").write_text(json.dumps({"uuid": [uuids[3]]}))
    node.agent.inject(fault="xid", gpu=index_of(node, uuids[5]), code=79)
    wait_taints(cluster, {uuids[3]: "fenced=:NoSchedule", uuids[5]: "unhealthy=xid-79:NoExecute"})
    node.run(claiming("user", "share-8g"))
    node.run(monitor)
    assert sorted(node.gpus_of("monitor")) == sorted(uuids)


def test_a_monitor_outlives_the_fault_that_ends_the_other_pods_of_a_gpu(
    node: Node, monitor: Json, cluster: Cluster
) -> None:
    node.run(claiming("user", "share-8g"))
    node.run(monitor)
    before = cluster.container("monitor")
    (used,) = node.gpus_of("user")
    node.agent.inject(fault="xid", gpu=index_of(node, used), code=79)
    cluster.wait_pod_gone("user")
    node.pods.remove("user")
    cluster.restart_scheduler()
    node.run(claiming("elsewhere", "share-8g"))
    assert cluster.container("monitor") == before
    assert "deletionTimestamp" not in cluster.pod("monitor")["metadata"]
