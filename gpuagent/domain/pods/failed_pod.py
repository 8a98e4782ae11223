"""A pod that kubelet failed for want of this agent's devices: which those are, and what kind of failure it was."""

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
"""What kubelet hands on of a plugin's answer, or of its end: it need not name plugin or resource."""
_AWAY = {"Unavailable", "Canceled", "DeadlineExceeded"}
"""gRPC codes that a plugin's end, or a start under way, gives."""
_REFUSALS = {"FailedPrecondition", "InvalidArgument", "Internal"}
"""The other codes with which this agent refuses."""

REPLACING = {
    "": {"ReplicationController"},
    "apps": {"ReplicaSet", "StatefulSet", "DaemonSet"},
    "apps.kruise.io": {"CloneSet", "StatefulSet", "DaemonSet"},
}
"""API group to kinds of controllers that keep a number of pods, whatever became of former ones. Deployments, and
Rollouts of Argo, own ReplicaSets. To Jobs and workflows of all makes a failed pod is a result, which they count."""


class Failure(StrEnum):
    """What kept the pod from its devices; label value of the metric."""

    NO_DEVICES = "no_devices"
    """Kubelet had none to give, or nobody to ask: the agent was not there."""
    REFUSED = "refused"
    """The agent was asked, and refused."""


@dataclass(frozen=True, slots=True)
class FailedPod:
    """A failed pod, at the version that was judged. `words` are kubelet's."""

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
    """The deletions of one controller's failed pods, so that a request that can never be met does not spin.

    Attributes:
        count: how many rounds there were.
        at: when the last one began; before the first, when a failed pod was first seen. Monotonic seconds.
        pods: UIDs of those that it deletes.
        seen: by UID, when each failed pod was first seen.
    """

    count: int
    at: float
    pods: frozenset[str] = frozenset()
    seen: Mapping[str, float] = field(default_factory=dict)


def failed_pod(pod: Pod, ours: Collection[str]) -> FailedPod | None:
    """`pod` if it failed for want of a resource in `ours` and its controller makes another one; else None."""
    if pod.rejected is None or pod.deleting or pod.controller is None or not _replaces(pod.controller):
        return None
    failure = _failure(pod, ours)
    if failure is None:
        return None
    return FailedPod(pod.name, pod.uid, pod.version, pod.controller, failure, pod.rejected)


def _replaces(controller: Controller) -> bool:
    """Whether it is known to make another pod in place of one that has gone."""
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
    said = _PLUGINS.match(cause[1])
    # A plugin's own words are this agent's if no other plugin was asked; what they name shows nothing.
    if said is None or mine != asked:
        return None
    if said["code"] is None or said["code"] in _AWAY:
        return Failure.NO_DEVICES
    return Failure.REFUSED if said["code"] in _REFUSALS else None
