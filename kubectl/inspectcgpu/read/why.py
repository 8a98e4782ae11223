"""Whether a pod waits: what the pod and its Events say after it has a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, sentence, text
from gpuagent.domain.pods.pod import PodName
from inspectcgpu.read.waits import has_begun, refused, waits_for

_NOT_PREPARED = ("FailedPrepareDynamicResources", "GPURefused")
"""The Events of kubelet and of the agent with the agent's reason. Kubelet has none while a claim waits in the agent."""
_MOUNTING = ("kubelet", "attachdetach-controller")
"""They have what a pod needs before its claims are prepared, such as its volumes."""


@dataclass(frozen=True, slots=True)
class PodWhy:
    """The answer about one pod.

    Attributes:
        pod: namespace and name.
        waits: whether it waits.
        text: why it waits, or what it does instead.
        notes: what could not be read.
    """

    pod: PodName
    waits: bool
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadWhy:
    """The answer about the pods of a workload.

    Attributes:
        kind: of the workload, as in its object.
        name: namespace and name.
        pods: the answers about its pods, those that wait first.
        more: how many more of its pods wait, which are not explained.
        missing: how many pods are not there; None if the workload does not say how many there should be.
        text: why pods are missing, or there are none; empty if there are enough.
        notes: what could not be read.
    """

    kind: str
    name: PodName
    pods: tuple[PodWhy, ...]
    more: int = 0
    missing: int | None = None
    text: str = ""
    notes: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether the workload waits for a pod."""
        return bool(self.text) or any(pod.waits for pod in self.pods)


def settled(pod: Mapping[str, Any]) -> str:
    """What became of a pod that does not wait any more; empty if it waits."""
    status = mapping(pod.get("status"))
    node = text(mapping_at(pod, "spec").get("nodeName"))
    on_node = f" on node {node}" if node else ""
    if refused(status):
        return f"it was {waits_for(pod)}"
    match status.get("phase"):
        case "Succeeded":
            return f"it has succeeded{on_node}"
        case "Failed":
            words = (sentence(status.get("reason")), sentence(status.get("message")), _ended(status))
            why = ": ".join(filter(None, words))
            return f"it has failed{on_node}{f': {why}' if why else ''}"
    if mapping_at(pod, "metadata").get("deletionTimestamp"):
        return "it is being deleted"
    is_running = status.get("phase") == "Running" and bool(node)
    return f"it runs{on_node}" if is_running else ""


def not_started(pod: Mapping[str, Any], events: Mapping[str, Any] | None) -> str:
    """Why a pod on a node has no sandbox, by the latest Event about that; empty without one, or if it has one."""
    status = mapping(pod.get("status"))
    if _has_sandbox(status):
        # What kept it before is over.
        return ""
    has_claims = bool(mapping_at(pod, "spec").get("resourceClaims") or status.get("extendedResourceClaimStatus"))
    latest = ("", "")
    for event in mappings(mapping(events).get("items")):
        words = _words_of(event, has_claims=has_claims)
        if words:
            latest = max(latest, (text(event.get("lastTimestamp")), words))
    return latest[1]


def _words_of(event: Mapping[str, Any], *, has_claims: bool) -> str:
    """What an Event says about a pod that does not start; empty if it is about something else."""
    reason = event.get("reason")
    message = sentence(event.get("message"))
    if reason in _NOT_PREPARED:
        return f"its claims are not prepared: {message}" if has_claims else ""
    component = mapping(event.get("source")).get("component")
    is_about_volumes = event.get("type") == "Warning" and component in _MOUNTING
    return f"{sentence(reason)}: {message}" if is_about_volumes else ""


def _has_sandbox(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has made the pod's sandbox, which it does when all claims are prepared."""
    conditions = mappings(status.get("conditions"))
    is_ready = any(
        condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "True"
        for condition in conditions
    )
    return is_ready or has_begun(status)


def _ended(status: Mapping[str, Any]) -> str:
    """How the first container ended that failed."""
    for container in mappings(status.get("containerStatuses")):
        ended = mapping_at(container, "state", "terminated")
        code = ended.get("exitCode")
        if code:
            reason = sentence(ended.get("reason")) or "ended"
            return f"container {text(container.get('name'))}: {reason}, exit code {code}"
    return ""
