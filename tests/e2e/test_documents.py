"""Kubernetes objects in the documents, tried on the real API server."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .build import KUBERNETES, kubernetes_sources
from .cluster import WAIT_S, Cluster, pod_manifest
from .cluster.manifests import Json
from .documents import DOCS, objects

PODS = "/api/v1/namespaces/default/pods?dryRun=All"
POLICY = "no-gpu-environment"
NAMESPACES = {"default", "kube-system"}
"""Those that a cluster has. Readers make the others of the pages themselves."""
OF_OTHERS = {"jobset.x-k8s.io", "kubeflow.org", "kueue.x-k8s.io", "leaderworkerset.x-k8s.io", "ray.io"}
"""API groups of other projects. The scheduler's tests create such objects where they run the projects' controllers."""
FROM_1_37 = {"DeviceTaintRule"}
"""Kinds that Kubernetes serves by default from 1.37 on."""

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if any(objects(page))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_objects_are_accepted(cluster: Cluster, page: Path) -> None:
    for found in objects(page):
        if found["kind"] == "DaemonSet" or not found["apiVersion"].endswith(("v1", "v1beta1")):
            continue
        if ".config.k8s.io/" in found["apiVersion"]:  # a file for a program of the control plane
            continue
        group, _, _ = found["apiVersion"].rpartition("/")
        if found["kind"] in FROM_1_37 and KUBERNETES == "1.36":
            continue
        if group in OF_OTHERS:
            continue
        if found["metadata"].get("namespace", "default") not in NAMESPACES:
            found["metadata"]["namespace"] = "default"
        path = cluster.client.path_of(found)
        status, answer = cluster.api(
            "PATCH",
            f"{path}?fieldManager=documents&dryRun=All&fieldValidation=Strict",
            found,
            "application/apply-patch+yaml",
        )
        assert status in {200, 201}, (found["kind"], answer)


@pytest.mark.parametrize("source", ["e2e_node/dra_test.go", "e2e/dra/dra.go"])
def test_the_page_of_kubernetes_tests_has_all_of_them(source: str) -> None:
    """Those of the version that the cluster is built from."""
    text = (kubernetes_sources() / "test" / source).read_text(encoding="utf-8")
    names = set(re.findall(r'\b(?:It|DescribeTable)\(\s*"((?:[^"\\]|\\.)*)"', text))
    page = (DOCS / "reference/kubernetes-dra-tests.md").read_text(encoding="utf-8")
    assert len(names) > 30
    assert names - set(re.findall(r"`([^`]+)`", page)) == set()


@pytest.fixture
def policy(cluster: Cluster) -> Iterator[None]:
    """The policy of docs/security.md, in force."""
    manifests = [found for found in objects(DOCS / "security.md") if found["metadata"]["name"] == POLICY]
    assert [found["kind"] for found in manifests] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    try:
        for manifest in manifests:
            cluster.apply(manifest)
        wait_until_pods_are(cluster, refused=True)
        yield
    finally:
        for manifest in reversed(manifests):
            cluster.api("DELETE", cluster.client.path_of(manifest))
        # The API server goes by a deleted policy for about a second. It must not refuse a pod of the next test.
        wait_until_pods_are(cluster, refused=False)


def wait_until_pods_are(cluster: Cluster, *, refused: bool) -> None:
    """Until the API server refuses what the policy forbids, or no longer does."""
    until = time.monotonic() + WAIT_S
    forbidden = pod_with(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    wanted = 422 if refused else 201
    while (answer := cluster.api("POST", PODS, forbidden))[0] != wanted:
        assert time.monotonic() < until, f"the policy is {'not' if refused else 'still'} in force: {answer}"
        time.sleep(0.2)


def _is_type_checked(policy: Json | None) -> bool:
    return "typeChecking" in (policy or {}).get("status", {})


def pod_with(**container: object) -> Json:
    pod = pod_manifest("tenant", {"aliyun.com/gpu-mem": 4})
    pod["spec"]["containers"][0] |= container
    return pod


@pytest.mark.usefixtures("policy")
def test_tenants_cannot_set_the_environment_of_gpus(cluster: Cluster) -> None:
    checked = cluster.client.wait(
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", POLICY, _is_type_checked
    )
    assert (checked or {})["status"]["typeChecking"] == {}
    for name in (
        "NVIDIA_VISIBLE_DEVICES",
        "CGPU_DISABLE",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "ALIYUN_COM_GPU_SCHD_WEIGHT",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ):
        status, answer = cluster.api("POST", PODS, pod_with(env=[{"name": name, "value": "1"}]))
        assert (status, "the node agent's to set" in answer["message"]) == (422, True), answer
    init = pod_with()
    init["spec"]["initContainers"] = [
        {"name": "first", "image": "busybox", "env": [{"name": "CGPU_DISABLE", "value": "true"}]}
    ]
    assert cluster.api("POST", PODS, init)[0] == 422
    assert cluster.api("POST", PODS, pod_with(envFrom=[{"configMapRef": {"name": "sly"}}]))[0] == 422
    assert cluster.api("POST", PODS, pod_with())[0] == 201
    assert cluster.api("POST", PODS, pod_with(env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]))[0] == 201


def test_an_amount_in_requests_alone_is_refused(cluster: Cluster) -> None:
    """As docs/troubleshooting.md says."""
    pod = pod_with(resources={"requests": {"aliyun.com/gpu-mem": "4"}})
    status, answer = cluster.api("POST", PODS, pod)
    assert (status, "Limit must be set" in answer["message"]) == (422, True), answer
