"""The Event about a claim that was refused."""

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.state import State


def refusal_event(state: State | None, namespace: str, name: str, refusal: Refusal) -> Announcement:
    """For the pods that wait for the claim; for the node while none of them was seen."""
    pods = tuple(
        pod.name
        for pod in (state.pods.seen if state else ())
        if pod.name.namespace == namespace and name in pod.claims and not pod.container_ids
    )
    return Announcement("GPURefused", f"claim {namespace}/{name}: {refusal.message}", warning=True, pods=pods)
