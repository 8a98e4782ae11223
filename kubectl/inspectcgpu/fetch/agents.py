"""Queries the agents of nodes through the API server: which nodes have an agent, its address, and its answer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import list_pages
from inspectcgpu.fetch.fetching import Page, Task, fetch
from inspectcgpu.read.agent_page import AgentView
from inspectcgpu.read.usage import Usage

NOT_AN_AGENT = "what answers is not a gpuagent, or one of another version"
LABEL = "app.kubernetes.io/name=gpuagent,app.kubernetes.io/component=agent"
USE_NOT_SEEN = (
    "its agent does not report what containers use, only their limits: it does not see the host's processes, because "
    "the chart value metrics.perContainerUse is false or the node is itself a container (as in kind)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The namespace and port of agents, and the timeout of their answers (see `fetching.deadline_s`).

    With `every_agent`, agents are also queried where labels and annotations show all holders.
    """

    namespace: str = "kube-system"
    port: int = 9445
    timeout_s: float = 5.0
    every_agent: bool = False


@dataclass(slots=True)
class Answers:
    """The agents' answers.

    Attributes:
        unseen: node without an answer to the reason.
        not_queried: nodes without a known agent. If the agents' pods could not be listed, one may run there.
        pods_problem: why the agents' pods could not be listed; empty if they could.
    """

    views: dict[str, AgentView] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    not_queried: tuple[str, ...] = ()
    pods_problem: str = ""
    usage: dict[PodName, Usage] = field(default_factory=dict)
    usage_problem: str = ""


def ask(
    client: Client, asking: Asking, nodes: Collection[str], *, marked: Collection[str], usage_of: Collection[str] = ()
) -> Answers:
    """Query these nodes' agents for the holders of GPUs, and those in `usage_of`, a subset, also for usage.

    A node that is not `marked` as having an agent, and on which no agent's pod runs, is not queried. Never raises.
    """
    answers = Answers()
    if not nodes:
        return answers
    pods, problem = _pods(client, asking.namespace)
    absent = {node for node in nodes if node not in pods and node not in marked}
    answers.not_queried = tuple(node for node in nodes if node in absent)
    answers.pods_problem = problem
    nodes = [node for node in nodes if node not in absent]
    tasks = [Task(node, _path(asking, pods, node), node in usage_of) for node in nodes]
    pages = fetch(client, tasks, asking.timeout_s)
    # Why the usage on a node is not known.
    usage_reasons: dict[str, str] = {}
    for node in usage_of:
        if node in absent:
            usage_reasons[node] = f"no gpuagent runs on it{_but(problem)}"
    for node in nodes:
        page = pages[node]
        if page.view:
            answers.views[node] = page.view
        else:
            answers.unseen[node] = _unseen(page, problem, has_pod=node in pods, asking=asking)
        answers.usage.update(page.usage or {})
        if node in usage_of:
            reason = answers.unseen.get(node) or _use_unknown(page)
            if reason:
                usage_reasons[node] = reason
    answers.usage_problem = _first_reason(usage_reasons)
    return answers


def _first_reason(reasons: Mapping[str, str]) -> str:
    """The first node with its reason, and how many more nodes there are; "" without any."""
    if not reasons:
        return ""
    node, reason = next(iter(reasons.items()))
    others = len(reasons) - 1
    more = f", and {others} more nodes" if others else ""
    return f"node {node}: {reason}{more}"


def _use_unknown(page: Page) -> str:
    """Why the usage of containers is not known; "" where it is."""
    if page.usage is None:
        return page.metrics_problem or "its agent's metrics do not show what containers use"
    is_unseen = page.usage and all(usage.used is None for usage in page.usage.values())
    return USE_NOT_SEEN if is_unseen else ""


def _pods(client: Client, namespace: str) -> tuple[Mapping[str, str], str]:
    """Node to name of the agent's pod on it, and the reason if the pods could not be read."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    try:
        pods = list_pages(client, path, _running, {"labelSelector": LABEL})
    except KubeError as err:
        return {}, str(err)
    return dict(pods.items), ""


def _running(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """The node and the name of a pod that can be asked; None for any other pod."""
    node = text(mapping(pod.get("spec")).get("nodeName"))
    name = text(mapping(pod.get("metadata")).get("name"))
    status = mapping(pod.get("status"))
    is_running = status.get("phase") == "Running" and status.get("podIP")
    return (node, name) if node and is_running else None


def _path(asking: Asking, pods: Mapping[str, str], node: str) -> str:
    """The path to the agent: through its pod, or through the node for an agent that is a service of the host."""
    if node in pods:
        where = f"namespaces/{quote(asking.namespace, safe='')}/pods/{quote(pods[node])}"
    else:
        where = f"nodes/{quote(node)}"
    return f"/api/v1/{where}:{asking.port}/proxy"


def _unseen(page: Page, pods_problem: str, *, has_pod: bool, asking: Asking) -> str:
    """Why a node's agent shows no GPUs."""
    if page.answered:
        return NOT_AN_AGENT
    if pods_problem:
        return f"the agents' pods cannot be listed: {pods_problem}"
    if not has_pod:
        return f"no pod with label {LABEL} runs on it in {asking.namespace}; by the node: {page.problem}"
    return page.problem


def _but(pods_problem: str) -> str:
    return f", or its pods cannot be listed: {pods_problem}" if pods_problem else ""
