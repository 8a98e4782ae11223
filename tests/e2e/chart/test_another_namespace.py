"""The chart in a namespace of the operator's. Its objects of the cluster are those of every release: it is the only one."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.kubelet.pod_resources import PodResources
from manifests.render import CHART
from tests.e2e.agent.conftest import MODE, Node
from tests.e2e.chart.release import Release
from tests.e2e.cluster import NODE_NAME, Cluster


def test_another_namespace_than_kube_system(
    cluster: Cluster, pod_resources: PodResources, release: Callable[..., Release]
) -> None:
    cluster.label_node({MODE: "topology"})
    one: Any = release(box="dgx1-v100", namespace="gpu")
    node = Node(cluster, pod_resources, one.install())
    node.wait_amounts(gpu=8)
    maps = "/api/v1/namespaces/kube-system/configmaps"
    cluster.client.wait(maps, f"{NODE_NAME}-gputopo-report", last_gpu_is_healthy)
    quota = cluster.client.expect("GET", "/api/v1/namespaces/gpu/resourcequotas/gpuagent")
    assert quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == ["system-node-critical"]
    cluster.api("DELETE", f"/api/v1/namespaces/kube-system/configmaps/{NODE_NAME}-gputopo-report")


def last_gpu_is_healthy(report: dict[str, Any] | None) -> bool:
    """Whether the report says so. It does not before the GPU's health was read for the first time."""
    return report is not None and json.loads(report["data"]["devices"])["7"] == "Healthy"


def test_a_second_release_is_refused_with_the_name_of_the_first(
    cluster: Cluster, release: Callable[..., Release]
) -> None:
    cluster.label_node({MODE: "share"})
    first = release(namespace="gpu").install()
    second = release(namespace="other")
    for command in ("install", "template"):
        # `template` asks the cluster only with this flag.
        more = ("--create-namespace",) if command == "install" else ("--dry-run=server",)
        with pytest.raises(subprocess.CalledProcessError) as refused:
            second.helm(command, "again", str(CHART), "--set", "image.repository=gpuagent", *more)
        said = refused.value.stderr
        assert "this cluster has the release gpuagent of the chart in namespace gpu" in said
        assert "`helm uninstall gpuagent --namespace gpu`" in said
    first.upgrade(podLabels={"upgraded": "yes"})
    assert first.pod()["metadata"]["labels"]["upgraded"] == "yes"
