"""Pods of this node that kubelet may have to try again, and claims whose pods are gone.

Kubelet tries a pod again 60 to 90 s after a preparation failed, and 10 to 15 s after the end of a pod failed because
its claims were not unprepared. It tries a pod at once when the pod changes (kubernetes/kubernetes#139836). It makes the
pod's sandbox right after the claims are prepared. That the agent has prepared a claim says less: it may have answered
too late for kubelet, or before a reboot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.state import State, once

PREPARE_AGAIN_ANNOTATION = "gpuagent.io/prepare-again"
"""When the agent last had kubelet try a pod again, in Unix nanoseconds."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that kubelet may have to try again.

    Attributes:
        claims: names of its claims: of this driver, or of others.
        in_the_way: what may keep its claims from being prepared: UIDs of the node's prepared claims, and UUIDs of GPUs
            that new claims do not get. When one of them goes, the pod may have waited for that.
        is_ending: whether the pod is being deleted, and may wait for its claims to be unprepared. Otherwise, it has no
            sandbox, and may wait for them to be prepared.
    """

    name: PodName
    uid: str
    claims: frozenset[str]
    in_the_way: frozenset[str] = frozenset()
    is_ending: bool = False


def waiting_pods(state: State) -> Iterator[WaitingPod]:
    """The pods that kubelet may have to try again, in any mode: a claim may be prepared late."""
    if not _serves_kubelet(state):
        return
    for pod in state.pods.seen:
        if not pod.claims or pod.ended:
            continue
        names = frozenset(pod.claims)
        if pod.deleting:
            # Kubelet unprepares also what it began to prepare, and the agent may have no record of that.
            yield WaitingPod(pod.name, pod.uid, names, is_ending=True)
        elif not pod.sandboxed:
            yield WaitingPod(pod.name, pod.uid, names, _in_the_way(state))


@once
def _in_the_way(state: State) -> frozenset[str]:
    """What may keep claims from being prepared, as `WaitingPod` has it."""
    in_mig_mode = [gpu.uuid for gpu in state.gpus.by_index if gpu.mig]
    return frozenset([*state.claims.prepared, *state.unhealthy, *state.barred_to_claims, *in_mig_mode])


def may_be_unprepared(state: State) -> bool:
    """Whether kubelet may still have to unprepare a claim, also one that was never prepared.

    Kubelet calls for every claim that it began to prepare, and does not end the pod before the driver has answered.
    """
    return any(pod.claims and not pod.ended for pod in state.pods.seen)


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
