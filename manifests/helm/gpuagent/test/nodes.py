"""What `helm test` runs: is every agent ready, and what does its node advertise?

It runs in a pod of the chart, with the agent's service account and without this project's packages. It reads the
agents' pods and their nodes, and prints a line for each node. It ends with 1 if a node lacks something, or if there is
no agent.
"""

import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGENTS = "app.kubernetes.io%2Fname%3Dgpuagent%2Capp.kubernetes.io%2Fcomponent%3Dagent"
MODE = "ack.node.gpu.schedule"
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu")
PATIENCE_S = 60.0
"""An agent that has just started needs some seconds until kubelet has taken its amounts."""
PAUSE_S = 2.0

Json = Mapping[str, Any]
Get = Callable[[str], Json]
"""Answers of the API server by path."""


def api_server() -> Get:
    """The API server, as a pod reaches it."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]" if ":" in host else host
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    token = (ACCOUNT / "token").read_text(encoding="ascii")

    def get(path: str) -> Json:
        request = urllib.request.Request(
            f"https://{address}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:  # noqa: S310 (always https)
            body: Json = json.load(answer)
        return body

    return get


def verdict(get: Get, namespace: str) -> tuple[list[str], bool]:
    """A line for each node that has an agent, and whether all is well."""
    pods = get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={AGENTS}")["items"]
    if not pods:
        return ["No node has an agent. Label one: kubectl label node NODE ack.node.gpu.schedule=share"], False
    lines = []
    all_well = True
    for pod in sorted(pods, key=lambda pod: str(pod["spec"].get("nodeName", ""))):
        line, is_well = of_node(get, pod)
        lines.append(line)
        all_well = all_well and is_well
    return lines, all_well


def of_node(get: Get, pod: Json) -> tuple[str, bool]:
    """The line of one agent's node, and whether the node lacks nothing."""
    name = pod["spec"].get("nodeName")
    if name is None:
        return f"{pod['metadata']['name']}: not scheduled", False
    if condition(pod, "Ready").get("status") != "True":
        return f"{name}: the agent's pod {pod['metadata']['name']} is not ready. Describe it", False
    # The agent's account may list nodes, and not get one.
    (node,) = get(f"/api/v1/nodes?fieldSelector=metadata.name%3D{name}")["items"]
    ready = condition(node, "GPUAgentReady")
    if ready.get("status") != "True":
        return f"{name}: {ready.get('message', 'the agent has not reported its condition yet')}", False
    mode = node["metadata"].get("labels", {}).get(MODE, "default")
    amounts = [f"{key} {node['status']['allocatable'].get(key, '0')}" for key in RESOURCES]
    advertised = ", ".join(amount for amount in amounts if not amount.endswith(" 0"))
    return f"{name}: ready, mode {mode}, {advertised or 'nothing in limits'}", True


def condition(item: Json, kind: str) -> Json:
    """A condition of a pod or node by its type; empty if there is none."""
    for found in item.get("status", {}).get("conditions", ()):
        if found["type"] == kind:
            return dict(found)
    return {}


def main() -> int:
    """Print what there is as soon as all is well, or after PATIENCE_S."""
    get = api_server()
    namespace = (ACCOUNT / "namespace").read_text(encoding="ascii")
    until = time.monotonic() + PATIENCE_S
    while True:
        lines, all_well = verdict(get, namespace)
        if all_well or time.monotonic() > until:
            print(*lines, sep="\n")
            return 0 if all_well else 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
