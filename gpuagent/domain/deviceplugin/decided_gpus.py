"""The GPUs that a scheduler chose for a container, and the refusals where that choice cannot be kept."""

from collections.abc import Collection
from typing import NamedTuple

from gpuagent.domain.deviceplugin.admission.requester import Requester, Unknown
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.decision import Decision
from gpuagent.domain.snapshot import Snapshot


class DecidedGpus(NamedTuple):
    """UUIDs of the GPUs that a scheduler chose for a container, and words for messages."""

    uuids: frozenset[str]
    words: str


def decision_of(
    requester: Requester,
    resource: str,
    snap: Snapshot,
) -> DecidedGpus | None:
    """GPUs that a scheduler chose for the container; None where it chose none that count.

    Raises:
        Refusal: this node can never keep the decision.
    """
    decision = requester.decision(snap)
    gpus = requester.decided_gpus(resource, snap)
    if gpus is None or not isinstance(decision, Decision):
        return None
    if requester.container_gpus:
        # The container's other resource has followed the decision, or was chosen before there was one.
        return None
    if isinstance(gpus, str):
        text = f"{resource}: pod {requester.pod_name}: annotation {decision.key} {gpus}"
        raise Refusal(Reason.GPU_DECISION, text)
    words = f"a scheduler chose {names_of(gpus, snap)} for it (annotation {decision.key})"
    return DecidedGpus(gpus, words)


def in_doubt(resource: str, requester: Unknown) -> Refusal:
    """The refusal of a request that may be for pods with GPUs chosen by a scheduler."""
    names = [str(name) for name in requester.candidates[:3]]
    pods = ", ".join(names) or "pods of this node"
    text = f"{resource}: a scheduler chose GPUs for {pods}, and the agent cannot identify the requesting pod"
    return Refusal(Reason.UNKNOWN_POD, f"{text}: {requester.why}. Create the pod again")


def names_of(uuids: Collection[str], snap: Snapshot) -> str:
    """GPUs in messages: ``GPU 1 and GPU 3``."""
    return " and ".join(sorted(map(snap.names.__getitem__, uuids)))
