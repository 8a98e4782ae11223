"""What people learn about a claim that was refused."""

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import MODE_LABEL, Mode
from gpuagent.domain.state import State

_OF_GPUS = frozenset([Reason.STILL_HELD, Reason.GPU_UNUSABLE, Reason.ISOLATION, Reason.NOT_OFFERED])
"""Reasons that may pass while the node is in mode dra."""


def with_mode(refusal: Refusal, state: State | None) -> Refusal:
    """The refusal of a claim that is not prepared yet; it says also if the node has left mode dra.

    No wait may help then: the other mode offers a GPU as soon as no claim is prepared with it.
    """
    if state is None or state.node.mode is Mode.DRA or refusal.reason not in _OF_GPUS:
        return refusal
    left = (
        f"The node has left mode dra for mode {state.node.mode}, which gives its GPUs to other pods: delete every pod "
        f"of the claim, so that the scheduler chooses again; or set the node's label {MODE_LABEL}=dra again"
    )
    return Refusal(refusal.reason, f"{refusal.message}. {left}", refusal.pod)


def refusal_event(state: State | None, namespace: str, name: str, refusal: Refusal) -> Announcement:
    """For the pods that wait for the claim; for the node while none of them was seen."""
    waiting = []
    pods = state.pods.seen if state else ()
    for pod in pods:
        uses_claim = pod.name.namespace == namespace and name in pod.claims
        # Its containers run, so it was prepared for this pod before.
        has_started = bool(pod.container_ids)
        if uses_claim and not has_started:
            waiting.append(pod.name)
    return Announcement(
        "GPURefused",
        f"claim {namespace}/{name}: {refusal.message}",
        warning=True,
        pods=tuple(waiting),
    )
