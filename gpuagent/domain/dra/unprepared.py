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
    publishes = state.node.mode is Mode.DRA
    has_claims = bool(state.claims.prepared)
    if not publishes and not has_claims:
        return
    if not _serves_kubelet(state):
        return
    for pod in state.pods.seen:
        is_ending = pod.ended or pod.deleting
        if pod.claims and not is_ending and not pod.sandboxed:
            names = frozenset(pod.claims)
            yield Unprepared(pod.name, pod.uid, names)


def unused_claims(state: State) -> Iterator[PreparedClaim]:
    """Prepared claims that no pod of the node has, while kubelet answers: it should unprepare them."""
    kubelet_answers = state.holdings.problem is None
    if not kubelet_answers or not _serves_kubelet(state):
        return
    if not state.pods.watched:
        return  # pods that were not seen yet may have them
    used = set[tuple[str, str]]()
    for pod in state.pods.seen:
        namespace = pod.name.namespace
        used.update((namespace, name) for name in pod.claims)
    for claim in state.claims.prepared.values():
        is_used = (claim.namespace, claim.name) in used
        # One without GPUs has a record that cannot be read. People have to look at it.
        if claim.gpus and not is_used:
            yield claim


def _serves_kubelet(state: State) -> bool:
    """Whether kubelet calls this agent, and not one that has replaced it."""
    return state.claims.registered and not state.claims.superseded
