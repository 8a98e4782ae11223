"""A node comes back before its agent: kubelet fails the pods, their controllers replace them; the start-up taint."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.amounts import older_kubelet_in_long
from tests.e2e.cluster import NODE_NAME, Cluster, pod_manifest

MEM = "aliyun.com/gpu-mem"
KEY = "example.com/gpu-starting"
PODS, NODE = "/api/v1/namespaces/default/pods", f"/api/v1/nodes/{NODE_NAME}"
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/web"


@pytest.fixture
def deploy(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """The function makes a Deployment of two pods of 10 GiB, and waits until they run."""

    def make() -> None:
        template = pod_manifest("web", {MEM: 10}, labels={"app": "web"}, restart_policy="Always")
        cluster.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": {"app": "web"}},
                    "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
                },
            }
        )
        two_run(cluster)

    yield make
    cluster.api("DELETE", DEPLOYMENT, {"propagationPolicy": "Foreground"})
    cluster.client.wait("/apis/apps/v1/namespaces/default/deployments", "web", lambda found: found is None)
    for pod in pods_of_deployment(cluster):
        cluster.delete_pod(pod["metadata"]["name"])


def pods_of_deployment(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.client.expect("GET", f"{PODS}?labelSelector=app%3Dweb")["items"])


def two_run(cluster: Cluster) -> None:
    def wanted(found: dict[str, Any] | None) -> bool:
        return found is not None and found["status"].get("readyReplicas") == 2

    cluster.client.wait("/apis/apps/v1/namespaces/default/deployments", "web", wanted)


def rejected(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("reason") == "UnexpectedAdmissionError")


@older_kubelet_in_long
def test_pods_of_a_controller_come_back_after_a_reboot_and_a_bare_one_does_not(
    kubelet: str, make_node: Callable[..., Node], deploy: Callable[[], None]
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    deploy()
    node.run(pod_manifest("bare", {MEM: 10}))
    before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods_of_deployment(node.cluster)}
    node.agent.stop()
    node.cluster.stop_kubelet()
    node.cluster.remove_containers()
    node.cluster.start_kubelet()
    for name in (*before.values(), "bare"):
        node.cluster.wait_pod(name, rejected)
    node.agent.start()

    def new_ones_run() -> bool:
        pods = pods_of_deployment(node.cluster)
        running = {pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}
        return len(running - before.keys()) == 2

    node.agent.wait(lambda _: new_ones_run())
    assert rejected(node.cluster.pod("bare"))


def test_the_startup_taint_goes_when_the_node_shows_its_amounts(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=("--startup-taint", KEY))
    node.wait_amounts(mem=640)
    node.agent.stop()
    node.cluster.wait_node(lambda found: found["status"]["allocatable"][MEM] == "0")
    taints = [{"key": key, "effect": "NoSchedule"} for key in (KEY, "example.com/other")]
    node.cluster.client.expect("PATCH", NODE, {"spec": {"taints": taints}}, "application/merge-patch+json")
    try:
        manifest = pod_manifest("waits", {})
        manifest["spec"]["tolerations"] = [{"key": "example.com/other", "operator": "Exists"}]
        node.pods.append("waits")
        node.cluster.create_pod(manifest)
        node.cluster.wait_pod("waits", lambda pod: "untolerated taint" in str(pod["status"].get("conditions")))
        node.agent.start()
        pod = node.cluster.wait_phase("waits", "Running")
        assert pod["spec"]["nodeName"] == NODE_NAME
        found = node.cluster.node()
        assert found["status"]["allocatable"][MEM] == "640"
        assert [taint["key"] for taint in found["spec"]["taints"]] == ["example.com/other"]
    finally:
        node.cluster.client.expect("PATCH", NODE, {"spec": {"taints": None}}, "application/merge-patch+json")
