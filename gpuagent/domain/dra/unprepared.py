"""Pods of this node that may wait for claims whose preparation failed, and claims whose pods are gone.

Kubelet tries a pod again 60 to 90 s after a preparation failed, and at once when the pod changes
(kubernetes/kubernetes#139836). It makes the pod's sandbox right after the claims are prepared. That the agent has
prepared a claim says less: it may have answered too late for kubelet, or before a reboot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State

PREPARE_AGAIN_ANNOTATION = "gpuagent.io/prepare-again"
"""When the agent last had kubelet try a pod again, in Unix nanoseconds."""


@dataclass(frozen=True, slots=True)
class Unprepared:
    """A pod without a sandbox, and its claims: of this driver, or of others."""

    name: PodName
    uid: str
    claims: frozenset[str]


def unprepared(state: State) -> Iterator[Unprepared]:
    """The pods that kubelet may have to try again."""
    claims = state.claims
    if not claims.registered or claims.superseded or not (state.node.mode is Mode.DRA or claims.prepared):
        return
    for pod in state.pods.seen:
        if pod.claims and not (pod.ended or pod.deleting or pod.sandboxed):
            yield Unprepared(pod.name, pod.uid, frozenset(pod.claims))


def left_over(state: State) -> Iterator[PreparedClaim]:
    """Prepared claims that no pod of the node has, while kubelet answers: it should unprepare them."""
    claims = state.claims
    if not claims.registered or claims.superseded or state.holdings.problem is not None or not state.pods.watched:
        return
    used = {(pod.name.namespace, name) for pod in state.pods.seen for name in pod.claims}
    for claim in claims.prepared.values():
        if claim.gpus and (claim.namespace, claim.name) not in used:
            yield claim
