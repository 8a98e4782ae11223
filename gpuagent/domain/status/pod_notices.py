"""Announcements to pods whose requests give them no GPU, although Kubernetes accepts them."""

from collections.abc import Iterator

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.mistaken import mistake
from gpuagent.domain.state import State


def pod_notices(before: State, after: State) -> Iterator[Announcement]:
    """Announce the mistake of each pod that was not seen before."""
    if before.pods.seen is after.pods.seen:
        return
    known = {pod.uid for pod in before.pods.seen}
    for pod in after.pods.seen:
        if pod.uid in known or pod.ended:
            continue
        text = mistake(pod, after.policy.unit)
        if text:
            yield Announcement("GPURequestMistaken", text, warning=True, pods=(pod.name,))
