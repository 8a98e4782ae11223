"""Pods of this node that may wait for a claim which kubelet has not had prepared.

Kubelet tries a pod again 60 to 90 s after a preparation failed, and at once when the pod changes
(kubernetes/kubernetes#139836).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State

PREPARE_AGAIN_ANNOTATION = "gpuagent.io/prepare-again"
"""When the agent last had kubelet try a pod again, in Unix nanoseconds."""


@dataclass(frozen=True, slots=True)
class Unprepared:
    """A pod without a started container, and its claims that are not prepared: of this driver, or of others."""

    name: PodName
    uid: str
    claims: frozenset[str]


def unprepared(state: State) -> Iterator[Unprepared]:
    """The pods that kubelet may have to try again."""
    if state.node.mode is not Mode.DRA or not state.claims.registered:
        return
    prepared = {(claim.namespace, claim.name) for claim in state.claims.prepared.values()}
    for pod in state.pods.seen:
        left = frozenset(name for name in pod.claims if (pod.name.namespace, name) not in prepared)
        if left and not (pod.ended or pod.deleting or pod.container_ids):
            yield Unprepared(pod.name, pod.uid, left)
