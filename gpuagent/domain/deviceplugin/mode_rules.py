"""Rules of the modes, for each call: which resources there are, and how a container may combine and spread them."""

from collections.abc import Mapping

from gpuagent.domain.deviceplugin.admission.requester import Requester
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, Kind, Mode, other_resource
from gpuagent.domain.snapshot import Snapshot


def not_offered(resource: str, snap: Snapshot) -> Refusal:
    """The refusal of a resource that is at zero in this mode."""
    return Refusal(
        Reason.NOT_OFFERED, f"{resource}: not advertised in mode {snap.mode}, which is in force on this node"
    )


def gpu_count(
    pod: Pod,
    resource: str,
    size: int,
    resource_kinds: Mapping[str, Kind],
) -> int:
    """Over how many GPUs the pod's label `aliyun.com/gpu-count` spreads this request; 1 without it.

    Raises:
        Refusal: the label is invalid, or the request cannot be spread so.
    """
    kind = resource_kinds.get(resource)
    if pod.gpu_count_label is None or kind is None:
        return 1
    # Whole GPUs are several GPUs anyway: the number of units says how many.
    if kind.is_whole:
        return 1
    count = pod.gpu_count
    if count is None:
        raise _wrong_gpu_count(pod, "is not a number of GPUs; set it to 1 or more, or remove it")
    if count > 1 and kind.mode is Mode.CORE_MEM:
        raise _wrong_gpu_count(pod, "cannot be combined with mode core_mem: one container, one GPU there")
    if size % count:
        advice = f"ask for a multiple of {count}"
        raise _wrong_gpu_count(pod, f"does not divide {size} units of {resource}; {advice}")
    return count


def _wrong_gpu_count(pod: Pod, why: str) -> Refusal:
    text = f"pod {pod.name}: label {GPU_COUNT_LABEL}={pod.gpu_count_label!r}"
    return Refusal(Reason.GPU_COUNT, f"{text} {why}")


def check_core_mem(
    resource: str,
    size: int,
    requester: Requester,
    snap: Snapshot,
) -> None:
    """The rules of mode core_mem: compute in whole steps, and both resources or none for each container."""
    # Units of another mode are refused for another reason.
    if snap.mode is not Mode.CORE_MEM or resource not in snap.resource_kinds:
        return
    step = snap.policy.core_step
    over = size % step if resource == GPU_CORE else 0
    if over:
        smaller = size - over
        fitting = [str(percent) for percent in (smaller, smaller + step) if percent]
        text = f"{resource}: {size} is no multiple of {step} percent; ask for {' or '.join(fitting)}"
        raise Refusal(Reason.CORE_STEP, text)
    # A container with compute alone could use all memory of the GPU.
    if not snap.policy.core_mem_both or requester.container is None:
        return
    other = other_resource(resource)
    if not requester.container.asks(other):
        text = f"{resource}: {requester.owner} asks for it and not for {other}"
        rule = "in mode core_mem a container asks for both, or for neither"
        raise Refusal(Reason.CORE_MEM_BOTH, f"{text}; {rule}")
