"""Mode `dra`: claims on the stock scheduler and the real kubelet, without an extender."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import NODE_NAME, Cluster, pod_manifest

DRIVER = "gpu.gpuagent.io"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_IS_OURS = f'device.driver == "{DRIVER}"'
CLASSES = {
    "gpu.gpuagent.io": _IS_OURS,
    "gpu-share.gpuagent.io": f"{_IS_OURS} && device.allowMultipleAllocations",
}


def of(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def template(name: str, device_class: str, count: int = 1, **amounts: str) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return of("ResourceClaimTemplate", name, {"spec": claim}, "default")


def claiming(name: str, template_name: str) -> dict[str, Any]:
    manifest = pod_manifest(name, {})
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return manifest


@pytest.fixture
def classes(cluster: Cluster) -> Iterator[None]:
    manifests = [
        *(of("DeviceClass", name, {"selectors": [{"cel": {"expression": text}}]}) for name, text in CLASSES.items()),
        template("share-8g", "gpu-share.gpuagent.io", memory="8Gi"),
        template("share-4g", "gpu-share.gpuagent.io", memory="4Gi"),
        template("two", "gpu.gpuagent.io", count=2),
    ]
    for manifest in manifests:
        cluster.apply(manifest)
    yield
    for manifest in manifests:
        cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def node(make_node: Callable[..., Node], classes: None) -> Node:
    made = make_node(mode="dra")
    made.wait_amounts()
    made.cluster.client.wait(SLICES, f"{NODE_NAME}-{DRIVER}", bool, 30)
    return made


def published(node: Node) -> list[str]:
    """Names of the devices in the slice, in its order."""
    items = node.cluster.api("GET", SLICES)["items"]
    return [device["name"] for item in items for device in item["spec"]["devices"]]


def test_a_share_runs_with_its_gpu(node: Node) -> None:
    node.run(claiming("one", "share-8g"))
    env = node.cluster.exec_env("one")
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"
    assert env["NVIDIA_VISIBLE_DEVICES"] in {gpu["uuid"] for gpu in node.agent.status()["gpus"]}
