"""The API server's side of the agent: what is watched there, and what is written there."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuagent.domain import events as ev
from gpuagent.domain import report
from gpuagent.domain.pods import PodName
from gpuagent.domain.state import State
from gpuagent.kube.client import Client
from gpuagent.kube.eventlog import Involved
from gpuagent.kube.watch import Watcher
from gpuagent.kube.writer import Writer


class KubeSide:
    """Watches this node and its pods, keeps the node's facts true, sends Events. Never blocks the caller."""

    def __init__(self, kubeconfig: Path | None, node_name: str, post: Callable[[ev.Event], None]) -> None:
        self._node_name = node_name
        self._client = Client(None if kubeconfig is None else str(kubeconfig))
        self._watcher = Watcher(self._client, node_name, post, burst_s=0.01)
        self._writer = Writer(self._client, node_name)
        self._uids: dict[PodName, str] = {}

    def start(self) -> None:
        self._watcher.start()
        self._writer.start()

    def stop(self) -> None:
        self._watcher.stop(0.5)
        self._writer.stop(0.5)
        self._client.close()

    def observe(self, node: Mapping[str, Any]) -> None:
        """The Node as it is now."""
        self._writer.observe(node)

    def desire(self, state: State) -> None:
        """The Node as it should be: labels, amounts and condition that follow from `state`."""
        self._uids = {pod.name: pod.uid for pod in state.pods}
        self._writer.set_desired(report.node_labels(state), report.node_capacity(state), report.node_condition(state))

    def event(self, pod: PodName | None, kind: str, reason: str, message: str) -> None:
        """Send an Event about a pod of this node, or the node itself (None)."""
        if pod is None:
            about = Involved.node(self._node_name)
        else:
            about = Involved.pod(pod.namespace, pod.name, self._uids.get(pod, ""))
        self._writer.event(about, kind, reason, message)
