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
from typing import Any, NamedTuple

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGENTS = "app.kubernetes.io%2Fname%3Dgpuagent%2Capp.kubernetes.io%2Fcomponent%3Dagent"
MODE = "ack.node.gpu.schedule"
PAGE = 50
"""Objects in one answer. A node can have 100 KiB, and this pod has 64 MiB: whole lists of 5,000 took 259 MiB."""
LABELED = f"/api/v1/nodes?labelSelector={MODE}&limit={PAGE}"
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


class Agent(NamedTuple):
    """What counts of an agent's pod. The whole pods of 5,000 nodes would not fit into the memory of this one."""

    node: str
    """Empty while the pod has none."""
    pod: str
    is_ready: bool


class Finding(NamedTuple):
    """A line about a node, and whether it lacks nothing."""

    line: str
    is_well: bool


def verdict(get: Get, namespace: str, *, serves_every_labeled: bool = True) -> tuple[list[str], bool]:
    """A line for each node that has an agent or should have one, and whether all is well.

    `serves_every_labeled`: no value of the chart keeps the agent off some of the labeled nodes.
    """
    agents = sorted(agents_of(get, namespace))
    served = {agent.node for agent in agents}
    offers: dict[str, Finding] = {}
    without_agent = []
    for node in every(get, LABELED):
        name = str(node["metadata"]["name"])
        if name in served:
            offers[name] = offered(node)
        else:
            without_agent.append(name)
    findings = [of_agent(get, agent, offers) for agent in agents]
    findings += [of_labeled(name, serves_every_labeled=serves_every_labeled) for name in without_agent]
    all_well = all(finding.is_well for finding in findings)
    if not agents and all_well:
        return ["No node has an agent. Label one: kubectl label node NODE ack.node.gpu.schedule=share"], False
    return [finding.line for finding in findings], all_well


def every(get: Get, path: str) -> Iterator[Json]:
    """The objects of a list, a page at a time."""
    page = get(path)
    while True:
        yield from page["items"]
        rest = page.get("metadata", {}).get("continue")
        if not rest:
            return
        page = get(f"{path}&continue={rest}")


def agents_of(get: Get, namespace: str) -> Iterator[Agent]:
    """The agents' pods."""
    for pod in every(get, f"/api/v1/namespaces/{namespace}/pods?labelSelector={AGENTS}&limit={PAGE}"):
        node = str(pod["spec"].get("nodeName", ""))
        is_ready = condition(pod, "Ready").get("status") == "True"
        yield Agent(node, str(pod["metadata"]["name"]), is_ready)


def of_labeled(node: str, *, serves_every_labeled: bool) -> Finding:
    """About a labeled node without an agent."""
    without = f"{node}: has the label {MODE}, and no agent's pod. "
    if serves_every_labeled:
        return Finding(f"{without}Describe the agent's DaemonSet", is_well=False)
    return Finding(f"{without}The chart's values choose between labeled nodes", is_well=True)


def of_agent(get: Get, agent: Agent, offers: Mapping[str, Finding]) -> Finding:
    """About one agent's node. `offers` has those of the labeled nodes."""
    if not agent.node:
        return Finding(f"{agent.pod}: not scheduled", is_well=False)
    if not agent.is_ready:
        return Finding(f"{agent.node}: the agent's pod {agent.pod} is not ready. Describe it", is_well=False)
    offer = offers.get(agent.node)
    if offer is None:
        # The agent keeps serving a node whose label was removed. Its account may list nodes, and not get one.
        nodes = get(f"/api/v1/nodes?fieldSelector=metadata.name%3D{agent.node}")["items"]
        if not nodes:
            return Finding(f"{agent.node}: the node is gone, and its agent's pod is still there", is_well=False)
        offer = offered(nodes[0])
    return Finding(f"{agent.node}: {offer.line}", offer.is_well)


def offered(node: Json) -> Finding:
    """What a node with a ready agent offers, with its problems."""
    ready = condition(node, "GPUAgentReady")
    message = str(ready.get("message", "the agent has not reported its condition yet"))
    if ready.get("status") != "True":
        return Finding(message, is_well=False)
    mode = mode_in_force(message)
    problems = problems_in(message)
    and_problems = f"; {problems}" if problems else ""
    if INVALID_LABEL in problems:
        return Finding(f"mode {mode}{and_problems}", is_well=False)
    amounts = amounts_of(node)
    if not amounts and mode not in WITHOUT_AMOUNTS:
        wanted = " or ".join(RESOURCES)
        return Finding(f"mode {mode}, but kubelet allocates none of {wanted}{and_problems}", is_well=False)
    return Finding(f"ready, mode {mode}, {amounts or 'nothing in limits'}{and_problems}", is_well=True)


def mode_in_force(message: str) -> str:
    """The mode in which the agent serves. The node's label says only which one is wanted."""
    begin = IN_FORCE.match(message)
    return begin[1] if begin else "unknown"


def problems_in(message: str) -> str:
    """The problems of the node; empty if there are none."""
    _, _, problems = message.partition("; ")
    return problems


def amounts_of(node: Json) -> str:
    """What kubelet allocates of RESOURCES, as text; empty if it is nothing."""
    allocatable = node["status"].get("allocatable", {})
    amounts = {resource: allocatable.get(resource, "0") for resource in RESOURCES}
    return ", ".join(f"{resource} {amount}" for resource, amount in amounts.items() if amount != "0")


def condition(item: Json, kind: str) -> Json:
    """A condition of a pod or node by its type; empty if there is none."""
    for candidate in item.get("status", {}).get("conditions", ()):
        if candidate["type"] == kind:
            return dict(candidate)
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
