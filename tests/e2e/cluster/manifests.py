"""Manifests for the pods of the tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.build import BUSYBOX_IMAGE as IMAGE
from tests.e2e.build import PAUSE_IMAGE

__all__ = ["IMAGE", "NODE_NAME", "PAUSE_IMAGE", "Json", "pod_manifest"]

NODE_NAME = "gpu-node"
# Ends at SIGTERM: the first process of a container ignores the signals it has no handler for.
_IDLE = ("/bin/sh", "-c", "trap 'exit 0' TERM INT; sleep 2147483647 & wait")

Json = dict[str, Any]


def pod_manifest(
    name: str,
    limits: Mapping[str, int | str],
    *,
    command: Sequence[str] | None = None,
    init: Sequence[Json] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str | None = None,
    restart_policy: str = "Never",
) -> Json:
    """A pod with one container `main`; ``init`` takes whole containers, see `container`.

    ``node`` binds it past the scheduler.
    """
    spec: Json = {
        "hostNetwork": True,
        "restartPolicy": restart_policy,
        # Zero would make every deletion a forced one: gone from the API before it is gone from the node.
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container("main", limits, command=command)],
    }
    if init:
        spec["initContainers"] = list(init)
    if node is not None:
        spec["nodeName"] = node
    metadata: Json = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def container(
    name: str,
    limits: Mapping[str, int | str],
    *,
    command: Sequence[str] | None = None,
    restart_policy: str | None = None,
) -> Json:
    """One container; as an init container with ``restart_policy="Always"`` it is a sidecar."""
    result: Json = {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command or _IDLE),
        "resources": {"limits": {key: str(amount) for key, amount in limits.items()}},
    }
    if restart_policy is not None:
        result["restartPolicy"] = restart_policy
    return result
