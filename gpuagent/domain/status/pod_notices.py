"""Announcements to pods: requests that give them no GPU, changed limits, and limits that do not hold."""

from collections.abc import Iterator

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.mistaken import mistake
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.state import State


def pod_notices(before: State, after: State) -> Iterator[Announcement]:
    """What the author of a pod has to know of it."""
    yield from _mistakes(before, after)
    yield from _resizes(before, after)
    yield from _unlimited(before, after)


def _unlimited(before: State, after: State) -> Iterator[Announcement]:
    """Announce each pod that may use more GPU memory than its share since now."""
    has_same_pods = before.pods.seen is after.pods.seen and before.holdings is after.holdings
    if has_same_pods and before.isolation is after.isolation:
        return
    unlimited = _unlimited_pods(after)
    if not unlimited:
        return
    # At a start, the driver may report a pod before the agent has seen it, and then the pod has no Event yet.
    announced = _unlimited_pods(before).keys() & before.pods_by_kubelets_uid.keys()
    pods = after.pods_by_kubelets_uid
    for uid, why in unlimited.items():
        if uid in pods and uid not in announced:
            text = f"the pod may use more GPU memory than its share: {why}. {_remedy(pods[uid])}"
            yield Announcement("GPUMemoryUnlimited", text, warning=True, pods=(pods[uid].name,))


def _remedy(pod: Pod) -> str:
    # Kubelet makes a deleted mirror again, and its pod goes on.
    return "Move its file on the node away, and back" if pod.static or pod.mirror else "Delete the pod"


def _unlimited_pods(state: State) -> dict[str, str]:
    """UID of each pod whose limits are not in force to why."""
    unlimited: dict[str, str] = {}
    for layer in state.isolation.layers.values():
        unlimited.update(layer.unlimited)
    return unlimited


def _resizes(before: State, after: State) -> Iterator[Announcement]:
    """Announce what became of requests for other memory limits, if the pod does not say so already."""
    verdicts = after.resizes.verdicts
    former = before.resizes.verdicts
    if verdicts is former or verdicts == former:
        return
    shown = {pod.uid: pod.annotations.get(LIMIT_STATUS_ANNOTATION) for pod in after.pods.with_limit}
    for uid, verdict in verdicts.items():
        is_new = former.get(uid) != verdict and shown.get(uid) != verdict.annotation
        if not is_new:
            continue
        if verdict.word == "Refused":
            text = f"annotation {LIMIT_ANNOTATION}: {verdict.text}"
            yield Announcement("GPUResizeRefused", text, warning=True, pods=(verdict.pod,))
        elif verdict.request:
            text = f"GPU memory limits in force: {verdict.text}, in units of {after.policy.unit.size}"
            yield Announcement("GPUMemoryResized", text, pods=(verdict.pod,))


def _mistakes(before: State, after: State) -> Iterator[Announcement]:
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
