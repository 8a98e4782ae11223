"""The Event about a claim that was refused."""

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.state import State


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
