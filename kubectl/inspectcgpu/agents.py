"""Asking the agents of nodes, through the API server: many at a time, for a short time in all."""

import queue
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods import PodName
from gpuagent.domain.shape import mapping, text
from gpuagent.kube.client import Client
from gpuagent.kube.errors import ApiError, KubeError
from gpuagent.kube.pages import list_pages
from inspectcgpu.agentpage import AgentView, read_page
from inspectcgpu.usage import Usage, read_usage

LABEL = "app.kubernetes.io/name=gpuagent,app.kubernetes.io/component=agent"
AT_A_TIME = 16
USE_NOT_SEEN = (
    "its agent does not tell what containers use, only what they may: it does not see the host's processes "
    "(chart value metrics.perContainerUse)"
)
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Where agents are, and how long they are waited for, all of them together."""

    namespace: str = "kube-system"
    port: int = 9445
    timeout_s: float = 5.0


@dataclass(slots=True)
class Answers:
    """What came back; `unseen` is node to why nothing did."""

    views: dict[str, AgentView] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    usage: dict[PodName, Usage] = field(default_factory=dict)
    usage_problem: str = ""


def ask(
    client: Client, asking: Asking, nodes: Collection[str], *, marked: Collection[str], usage_of: Collection[str] = ()
) -> Answers:
    """Ask these nodes' agents who has what, and those in `usage_of`, which are some of them, what is used.

    A node that is not `marked` as having an agent, and on which no pod of one runs, is not asked. Never raises.
    """
    answers = Answers()
    if not nodes:
        return answers
    ends = time.monotonic() + asking.timeout_s
    pods, problem = _pods(client, asking.namespace)
    absent = {node for node in nodes if node not in pods and node not in marked}
    nodes = [node for node in nodes if node not in absent]
    status = _fetch_all(client, asking, {node: _path(asking, pods, node, "status") for node in nodes}, ends)
    for node in nodes:
        page = status.texts.get(node)
        view = None if page is None else read_page(page)
        if view:
            answers.views[node] = view
        elif page is not None:
            answers.unseen[node] = "what answers is no gpuagent, or one of another version"
        else:
            answers.unseen[node] = _reason(status.problems[node], problem, has_pod=node in pods, asking=asking)
    users = [node for node in usage_of if node in answers.views]
    metrics = _fetch_all(client, asking, {node: _path(asking, pods, node, "metrics") for node in users}, ends)
    reasons = dict.fromkeys((node for node in usage_of if node in absent), f"no gpuagent runs on it{_but(problem)}")
    reasons |= {node: answers.unseen[node] for node in usage_of if node in answers.unseen}
    for node in users:
        page = metrics.texts.get(node)
        found = None if page is None else read_usage(page)
        if found is not None:
            answers.usage.update(found)
            if found and all(one.used is None for one in found.values()):
                reasons[node] = USE_NOT_SEEN
        else:
            untold = "its agent's metrics do not tell what containers use"
            reasons[node] = untold if page is not None else metrics.problems[node]
    if reasons:
        node, reason = next(iter(reasons.items()))
        more = f", and {len(reasons) - 1} more nodes" if len(reasons) > 1 else ""
        answers.usage_problem = f"node {node}: {reason}{more}"
    return answers


def _pods(client: Client, namespace: str) -> tuple[Mapping[str, str], str]:
    """Node to name of the agent's pod on it, and why there are none where that could not be asked."""

    def running(found: Mapping[str, Any]) -> tuple[str, str] | None:
        node, status = text(mapping(found.get("spec")).get("nodeName")), mapping(found.get("status"))
        there = node and status.get("phase") == "Running" and status.get("podIP")
        return (node, text(mapping(found.get("metadata")).get("name"))) if there else None

    try:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        return dict(list_pages(client, path, running, {"labelSelector": LABEL}).items), ""
    except KubeError as err:
        return {}, str(err)


def _path(asking: Asking, pods: Mapping[str, str], node: str, page: str) -> str:
    """By its pod; by the node where the agent has none, as one that runs as a service of the host."""
    if node in pods:
        where = f"namespaces/{quote(asking.namespace, safe='')}/pods/{quote(pods[node])}"
    else:
        where = f"nodes/{quote(node)}"
    return f"/api/v1/{where}:{asking.port}/proxy/{page}"


def _reason(problem: str, pods_problem: str, *, has_pod: bool, asking: Asking) -> str:
    if pods_problem:
        return f"the agents' pods cannot be listed: {pods_problem}"
    return problem if has_pod else f"no pod with label {LABEL} runs on it in {asking.namespace}; by the node: {problem}"


def _but(pods_problem: str) -> str:
    return f", or its pods cannot be listed: {pods_problem}" if pods_problem else ""


@dataclass(slots=True)
class _Pages:
    texts: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def _fetch_all(client: Client, asking: Asking, paths: Mapping[str, str], ends: float) -> _Pages:
    """GET all of them; what is not there when it `ends` (monotonic seconds) is not waited for."""
    pages = _Pages(problems=dict.fromkeys(paths, f"no answer within {asking.timeout_s:g} s"))
    todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, str | KubeError]] = queue.SimpleQueue()
    for item in paths.items():
        todo.put(item)
    # Daemons: one that waits for a silent agent must not hold up the end of the program.
    for _ in range(min(AT_A_TIME, len(paths))):
        threading.Thread(target=_fetch, args=(client, todo, done, ends), daemon=True).start()
    with suppress(queue.Empty):
        for _ in paths:
            node, found = done.get(timeout=max(0.01, ends - time.monotonic()))
            if isinstance(found, str):
                pages.texts[node] = found
                del pages.problems[node]
            else:
                pages.problems[node] = str(found)
    return pages


def _fetch(
    client: Client,
    todo: "queue.SimpleQueue[tuple[str, str]]",
    done: "queue.SimpleQueue[tuple[str, str | KubeError]]",
    ends: float,
) -> None:
    """Take paths until there is none, or it `ends`."""
    refused: KubeError | None = None
    with suppress(queue.Empty):
        while time.monotonic() < ends:
            node, path = todo.get_nowait()
            if refused:  # what RBAC refuses for one pod it refuses for all
                done.put((node, refused))
                continue
            try:
                done.put((node, client.text(path)))
            except KubeError as err:
                done.put((node, err))
                if isinstance(err, ApiError) and err.status == _FORBIDDEN:
                    refused = err
