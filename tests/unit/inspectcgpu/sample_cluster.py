"""Nodes and pods as the API server has them, in a few words."""

from collections.abc import Mapping
from typing import Any

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.assemble.cluster_report import build
from inspectcgpu.read.agent_page import AgentView
from inspectcgpu.read.gpu_node import GpuNode, read_node
from inspectcgpu.read.gpu_pod import GpuPod, read_pod
from inspectcgpu.report import ClusterReport

V2, V2_CORE = "scheduler.framework.gpushare.allocation", "gpushare.alibabacloud.com/core-percentage"
Json = dict[str, Any]


def node_json(
    name: str,
    mode: str = "share",
    *,
    gpus: int = 4,
    mib: int | None = 15109,
    mem: int = 0,
    core: int = 0,
    whole: int = 0,
    address: str | None = "10.0.0.1",
    **changes: Any,
) -> Json:
    amounts = {GPU_MEM: str(mem), GPU_CORE: str(core), GPU_WHOLE: str(whole), "aliyun.com/gpu-count": str(gpus)}
    labels = {"ack.node.gpu.schedule": mode, "aliyun.accelerator/nvidia_count": str(gpus)}
    if mib:
        labels |= {"aliyun.accelerator/nvidia_mem": f"{mib}MiB", "aliyun.accelerator/nvidia_name": "Tesla-T4"}
    addresses = [{"type": "Hostname", "address": name}]
    if address:
        addresses.append({"type": "InternalIP", "address": address})
    allocatable = amounts | {key: str(value) for key, value in changes.get("allocatable", {}).items()}
    return {
        "metadata": {"name": name, "labels": labels | changes.get("labels", {})},
        "status": {
            "capacity": amounts,
            "allocatable": allocatable,
            "addresses": addresses,
            "conditions": changes.get("conditions", []),
        },
    }


def node(name: str = "n1", mode: str = "share", **how: Any) -> GpuNode:
    found = read_node(node_json(name, mode, **how))
    assert found
    return found


def pod_json(
    name: str, at: str = "n1", annotations: Mapping[str, str] | None = None, *, phase: str = "Running", **asks: int
) -> Json:
    full = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE}
    limits = {full[short]: str(amount) for short, amount in asks.items()}
    return {
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"nodeName": at, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def pod(name: str, at: str = "n1", annotations: Mapping[str, str] | None = None, **how: Any) -> GpuPod:
    found = read_pod(pod_json(name, at, annotations, **how))
    assert found
    return found


def on(name: str, gpu: int, units: int, at: str = "n1") -> GpuPod:
    """A pod that a scheduler put on one GPU."""
    return pod(name, at, {V2: f'{{"0":{{"{gpu}":{units}}}}}'}, mem=units)


def report(nodes: list[GpuNode], pods: list[GpuPod] | None = None, **more: Any) -> ClusterReport:
    return build(ClusterFacts(nodes=nodes, pods=pods or [], **more))


def view(**how: Any) -> AgentView:
    return AgentView(**how)


def add_node(server, name, mode="share", **how):
    server.objects.create("nodes", "", node_json(name, mode, **how))


def add_pod(server, name, at, units, gpu=None, **how):
    annotations = {} if gpu is None else {V2: f'{{"0":{{"{gpu}":{units}}}}}'}
    server.create_pod(name, {"aliyun.com/gpu-mem": str(units)}, node=at, annotations=annotations, **how)
    where = how.get("namespace", "default")
    server.patch_pod(name, {"status": {"phase": "Running"}}, namespace=where, subresource="status")


def add_object(server, resource, found, namespace=""):
    """Create an object with the status that it has; the namespace is empty for one of the cluster."""
    created = server.objects.create(resource, namespace, found)
    if "status" in found:
        key = resource, namespace, created["metadata"]["name"]
        server.objects.patch(key, "status", {"status": found["status"]}, strategic=False)
    return created
