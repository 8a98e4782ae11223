"""The annotation that says what became of the request for another memory limit of a pod."""

from collections.abc import Iterable
from dataclasses import replace

from gpuagent.domain.pods.annotations import LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.reconcile.pod_annotations import PodWrite
from gpuagent.domain.state import State


def with_limit_status(state: State, writes: Iterable[PodWrite]) -> tuple[PodWrite, ...]:
    """The writes that pods need, with this annotation where it is not as it should be."""
    by_uid = {write.uid: write for write in writes}
    # Where the agent does not obey the requests, it may not be allowed to write to pods either.
    verdicts = state.resizes.verdicts if state.policy.live_resize else {}
    if not verdicts:
        return tuple(by_uid.values())
    for pod in state.pods.seen:
        verdict = verdicts.get(pod.uid)
        # A static pod is a file of the node, and the API server has only its mirror.
        if verdict is None or pod.ended or pod.static:
            continue
        text = verdict.annotation
        if pod.annotations.get(LIMIT_STATUS_ANNOTATION) != text:
            write = by_uid.get(pod.uid, _empty(pod))
            texts = {**write.texts, LIMIT_STATUS_ANNOTATION: text}
            by_uid[pod.uid] = replace(write, texts=texts)
    return tuple(by_uid.values())


def _empty(pod: Pod) -> PodWrite:
    return PodWrite(pod=pod.name, uid=pod.uid, version=pod.version, texts={})
