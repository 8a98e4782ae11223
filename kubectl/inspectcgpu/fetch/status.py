"""Reads the whole status page of one node's agent, and says what is known where the agent does not answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gpuagent.domain.fleet.node_problems import CONDITION_TYPE, MOST_MESSAGE
from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, sentence, text
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import list_pages
from gpuagent.pages.drawing import STATUS_KEYS
from inspectcgpu.fetch.agents import LABEL, NOT_AN_AGENT
from inspectcgpu.fetch.no_such_node import no_such_nodes
from inspectcgpu.read.waits import waits_for

_NOT_FOUND = 404


def read_status(client: Client, namespace: str, port: int, node: str) -> dict[str, Any]:
    """The page ``/status`` of the node's agent.

    Args:
        client: the API server's.
        namespace: of the agents' pods.
        port: of their pages.
        node: name of the node.

    Raises:
        KubeError: there is no such node, or its agent does not answer. The text has what its pod and the node's
            condition say.
    """
    name = quote(node, safe="")
    try:
        stored = client.get(f"/api/v1/nodes/{name}")
    except ApiError as err:
        if err.status == _NOT_FOUND:
            (sentence,) = no_such_nodes(client, [node])
            raise KubeError(sentence) from err
        raise
    pods = _agents_pods(client, namespace, node)
    has_agent = _condition(stored) is not None
    if pods:
        folder = f"namespaces/{quote(namespace, safe='')}/pods/{quote(_name(pods[0]), safe='')}"
    elif has_agent:
        # The agent may be a service of the host.
        folder = f"nodes/{name}"
    else:
        text_of_error = f"no gpuagent runs on node {node}: no pod with label {LABEL} is on it in namespace {namespace}"
        raise KubeError(f"{text_of_error}. --agent-namespace names another namespace")
    try:
        return _page(client.text(f"/api/v1/{folder}:{port}/proxy/status"))
    except KubeError as err:
        known = [f"the agent of node {node} could not be asked: {err}", *_of_pods(pods), *_of_node(stored)]
        raise KubeError(". ".join(known)) from err


def _agents_pods(client: Client, namespace: str, node: str) -> list[dict[str, Any]]:
    """The node's agent, one that runs first: while it is replaced there may be two."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    selectors = {"labelSelector": LABEL, "fieldSelector": f"spec.nodeName={node}"}
    pods = list_pages(client, path, lambda pod: pod, selectors).items
    return sorted(pods, key=lambda pod: not _is_running(pod))


def _is_running(pod: Mapping[str, Any]) -> bool:
    is_deleted = "deletionTimestamp" in mapping(pod.get("metadata"))
    return mapping(pod.get("status")).get("phase") == "Running" and not is_deleted


def _page(answer: str) -> dict[str, Any]:
    try:
        page = json.loads(answer)
    except (ValueError, RecursionError):
        page = None
    if not isinstance(page, dict) or STATUS_KEYS - page.keys():
        raise KubeError(NOT_AN_AGENT)
    return page


def _of_pods(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the agent's pod does not run."""
    if not pods:
        return []
    cause = waits_for(pods[0])
    return [f"Its pod {_name(pods[0])} does not run: {cause}"] if cause else []


def _of_node(node: Mapping[str, Any]) -> list[str]:
    """What the node's condition says, which the agent wrote last."""
    condition = _condition(node)
    if condition is None:
        return []
    state = f"The node's condition {CONDITION_TYPE} is {text(condition.get('status'))}"
    since = text(condition.get("lastTransitionTime"))
    reason = sentence(condition.get("reason"))
    message = sentence(condition.get("message"), MOST_MESSAGE)
    return [f"{state} since {since}: {reason}: {message}"]


def _condition(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for condition in mappings(mapping_at(node, "status").get("conditions")):
        if condition.get("type") == CONDITION_TYPE:
            return condition
    return None


def _name(pod: Mapping[str, Any]) -> str:
    return text(mapping_at(pod, "metadata").get("name"))
