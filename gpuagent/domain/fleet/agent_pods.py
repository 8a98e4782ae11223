"""Where the agents of nodes answer, as their own pods say.

A tenant may create pods with the agents' labels. So only the pods of one namespace count, which the operator names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, number, text

NAME_LABEL = "app.kubernetes.io/name"
COMPONENT_LABEL = "app.kubernetes.io/component"
NAME = "gpuagent"
COMPONENT = "agent"
PORT_NAME = "http"
DEFAULT_NAMESPACE = "kube-system"
DEFAULT_PORT = 9445
"""Of agents, until one of their pods says another one."""
_MOST_PORT = 65535
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}")
"""An IP address, as kubelet writes it."""


class AgentUnreadableError(Exception):
    """Why what an agent knows cannot be read, for people."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """The running agent of one node.

    Attributes:
        node: its name.
        address: IP address of the pod.
        port: of its pages.
    """

    node: str
    address: str
    port: int

    @property
    def url(self) -> str:
        """Of its pages, without a slash at the end."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


class AgentPods:
    """The agents' pods that the watch shows.

    Args:
        namespace: of the agents' pods; empty if no pod is to be taken for an agent.

    Attributes:
        port: of the latest agent that was seen.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.port = DEFAULT_PORT
        self._pods: dict[str, AgentPod] = {}

    def seen(self, pod: Mapping[str, Any]) -> None:
        """Take a Pod object (decoded JSON) as it is now; others than agents are passed over."""
        metadata = mapping(pod.get("metadata"))
        uid = text(metadata.get("uid"))
        agent = self._agent(pod)
        if agent is None:
            self._pods.pop(uid, None)
            return
        self._pods[uid] = agent
        self.port = agent.port

    def gone(self, uid: str) -> None:
        """Forget a pod."""
        self._pods.pop(uid, None)

    def by_node(self) -> Mapping[str, AgentPod]:
        """The agent of each node that has a running one."""
        return {pod.node: pod for pod in self._pods.values()}

    def _agent(self, pod: Mapping[str, Any]) -> AgentPod | None:
        """The agent; None if the pod is not a running one."""
        metadata = mapping(pod.get("metadata"))
        # A tenant may give a pod the agents' labels, but in its own namespaces only.
        is_in_namespace = bool(self.namespace) and metadata.get("namespace") == self.namespace
        if not is_in_namespace or not _has_labels_of_agents(metadata):
            return None
        status = mapping(pod.get("status"))
        is_ending = "deletionTimestamp" in metadata
        is_running = status.get("phase") == "Running" and not is_ending
        address = text(status.get("podIP"))
        has_address = _ADDRESS.fullmatch(address) is not None
        if not is_running or not has_address:
            return None
        spec = mapping(pod.get("spec"))
        node = text(spec.get("nodeName"))
        return AgentPod(node, address, _port(spec))


def _has_labels_of_agents(metadata: Mapping[str, Any]) -> bool:
    labels = mapping(metadata.get("labels"))
    return labels.get(NAME_LABEL) == NAME and labels.get(COMPONENT_LABEL) == COMPONENT


def _port(spec: Mapping[str, Any]) -> int:
    """The port of the pages, by its name."""
    for container in mappings(spec.get("containers")):
        for port in mappings(container.get("ports")):
            port_number = number(port.get("containerPort")) or 0
            if port.get("name") == PORT_NAME and 0 < port_number <= _MOST_PORT:
                return port_number
    return DEFAULT_PORT
