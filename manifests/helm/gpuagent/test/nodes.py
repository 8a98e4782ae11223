"""What `helm test` runs: is every agent ready, and what does its node advertise?

It runs in a pod of the chart, with the agent's service account and without this project's packages. It reads the
agents' pods, their nodes and the nodes with the mode label, and prints a line for each node. It ends with 1 if a node
lacks something, if a labeled node has no agent, or if there is no agent.
"""

import json
import os
import re
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGENTS = "app.kubernetes.io%2Fname%3Dgpuagent%2Capp.kubernetes.io%2Fcomponent%3Dagent"
MODE = "ack.node.gpu.schedule"
LABELED = f"/api/v1/nodes?labelSelector={MODE}&limit=200"
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu")
WITHOUT_AMOUNTS = ("default", "dra")
"""Modes that by design offer nothing of RESOURCES: NVIDIA's own plugin or ResourceClaims give GPUs there."""
INVALID_LABEL = "InvalidModeLabel"
"""The problem of a label that names no mode. The node serves, but not in the wanted mode."""
IN_FORCE = re.compile(r"mode ([a-z_]+), ")
"""How the message of the node's condition begins. Problems follow, each after `; `."""
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


def verdict(get: Get, namespace: str, *, serves_every_labeled: bool = True) -> tuple[list[str], bool]:
    """A line for each node that has an agent or should have one, and whether all is well.

    `serves_every_labeled`: no value of the chart keeps the agent off some of the labeled nodes.
    """
    pods = get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={AGENTS}")["items"]
    found = [of_node(get, pod) for pod in sorted(pods, key=node_of)]
    served = {node_of(pod) for pod in pods}
    for name in labeled_nodes(get):
        if name not in served:
            without = f"{name}: has the label {MODE}, and no agent's pod. "
            if serves_every_labeled:
                found.append((f"{without}Describe the agent's DaemonSet", False))
            else:
                found.append((f"{without}The chart's values choose between labeled nodes", True))
    if not pods and all(is_well for _, is_well in found):
        return ["No node has an agent. Label one: kubectl label node NODE ack.node.gpu.schedule=share"], False
    return [line for line, _ in found], all(is_well for _, is_well in found)


def node_of(pod: Json) -> str:
    """The name of the pod's node; empty while it has none."""
    return str(pod["spec"].get("nodeName", ""))


def labeled_nodes(get: Get) -> Iterator[str]:
    """The names of the nodes with the mode label, a page at a time: the pod has little memory."""
    page = get(LABELED)
    while True:
        for node in page["items"]:
            yield str(node["metadata"]["name"])
        rest = page.get("metadata", {}).get("continue")
        if not rest:
            return
        page = get(f"{LABELED}&continue={rest}")


def of_node(get: Get, pod: Json) -> tuple[str, bool]:
    """The line of one agent's node, and whether the node lacks nothing."""
    name = node_of(pod)
    if not name:
        return f"{pod['metadata']['name']}: not scheduled", False
    if condition(pod, "Ready").get("status") != "True":
        return f"{name}: the agent's pod {pod['metadata']['name']} is not ready. Describe it", False
    # The agent's account may list nodes, and not get one.
    nodes = get(f"/api/v1/nodes?fieldSelector=metadata.name%3D{name}")["items"]
    if not nodes:
        return f"{name}: the node is gone, and its agent's pod is still there", False
    line, is_well = offered(nodes[0])
    return f"{name}: {line}", is_well


def offered(node: Json) -> tuple[str, bool]:
    """What a node with a ready agent offers, with its problems, and whether it lacks nothing."""
    ready = condition(node, "GPUAgentReady")
    message = str(ready.get("message", "the agent has not reported its condition yet"))
    if ready.get("status") != "True":
        return message, False
    # The label says which mode is wanted. The agent says which one is in force.
    begin = IN_FORCE.match(message)
    mode = begin[1] if begin else "unknown"
    _, _, problems = message.partition("; ")
    and_problems = f"; {problems}" if problems else ""
    if INVALID_LABEL in problems:
        return f"mode {mode}{and_problems}", False
    allocatable = node["status"].get("allocatable", {})
    amounts = {key: allocatable.get(key, "0") for key in RESOURCES}
    advertised = ", ".join(f"{key} {amount}" for key, amount in amounts.items() if amount != "0")
    if not advertised and mode not in WITHOUT_AMOUNTS:
        wanted = " or ".join(RESOURCES)
        return f"mode {mode}, but kubelet allocates none of {wanted}{and_problems}", False
    return f"ready, mode {mode}, {advertised or 'nothing in limits'}{and_problems}", True


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
    serves_every_labeled = os.environ.get("SERVES_EVERY_LABELED_NODE") == "true"
    until = time.monotonic() + PATIENCE_S
    while True:
        lines, all_well = verdict(get, namespace, serves_every_labeled=serves_every_labeled)
        if all_well or time.monotonic() > until:
            print(*lines, sep="\n")
            return 0 if all_well else 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
