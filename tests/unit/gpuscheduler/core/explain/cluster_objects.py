"""Nodes, slices, classes, claims and pods for tests, in the API server's form."""

import json
from collections.abc import Iterable
from typing import Any

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuscheduler.core.explain.claim_facts import read_claim, read_class
from gpuscheduler.core.explain.claim_reason import ClaimCluster
from gpuscheduler.core.explain.pod_reason import Cluster, pod_reason
from gpuscheduler.core.explain.published import published, read_slice
from tests.unit.gpuscheduler.core.api_objects import OF_NODES

Json = dict[str, Any]
DRIVER = "gpu.gpuagent.io"
SHARE, ISOLATED, WHOLE = "gpu-share.gpuagent.io", "gpu-isolated.gpuagent.io", DRIVER
_OURS = f'device.driver == "{DRIVER}"'
_IS_GPU = f'{_OURS} && device.attributes["{DRIVER}"].type == "gpu"'
_SHARED = f'{_OURS} && "sharers" in device.capacity["{DRIVER}"]'
_SELECTORS = {
    WHOLE: _IS_GPU,
    SHARE: _SHARED,
    ISOLATED: f'{_SHARED} && device.attributes["{DRIVER}"].memoryIsolated',
    "gpu-core.gpuagent.io": f'{_SHARED} && device.attributes["{DRIVER}"].computeIsolated',
}


def classes(resource: str = "") -> list[Json]:
    """The chart's DeviceClasses."""
    found: list[Json] = []
    for name, expression in _SELECTORS.items():
        spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
        if name == WHOLE and resource:
            spec["extendedResourceName"] = resource
        found.append({"metadata": {"name": name}, "spec": spec})
    return found


def node(name, mode="dra", labels=None, taints=(), unschedulable=False, gpus=()):
    """A node; `gpus` are those that it publishes for limits."""
    annotations = {NODE_GPUS_ANNOTATION: node_gpus_text(NodeGpus(tuple(gpus)))} if gpus else {}
    return {
        "metadata": {
            "name": name,
            "labels": {"ack.node.gpu.schedule": mode, **(labels or {})},
            "annotations": annotations,
        },
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": "64", **OF_NODES}},
    }


def share_gpus(*units, usable=()):
    """GPUs for limits with these units; those at the positions in `usable` alone take pods, if it is given."""
    return [NodeGpu(n, memory=amount, usable=not usable or n in usable) for n, amount in enumerate(units)]


def gpu(
    minor: int, gib: int = 80, taint: str = "", value: str = "", sharers: int = 20, **attributes: bool | int | str
) -> Json:
    """A GPU as the agent publishes it."""
    values: dict[str, Json] = {
        "type": {"string": "gpu"},
        "minor": {"int": minor},
        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
        "driverVersion": {"version": "580.95.5"},
        "memoryIsolated": {"bool": True},
        "computeIsolated": {"bool": True},
        "nvlinkDomain": {"string": f"gpu-{minor}"},
    }
    for name, found in attributes.items():
        kind = "bool" if isinstance(found, bool) else "int" if isinstance(found, int) else "string"
        values[name] = {kind: found}
    memory = f"{gib}Gi"
    within = {"min": "1Gi", "step": "1Gi", "max": memory}
    cores = {"min": "0", "step": "5", "max": "100"}
    device: Json = {
        "name": f"gpu-{minor}",
        "allowMultipleAllocations": True,
        "attributes": values,
        "capacity": {
            "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": within}},
            "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": cores}},
            "sharers": {"value": str(sharers), "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
    }
    if taint:
        device["taints"] = [{"key": f"{DRIVER}/{taint}", "value": value, "effect": "NoSchedule"}]
    return device


def slice_of(name: str, *devices: Json, driver: str = DRIVER, generation: int = 1, count: int = 1) -> Json:
    return {
        "metadata": {"name": f"{name}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": name,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def request(device_class: str = SHARE, name: str = "gpu", count: int = 1, cel: str = "", **amounts: str) -> Json:
    exactly: Json = {"deviceClassName": device_class, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def claim(name: str, *requests: Json, constraints: Iterable[Json] = (), namespace: str = "default") -> Json:
    spec = {"devices": {"requests": list(requests), "constraints": list(constraints)}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {}}


def held(name, node_name, *devices, memory="80Gi", cores="0", users=("other",), namespace="default"):
    """A claim that has these devices of a node."""
    consumed = {"memory": memory, "cores": cores, "sharers": "1"}
    results = []
    for device in devices:
        results.append({"driver": DRIVER, "pool": node_name, "device": device, "consumedCapacity": consumed})
    fields = [{"key": "metadata.name", "operator": "In", "values": [node_name]}]
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    reserved = [{"resource": "pods", "name": user} for user in users]
    return claim(name, request(), namespace=namespace) | {
        "status": {"allocation": allocation, "reservedFor": reserved},
    }


def pod(*claims, template="", made="", name="chat", limits=None, gates=(), said="0/1 nodes are available", **spec):
    """A pod that waits. With `template`, its claim is that of the template, as soon as it is `made`."""
    references = [{"name": f"c{n}", "resourceClaimName": each} for n, each in enumerate(claims)]
    statuses = []
    if template:
        references.append({"name": "t", "resourceClaimTemplateName": template})
        if made:
            statuses.append({"name": "t", "resourceClaimName": made})
    conditions = []
    if gates:
        # As the API server writes it when the pod is created.
        words = "Scheduling is blocked due to non-empty scheduling gates"
        conditions.append({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": words})
    elif said:
        conditions.append({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said})
    labels = spec.pop("labels", {})
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels},
        "spec": {
            "resourceClaims": references,
            "schedulingGates": [{"name": gate} for gate in gates],
            "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
            **spec,
        },
        "status": {"phase": "Pending", "conditions": conditions, "resourceClaimStatuses": statuses},
    }


def cluster_of(nodes=(), slices=(), claims=(), device_classes=None, pods=(), templates=(), read=None):
    """The cluster as the tool reads it; `read` replaces what was read."""
    cluster = Cluster()
    for each in nodes:
        cluster.node(each)
    for each in pods:
        cluster.pod(each)
    facts = [read_claim(each) for each in claims]
    found = classes() if device_classes is None else device_classes
    values = {
        "published": published(filter(None, map(read_slice, slices))),
        "claims": {each.name: each for each in facts},
        "classes": {each.name: each for each in map(read_class, found)},
        "templates": templates,
        "sites": cluster.usage.pods.sites,
        "modes": cluster.modes,
    }
    cluster.claims = ClaimCluster(**(values | (read or {})))
    return cluster


def why(waiting, events=(), **given):
    """The sentence about a pod. All objects are read as if they came over the network."""
    found = json.loads(json.dumps(waiting))
    return pod_reason(found, {"items": list(events)}, cluster_of(**given))
