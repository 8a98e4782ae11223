"""Requests that Kubernetes accepts and that give a pod no GPU, and what to write instead."""

from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuagent.domain.sharing.units import MemoryUnit, if_bytes

COUNT_ONLY = (
    f"asks for {GPU_COUNT} in its limits, which gives it no GPU: it is the number of GPUs of a node. Ask for {GPU_MEM} "
    f"to share GPUs, with the pod label {GPU_COUNT_LABEL} for several of them, or for {GPU_WHOLE} to get whole ones"
)
COUNT_TOO = (
    f"asks for {GPU_COUNT} in its limits, which changes nothing: it is the number of GPUs of a node. Set the pod label "
    f"{GPU_COUNT_LABEL} to spread its memory evenly over several GPUs"
)
"""Both after "the pod "."""


def asks_for_count(pod: Pod) -> bool:
    """Whether a container has the number of a node's GPUs in its limits, as pods of the old gpushare plugin may."""
    return any(container.asks(GPU_COUNT) for container in pod.containers)


def mistake(pod: Pod, unit: MemoryUnit) -> str:
    """What is wrong with the requests of a pod on a node with this unit, in a sentence; empty if nothing is."""
    if asks_for_count(pod):
        gets_gpus = any(map(pod.asks, (GPU_MEM, GPU_CORE, GPU_WHOLE)))
        why = COUNT_TOO if gets_gpus else COUNT_ONLY
        return f"the pod {why}"
    amounts = [container.limits.get(GPU_MEM, 0) for container in pod.containers]
    most = max(amounts, default=0)
    hint = if_bytes(most, unit)
    if not hint:
        return ""
    return f"the pod asks for {most} of {GPU_MEM}, which is more than any node has; {hint}"
