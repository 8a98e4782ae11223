"""The Event about a claim that was refused."""

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.state import State


def refusal_event(state: State | None, namespace: str, name: str, refusal: Refusal) -> Announcement:
    """For the pods that wait for the claim; for the node while none of them was seen."""
    waiting = []
    for pod in state.pods.seen if state else ():
        uses_claim = pod.name.namespace == namespace and name in pod.claims
        if uses_claim and not pod.container_ids:
            waiting.append(pod.name)
    text = f"claim {namespace}/{name}: {refusal.message}"
    return Announcement("GPURefused", text, warning=True, pods=tuple(waiting))
