"""Pods that kubelet failed because a device of this agent was missing or refused, with the kind of failure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent.domain.pods.pod import Controller, Pod, PodName

_CAUSE = re.compile(r"Allocate failed due to (.+)", re.DOTALL)
_KUBELETS = re.compile(
    r"(?:no healthy devices present; |previously allocated devices are no longer healthy; )?"
    r"(?:cannot allocate unhealthy devices|can(?:not|'t) allocate unregistered device"
    r"|requested number of devices unavailable for|unknown Device Plugin) (?P<resource>[\w./-]*\w)"
)
"""Sentences of kubelet's device manager (pkg/kubelet/cm/devicemanager), 1.18 to 1.37, with the resource in them."""
_PLUGINS = re.compile(
    r"(?:device plugin GetPreferredAllocation rpc failed with err: )?"
    r"(?:rpc error: code = (?P<code>\w+) desc = |endpoint .*has been stopped)",
    re.DOTALL,
)
"""Kubelet's report of a plugin's error or exit. It may name neither plugin nor resource."""
_AWAY = {"Unavailable", "Canceled", "DeadlineExceeded"}
"""gRPC codes of calls to a plugin that exits or is still starting."""
_REFUSALS = {"FailedPrecondition", "InvalidArgument", "Internal"}
"""The other codes with which this agent refuses."""

REPLACING = {
    "": {"ReplicationController"},
    "apps": {"ReplicaSet", "StatefulSet", "DaemonSet"},
    "apps.kruise.io": {"CloneSet", "StatefulSet", "DaemonSet"},
}
"""API group to kinds of controllers that replace every failed pod. Deployments, and Argo's Rollouts, own ReplicaSets.
Jobs and workflows are absent: they count a failed pod as a result."""


class Failure(StrEnum):
    """Cause of the failure; label value of the metric."""

    NO_DEVICES = "no_devices"
    """Kubelet had no device, or the agent was not running."""
    REFUSED = "refused"
    """The agent refused the request."""


@dataclass(frozen=True, slots=True)
class FailedPod:
    """A failed pod at one resourceVersion. `words` is kubelet's message."""

    name: PodName
    uid: str
    version: str
    controller: Controller
    failure: Failure
    words: str


ControllerKey = tuple[str, str]
"""Namespace and UID of a controller."""


@dataclass(frozen=True, slots=True)
class Round:
    """The deletions of one controller's failed pods, counted so that an impossible request does not loop.

    Attributes:
        count: how many rounds there were.
        at: when the last one began; before the first, when a failed pod was first seen. Monotonic seconds.
        pods: UIDs of the pods that this round deletes.
        seen: UID of each failed pod to the monotonic seconds when the agent first saw it.
    """

    count: int
    at: float
    pods: frozenset[str] = frozenset()
    seen: Mapping[str, float] = field(default_factory=dict)


def failed_pod(pod: Pod, ours: Collection[str]) -> FailedPod | None:
    """`pod` if it failed because a resource in `ours` was missing or refused, and its controller replaces it."""
    if pod.rejected is None or pod.deleting or pod.controller is None or not _replaces(pod.controller):
        return None
    failure = _failure(pod, ours)
    if failure is None:
        return None
    return FailedPod(pod.name, pod.uid, pod.version, pod.controller, failure, pod.rejected)


def _replaces(controller: Controller) -> bool:
    """Whether controllers of this kind replace a deleted pod."""
    group, slash, _ = controller.api_version.rpartition("/")
    return controller.kind in REPLACING.get(group if slash else "", ())


def _failure(pod: Pod, ours: Collection[str]) -> Failure | None:
    cause = _CAUSE.search(pod.rejected or "")
    asked = {name for container in pod.containers for name in (*container.limits, *container.unread)}
    mine = asked & set(ours)
    if cause is None or not mine:
        return None
    if kubelets := _KUBELETS.match(cause[1]):
        return Failure.NO_DEVICES if kubelets["resource"] in mine else None
    plugins = _PLUGINS.match(cause[1])
    # A plugin's message is this agent's if kubelet called no other plugin; names in the message prove nothing.
    if plugins is None or mine != asked:
        return None
    if plugins["code"] is None or plugins["code"] in _AWAY:
        return Failure.NO_DEVICES
    return Failure.REFUSED if plugins["code"] in _REFUSALS else None
