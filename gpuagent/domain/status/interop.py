"""Warnings where other programs would misread this node's amounts.

The gpushare scheduler extender and the inspect tools read two amounts of a node, `aliyun.com/gpu-mem` and
`aliyun.com/gpu-count`. They divide one by the other, number the GPUs from 0, and count the pods' units by annotations.
"""

from collections import defaultdict
from collections.abc import Iterator

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import GPU_COUNT, GPU_MEM
from gpuagent.domain.sharing.units import units_of
from gpuagent.domain.state import State

MANY_PODS = 8
"""Maximum number of pods that one message names."""


def by_division(state: State) -> Iterator[str]:
    """A warning if the GPUs differ in size, in a mode that advertises memory: other programs assume equal GPUs."""
    kind = state.resource_kinds.get(GPU_MEM)
    if kind is None or not state.gpus.by_uuid:
        return
    gpus = sorted(state.gpus.by_uuid.values(), key=lambda gpu: gpu.minor)
    out = {gpu.uuid for gpu in gpus if gpu.mig} | set(state.layer.left_out)
    units = {gpu.uuid: 0 if gpu.uuid in out else units_of(gpu, kind, state.policy.unit) for gpu in gpus}
    if len(set(units.values())) > 1:
        share = sum(units.values()) // len(gpus)
        each = ", ".join(f"GPU {gpu.minor} {units[gpu.uuid]}" for gpu in gpus)
        yield (
            f"the GPUs differ ({GPU_MEM}: {each}): kubelet and this agent count each as it is. But a scheduler or tool "
            f"that divides {GPU_MEM} by {GPU_COUNT}, as the gpushare scheduler extender does, takes each for {share}. "
            "It may send pods here that are refused, and leave memory unused; give it nodes of equal GPUs"
        )


def by_number(state: State) -> Iterator[str]:
    """A warning if the GPUs are not numbered from 0."""
    numbers = sorted(gpu.minor for gpu in state.gpus.by_uuid.values())
    if GPU_MEM in state.resource_kinds and numbers != list(range(len(numbers))):
        yield (
            f"the minor numbers of the GPUs are {', '.join(map(str, numbers))}: the gpushare scheduler extender takes "
            f"them for 0 to {len(numbers) - 1}, and does not find the others. Load the driver again, or reboot the node"
        )


def by_former_units(state: State) -> Iterator[str]:
    """Warnings of pods whose units are from a time with another unit size or another size of their GPU."""
    former: dict[str, set[str]] = defaultdict(set)
    by_key = {gpu.key: gpu for gpu in state.gpus.by_uuid.values()}
    answers = {(entry.container, entry.ids): entry.gpu_units for entry in state.holdings.checkpoint if entry.gpu_units}
    for holding in state.living_holdings:
        then = answers.get((holding.owner.container, holding.ids))
        for highest, _ in holding.units:
            if highest.kind.is_memory and (gpu := by_key.get(highest.gpu_key)):
                now = units_of(gpu, highest.kind, state.policy.unit)
                if highest.n >= now or (then and now not in then):
                    former[gpu.uuid].add(str(holding.owner.pod))
    for uuid, pods in sorted(former.items(), key=lambda item: state.gpus.by_uuid[item[0]].minor):
        yield _former(state, state.gpus.by_uuid[uuid], sorted(pods))


def _former(state: State, gpu: Gpu, pods: list[str]) -> str:
    more = f" and {len(pods) - MANY_PODS} more" if len(pods) > MANY_PODS else ""
    units = f"{gpu.memory_mib // state.policy.unit.mib} units of {state.policy.unit}"
    return (
        f"GPU {gpu.index} ({gpu.uuid}) has {units} now; these pods were given units of it when it had another number: "
        f"{', '.join(pods[:MANY_PODS])}{more}. Kubelet and schedulers count them as units of today: end these pods, or "
        "set --memory-unit back"
    )
