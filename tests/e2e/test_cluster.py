"""The cluster itself: what the other end-to-end tests rely on."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import IMAGE, NODE_NAME, WAIT_S, Cluster, MachineInUseError, container, pod_manifest
from tests.e2e.cluster.manifests import Json

_TOKEN = "var/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.fixture
def pod(cluster: Cluster) -> Iterator[str]:
    """A pod that runs."""
    started = cluster.run_pod(pod_manifest("self-check", {}))
    assert started["status"]["phase"] == "Running"
    yield "self-check"
    cluster.delete_pod("self-check")


def test_the_node_is_ready_and_reports_its_version(cluster: Cluster) -> None:
    assert cluster.node()["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert "v1.36.3" in str(cluster.api("GET", "/version"))


def test_a_second_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(MachineInUseError):
        Cluster(tmp_path).start()
    assert cluster.node()["metadata"]["name"] == NODE_NAME


def test_the_inside_of_a_container_is_visible(cluster: Cluster, pod: str) -> None:
    assert cluster.exec_env(pod)["KUBERNETES_SERVICE_HOST"] == cluster.server.partition("//")[2].partition(":")[0]
    assert {"null", "zero"} <= set(cluster.container_devices(pod))
    assert cluster.execute(pod, "/bin/sh", "-c", "echo $KUBERNETES_SERVICE_PORT").stdout == "443\n"


def test_a_service_account_of_a_pod_reaches_the_api(cluster: Cluster, pod: str) -> None:
    token = Path(f"/proc/{cluster.container(pod).pid}/root/{_TOKEN}").read_text()
    assert cluster.api("GET", "/version", token=token)[0] == 200
    assert cluster.api("GET", "/api/v1/nodes", token=token)[0] == 403


def test_a_deleted_pod_is_gone_from_the_node(cluster: Cluster) -> None:
    cluster.run_pod(pod_manifest("short", {}))
    assert cluster.container("short").alive
    cluster.delete_pod("short", grace=1)
    with pytest.raises(LookupError):
        cluster.container("short")
    assert cluster.api("GET", "/api/v1/namespaces/default/pods/short")[0] == 404


def test_logs_of_a_pod_that_has_ended(cluster: Cluster) -> None:
    first = container("first", {}, command=["/bin/echo", "before"])
    cluster.create_pod(pod_manifest("printer", {}, command=["/bin/echo", "hello there"], init=[first]))
    cluster.wait_phase("printer", "Succeeded")
    assert cluster.pod_log("printer") == "hello there\n"
    assert cluster.pod_log("printer", "first") == "before\n"
    cluster.delete_pod("printer")


def test_a_pod_for_an_unknown_resource_waits(cluster: Cluster) -> None:
    cluster.create_pod(pod_manifest("waiting", {"example.com/unknown": 1}))
    cluster.wait_pod(
        "waiting", lambda pod: any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", ()))
    )
    cluster.delete_pod("waiting")


def test_pods_survive_kubelet_restarts(cluster: Cluster, pod: str) -> None:
    before = cluster.container(pod)
    cluster.restart_kubelet()
    cluster.kill_kubelet()
    cluster.start_kubelet()
    assert cluster.container(pod) == before
    assert cluster.pod(pod)["status"]["phase"] == "Running"
    end = time.monotonic() + WAIT_S
    while "kubelet_running_pods" not in cluster.kubelet_get("/metrics"):  # before kubelet has looked at its pods
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_hanging_api_server(cluster: Cluster, pod: str) -> None:
    cluster.pause_apiserver()
    try:
        with pytest.raises(TimeoutError):
            cluster.client.request("GET", "/version", timeout=0.5)
        assert cluster.exec_env(pod)
    finally:
        cluster.resume_apiserver()
    assert cluster.api("GET", "/version")[0] == 200


def test_an_api_server_that_is_down(cluster: Cluster, pod: str) -> None:
    cluster.stop_apiserver()
    try:
        with pytest.raises(ConnectionRefusedError):
            cluster.api("GET", "/version")
    finally:
        cluster.start_apiserver()
    assert cluster.pod(pod)["status"]["phase"] == "Running"
    # The same name again: nobody may take the new pod for the old one.
    cluster.delete_pod(pod)
    assert cluster.run_pod(pod_manifest(pod, {}))["status"]["phase"] == "Running"


def test_an_older_kubelet_takes_over_and_back(cluster: Cluster, pod: str) -> None:
    cluster.restart_kubelet("1.30")
    try:
        assert cluster.node()["status"]["nodeInfo"]["kubeletVersion"] == "v1.30.14"
        assert cluster.run_pod(pod_manifest("on-1-30", {}))["status"]["phase"] == "Running"
        cluster.delete_pod("on-1-30")
    finally:
        cluster.restart_kubelet("1.36")
    assert cluster.node()["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert cluster.pod(pod)["status"]["phase"] == "Running"


def test_a_kubelet_with_a_topology_policy_sees_two_numa_nodes_and_its_volumes_reach_pods(cluster: Cluster) -> None:
    nodes = Path("/sys/devices/system/node")
    before = sorted(os.listdir(nodes))
    cluster.restart_kubelet(topology_policy="single-numa-node")
    try:
        seen = Path(f"/proc/{cluster.kubelet_pid}/root", *nodes.parts[1:])
        assert sorted(os.listdir(seen)) == ["node0", "node1"]
        assert sorted(os.listdir(nodes)) == before
        cluster.run_pod(pod_manifest("on-two-nodes", {}))
        assert Path(f"/proc/{cluster.container('on-two-nodes').pid}/root/{_TOKEN}").read_text()
        cluster.delete_pod("on-two-nodes", grace=1)
    finally:
        cluster.restart_kubelet(topology_policy="none")


def test_the_agent_user_has_only_what_is_granted(cluster: Cluster) -> None:
    token = cluster.token("gpuagent")
    path = f"/api/v1/nodes/{NODE_NAME}"
    assert cluster.api("GET", path, token=token)[0] == 403
    role: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "self-check"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
    }
    binding: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "self-check"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "self-check"},
        "subjects": [{"kind": "User", "name": "gpuagent", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    before = cluster.audit.position()
    cluster.apply_rbac([role, binding])
    deadline = time.monotonic() + WAIT_S
    while cluster.api("GET", path, token=token)[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    seen = [event for event in cluster.audit.events(before) if event["user"]["username"] == "gpuagent"]
    assert seen[-1]["verb"] == "get"
    assert seen[-1]["requestURI"] == path
    for manifest in (binding, role):
        cluster.api("DELETE", cluster.client.path_of(manifest))


def test_labels(cluster: Cluster) -> None:
    cluster.label_node({"self-check": "yes"})
    cluster.wait_node(lambda node: node["metadata"]["labels"].get("self-check") == "yes")
    cluster.label_node({"self-check": None})
    cluster.wait_node(lambda node: "self-check" not in node["metadata"]["labels"])


def test_controllers_make_pods(cluster: Cluster, tmp_path: Path) -> None:
    manifest = tmp_path / "daemon.yaml"
    manifest.write_text(
        f"""\
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: daemon}}
spec:
  selector: {{matchLabels: {{app: daemon}}}}
  template:
    metadata: {{labels: {{app: daemon}}}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: main, image: "{IMAGE}", imagePullPolicy: Never, command: [/bin/sleep, "3600"]}}
"""
    )
    (created,) = cluster.apply_yaml(manifest)
    selector = "/api/v1/namespaces/default/pods?labelSelector=app%3Ddaemon"
    deadline = time.monotonic() + WAIT_S
    while not (pods := cluster.api("GET", selector)[1]["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    name = pods[0]["metadata"]["name"]
    cluster.wait_phase(name, "Running")
    # Garbage collection takes the pod with it.
    cluster.api("DELETE", cluster.client.path_of(created))
    cluster.wait_pod_gone(name)
