"""A pod that kubelet failed for want of this agent's devices: which those are, and what kind of failure it was."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent.domain.pods import Controller, Pod, PodName

_RPC = re.compile(r"rpc error: code = (\w+)")
_AWAY = {"Unavailable", "Canceled", "DeadlineExceeded"}
"""gRPC codes that a plugin's end, or a start under way, gives."""


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
    if pod.rejected is None or pod.deleting or pod.controller is None or not _is_made_anew(pod.controller):
        return None
    failure = _failure(pod, ours)
    if failure is None:
        return None
    return FailedPod(pod.name, pod.uid, pod.version, pod.controller, failure, pod.rejected)


def _is_made_anew(controller: Controller) -> bool:
    """A static pod's kubelet makes no other one. A Job does by itself, and its failed pods are its record."""
    core_job = controller.kind == "Job" and controller.api_version.startswith("batch/")
    return controller.kind != "Node" and not core_job


def _failure(pod: Pod, ours: Collection[str]) -> Failure | None:
    words = pod.rejected or ""
    asked = {name for container in pod.containers for name in container.limits}
    mine = asked & set(ours)
    rpc = _RPC.search(words)
    # A plugin's own words need not name the resource: then they are this agent's if no other plugin was asked.
    named = any(_names(words, name) for name in mine) or (rpc is not None and bool(mine) and mine == asked)
    if not named:
        return None
    return Failure.NO_DEVICES if rpc is None or rpc[1] in _AWAY else Failure.REFUSED


def _names(text: str, resource: str) -> bool:
    """Whether the name stands there by itself: `aliyun.com/gpu` is the beginning of another one."""
    return re.search(rf"(?<![\w./-]){re.escape(resource)}(?![\w/-]|\.\w)", text) is not None
