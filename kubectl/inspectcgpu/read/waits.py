"""The reason why a pod waits or was refused, from the pod's status."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, sentence, text

_ON_THE_WAY = ("", "ContainerCreating", "PodInitializing")
_REFUSED = ("UnexpectedAdmissionError", "TopologyAffinityError")


def refused(status: Mapping[str, Any]) -> bool:
    """Kubelet did not admit the pod because of its devices; it is Failed and holds nothing."""
    reason = text(status.get("reason"))
    return status.get("phase") == "Failed" and (reason in _REFUSED or reason.startswith("OutOf"))


def waits_for(pod: Mapping[str, Any]) -> str:
    """A reason, in the words of scheduler and kubelet; "" for a pod that runs."""
    meta, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    if refused(status):
        return f"refused, {sentence(status.get('reason'))}: {sentence(status.get('message'))}"
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if not spec.get("nodeName"):
        return _not_scheduled(status)
    if status.get("phase") == "Running":
        return ""
    waiting = list(_waiting(status))
    for name, reason, message in waiting:
        if reason not in _ON_THE_WAY:
            return f"container {name}: {reason}{f': {message}' if message else ''}"
    return "its containers are being made" if waiting else "kubelet has not taken it up yet"


def _not_scheduled(status: Mapping[str, Any]) -> str:
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"not scheduled, {sentence(condition.get('reason'))}: {sentence(condition.get('message'))}"
    return "not scheduled yet"


def has_begun(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has begun with a container of the pod, for example pulls its image."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in mappings(status.get(key)):
            state = mapping(container.get("state"))
            if "running" in state or "terminated" in state:
                return True
    return any(reason not in _ON_THE_WAY for _, reason, _ in _waiting(status))


def _waiting(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, reason and message of each container that waits."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in mappings(status.get(key)):
            waiting = mapping(container.get("state")).get("waiting")
            if isinstance(waiting, Mapping):
                reason = sentence(waiting.get("reason"))
                message = sentence(waiting.get("message"))
                yield text(container.get("name")), reason, message
