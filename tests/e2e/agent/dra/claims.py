"""Claims for GPUs of the node, and what became of them: at the API server, on disk and in the containers."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpuagent.domain.pods.quantity import amount
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest
from tests.e2e.cluster.runtime import containers

DRIVER = "gpu.gpuagent.io"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SLICE = f"{NODE_NAME}-{DRIVER}"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
CDI_DIR = Path("/var/run/cdi")
PREPARED_AGAIN = "Had kubelet prepare a pod's claims again"
"""What the agent logs when it has kubelet try again. `python -m bench --only claims` measures how long such pods wait."""


def of(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    """An object of resource.k8s.io."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def devices(device_class: str, count: int = 1, **amounts: str) -> dict[str, Any]:
    """The spec of a claim with one request."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def template(name: str, device_class: str, count: int = 1, **amounts: str) -> dict[str, Any]:
    return of("ResourceClaimTemplate", name, {"spec": devices(device_class, count, **amounts)}, "default")


def claiming(name: str, template_name: str, **given: Any) -> dict[str, Any]:
    """A pod with a claim of its own from the template."""
    manifest = pod_manifest(name, {}, **given)
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "main"}]}
    manifest["spec"]["resourceClaims"] = [{"name": "main", "resourceClaimTemplateName": template_name}]
    return manifest


def sharing(name: str, claim: str) -> dict[str, Any]:
    """A pod with a claim that other pods may have too."""
    manifest = pod_manifest(name, {})
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return manifest


def label_default(cluster: Cluster, value: str | None) -> None:
    """Mark the namespace `default` as one of administrators, or no longer."""
    merged: dict[str, Any] = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": value}}}
    cluster.client.expect("PATCH", "/api/v1/namespaces/default", merged, "application/merge-patch+json")


def wait_published(node: Node) -> None:
    """Wait until the node's slices are what its agent makes of the node now.

    Slices outlast an agent that ends, and a new one is ready before it has changed them. One that stays changes them a
    moment after the last claim has gone. Until then, the scheduler would go by the order and the taints of the test
    before. So they are deleted, and the agent creates them again.
    """
    former = _own_slices(node)
    for name in former:
        node.cluster.api("DELETE", f"{SLICES}/{name}")
    node.cluster.client.wait(SLICES, SLICE, bool)
    end = time.monotonic() + WAIT_S
    while not _is_whole(slices := _own_slices(node)):
        assert time.monotonic() < end, slices.keys()
        time.sleep(0.05)
    if former and _contents(former) != _contents(slices):
        node.cluster.restart_scheduler()


def _own_slices(node: Node) -> dict[str, dict[str, Any]]:
    """The specs of the driver's slices by name."""
    stored = node.cluster.client.expect("GET", SLICES)["items"]
    return {one["metadata"]["name"]: one["spec"] for one in stored if one["spec"]["driver"] == DRIVER}


def _is_whole(slices: dict[str, dict[str, Any]]) -> bool:
    """Whether all slices of the pool are there."""
    pools = [spec["pool"] for spec in slices.values()]
    generations = {pool["generation"] for pool in pools}
    return len(generations) == 1 and all(pool["resourceSliceCount"] == len(pools) for pool in pools)


def _contents(slices: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the scheduler goes by."""
    parts = ("devices", "sharedCounters")
    return {name: {part: spec.get(part) for part in parts} for name, spec in slices.items()}


def wait_files(node: Node, wanted: int) -> None:
    """Wait until so many claims have a record, and so many a CDI specification."""
    end = time.monotonic() + WAIT_S
    while (found := (len(files(node.agent.state_dir / "claims")), len(files(CDI_DIR)))) != (wanted, wanted):
        assert time.monotonic() < end, found
        time.sleep(0.05)


def wait_prepared(node: Node) -> float:
    """Wait until every bound pod has a sandbox, which kubelet makes once the claims are prepared.

    Returns:
        Seconds that the last of them waited.
    """
    since, longest = dict[str, float](), 0.0
    while waiting := [
        one["metadata"]["name"] for one in node.cluster.client.expect("GET", PODS)["items"] if _waits(one)
    ]:
        now = time.monotonic()
        since = {name: since.get(name, now) for name in waiting}
        longest = max(longest, *(now - began for began in since.values()))
        assert longest < WAIT_S, f"{waiting} wait for their claims"
        time.sleep(0.05)
    return longest


def _waits(pod: dict[str, Any]) -> bool:
    """Whether a node has the pod, and kubelet has not made its sandbox."""
    conditions = pod["status"].get("conditions", ())
    sandboxed = any(one["type"] == "PodReadyToStartContainers" and one["status"] == "True" for one in conditions)
    return bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"] and not sandboxed


def files(directory: Path) -> list[Path]:
    return [*directory.glob("*.json")]


def tainted(found: dict[str, Any]) -> list[str]:
    return [device["name"] for device in found["spec"]["devices"] if device.get("taints")]


def uid(found: dict[str, Any] | None) -> str:
    return str(found["metadata"]["uid"]) if found else ""


def audit_claims(node: Node) -> Counter[str]:
    """Compare API server and containers; device name to the number of claims on it.

    No GPU is given beyond its memory, and each container has the GPUs of its claim.
    """
    found = {one["metadata"]["name"]: one for one in node.cluster.api("GET", CLAIMS)[1]["items"]}
    uuids, memory = _published(node)
    used, shares = Counter[str](), Counter[str]()
    gpus: dict[str, set[str]] = {}
    for name, claim in found.items():
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        for result in results:
            used[result["device"]] += amount(result["consumedCapacity"]["memory"]) or 0
            shares[result["device"]] += 1
        gpus[name] = {uuids[result["device"]] for result in results}
    assert all(units <= memory[device] for device, units in used.items()), used
    items = node.cluster.client.expect("GET", PODS)["items"]
    pods = {one["metadata"]["uid"]: one for one in items if "deletionTimestamp" not in one["metadata"]}
    for container in containers():
        if container.name and container.alive and (pod := pods.get(container.pod_uid)):
            claims = {one["name"]: one["resourceClaimName"] for one in _statuses(pod)}
            has = node.cluster.exec_env(container.pod, container.name)["NVIDIA_VISIBLE_DEVICES"].split(",")
            claim_name = claims.get("main") or claims["gpu"]
            assert set(has) == gpus[claim_name], (container, claim_name)
    return shares


def audit_files(node: Node) -> None:
    """Every file is of a claim that there is."""
    held = {claim["metadata"]["uid"] for claim in node.cluster.client.expect("GET", CLAIMS)["items"]}
    for path in (*files(node.agent.state_dir / "claims"), *files(CDI_DIR)):
        assert any(one in path.name for one in held), f"{path} is of no claim"


def _published(node: Node) -> tuple[dict[str, str], dict[str, int]]:
    """Device name to UUID, and to its memory in bytes."""
    spec = node.cluster.client.expect("GET", f"{SLICES}/{SLICE}")["spec"]
    uuids = {one["name"]: one["attributes"]["uuid"]["string"] for one in spec["devices"]}
    return uuids, {one["name"]: amount(one["capacity"]["memory"]["value"]) or 0 for one in spec["devices"]}


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    named = [
        {"name": one["name"], "resourceClaimName": one["resourceClaimName"]}
        for one in pod["spec"].get("resourceClaims", ())
        if "resourceClaimName" in one
    ]
    return [*pod["status"].get("resourceClaimStatuses", ()), *named]
