"""Refusals: negative answers to kubelet, each with a reason."""

import enum

from gpuagent.domain.pods.pod import PodName
from gpuagent.system.printable import printable


class Reason(enum.StrEnum):
    """Why a request was refused; label value of the refusals metric."""

    EMPTY_REQUEST = "empty_request"
    UNKNOWN_DEVICE = "unknown_device"
    NOT_OFFERED = "not_offered"
    MIXED_RESOURCES = "mixed_resources"
    SPANS_GPUS = "spans_gpus"
    NO_SINGLE_GPU = "no_single_gpu"
    TOO_MANY_PODS = "too_many_pods"
    NOT_ENOUGH = "not_enough"
    GPU_COUNT = "gpu_count"
    GPU_GROUP = "gpu_group"
    GPU_DECISION = "gpu_decision"
    PAIR_APART = "pair_apart"
    CORE_STEP = "core_step"
    CORE_MEM_BOTH = "core_mem_both"
    CLAIM_INVALID = "claim_invalid"
    STILL_HELD = "still_held"
    GPU_UNUSABLE = "gpu_unusable"
    NOT_READY = "not_ready"
    UNKNOWN_POD = "unknown_pod"
    ISOLATION = "isolation"
    INTERNAL = "internal"


class Refusal(Exception):  # noqa: N818 (a refusal is an answer, not a fault of the agent)
    """A request that the agent refuses. `message` reaches the user through `kubectl describe pod`.

    `pod` is the requesting pod, or None if the agent cannot identify it.
    """

    def __init__(self, reason: Reason, message: str, pod: PodName | None = None) -> None:
        self.reason = reason
        self.message = printable(message)
        super().__init__(self.message)
        self.pod = pod
