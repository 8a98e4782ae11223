"""Agents with real tokens, bound to their pods as kubelet asks for them, and every right that RBAC can give."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.domain.reconcile.slice_writes import slice_name
from gpuagent.domain.sharing.mode import DRA_DRIVER
from tests.e2e.chart.release import Release
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest

OTHER = "gpu-node.example.com"  # a name with dots, which begins as the other's
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/gpuagent"
MERGE = "application/merge-patch+json"
TAINT = "gpuagent/starting"
NODE = f"/api/v1/nodes/{NODE_NAME}"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default"

Json = dict[str, Any]


class Agents(NamedTuple):
    """Tokens."""

    ours: str
    others: str
    unbound: str


WIDE: tuple[Json, ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "too-much"},
        "rules": [{"apiGroups": ["", "events.k8s.io", "resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much"},
        "subjects": [{"kind": "ServiceAccount", "name": "gpuagent", "namespace": "kube-system"}],
    },
)


_KINDS = {
    "nodes": "Node",
    "configmaps": "ConfigMap",
    "events": "Event",
    "pods": "Pod",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
}
_WITHOUT_AMOUNTS: Json = {
    "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu-core.gpuagent.io"}}]}
}
"""The spec of a claim for a part of a GPU's compute that does not say how much."""


def token(cluster: Cluster, pod: Json | None = None) -> str:
    spec: Json = {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(cluster.client.expect("POST", f"{ACCOUNT}/token", request)["status"]["token"])


def pod_of(name: str, node: str) -> Json:
    manifest = pod_manifest(name, {}, node=node)
    manifest["metadata"]["namespace"] = "kube-system"
    manifest["spec"]["serviceAccountName"] = "gpuagent"
    return manifest


@contextmanager
def two_agents(cluster: Cluster, workdir: Path, **values: Any) -> Iterator[Agents]:
    """The chart's policies in force, and the tokens of an agent on the node and of one on another node.

    Args:
        cluster: the real one.
        workdir: for the release.
        values: further values of the chart.
    """
    cluster.label_node({"ack.node.gpu.schedule": None, "aliyun.accelerator/nvidia_count": None})
    other = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": OTHER, "labels": {"kubernetes.io/hostname": OTHER}},
    }
    # What was made before a failure is removed, too: otherwise it would break the tests that follow.
    with ExitStack() as endings:
        release = Release(cluster, workdir)
        endings.callback(release.uninstall)
        # No agent runs: no node has the labels.
        release.install(nodeLabels=["nobody/has-this"], startupTaint=TAINT, dra={"enabled": True}, **values)
        for manifest in (other, *WIDE):
            endings.callback(cluster.api, "DELETE", cluster.client.path_of(manifest))
        cluster.apply(other)
        cluster.apply_rbac(WIDE)
        pods = []
        for n, node in enumerate((NODE_NAME, OTHER)):
            pods.append(cluster.create_pod(pod_of(f"agent-{n}", node)))
            path = f"/api/v1/namespaces/kube-system/pods/agent-{n}"
            endings.callback(cluster.api, "DELETE", path, {"gracePeriodSeconds": 0})
        tokens = Agents(token(cluster, pods[0]), token(cluster, pods[1]), token(cluster))
        _wait_in_force(cluster, tokens)
        yield tokens


def _wait_in_force(cluster: Cluster, tokens: Agents) -> None:
    """Policies and rights take a moment to be in force."""
    deadline = time.monotonic() + WAIT_S
    for path in (
        NODE,
        f"{MAPS}/probe",
        "/api/v1/namespaces/default/events/probe",
        "/api/v1/namespaces/default/pods/probe",
        f"{SLICES}/probe",
        f"{CLAIMS}/resourceclaims/probe",
        f"{CLAIMS}/resourceclaimtemplates/probe",
    ):
        while "ValidatingAdmissionPolicy" not in refusal(cluster, tokens.ours, path):
            assert time.monotonic() < deadline, refusal(cluster, tokens.ours, path)
            time.sleep(0.1)


def refusal(cluster: Cluster, agent: str, path: str) -> str:
    """What an apply of something that nobody may is answered with."""
    kind = _KINDS[path.split("/")[-2]]
    meta = {"name": path.rpartition("/")[2], "annotations": {"probe": "yes"}}
    body: Json = {"apiVersion": "v1", "kind": kind, "metadata": meta}
    if kind == "ResourceSlice":
        body = resource_slice(NODE_NAME) | {"metadata": meta}
    if kind == "Pod":
        body["spec"] = {"containers": [{"name": "main", "image": "none"}]}
    if kind == "ResourceClaim":
        body |= {"apiVersion": "resource.k8s.io/v1", "spec": _WITHOUT_AMOUNTS}
    if kind == "ResourceClaimTemplate":
        body |= {"apiVersion": "resource.k8s.io/v1", "spec": {"spec": _WITHOUT_AMOUNTS}}
    if kind == "Event":
        body["involvedObject"] = {"kind": "Node", "name": "none", "namespace": "default"}
    query = "?fieldManager=probe&force=true&dryRun=All"
    return str(cluster.api("PATCH", path + query, body, "application/apply-patch+yaml", agent)[1].get("message", ""))


def resource_slice(node: str, **spec: Any) -> Json:
    """As the agent of the node makes it."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node)},
        "spec": {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-a"}]} | spec,
    }


def patch(cluster: Cluster, agent: str, path: str, body: Json, kind: str = MERGE) -> tuple[int, str]:
    status, answer = cluster.api("PATCH", path, body, kind, agent)
    return status, str(answer.get("message", ""))
