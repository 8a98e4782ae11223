"""The annotations of a decision, in every family that agents and tools read."""

from collections.abc import Collection

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    Assumed,
    Shares,
    assumed_texts,
    shares_text,
)
from gpuagent.domain.scheduling.node_gpus import NodeGpus
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION
from gpuscheduler.core.fit import Choice
from gpuscheduler.core.gpu_request import WHOLE


def decision_annotations(
    uid: str, choice: Choice, node: NodeGpus, wall_ns: int, visible: Collection[int] = ()
) -> dict[str, str]:
    """The annotations for a pod that gets `choice`.

    Args:
        uid: of the pod. A copy of the annotations on another pod is no decision.
        choice: its GPUs.
        node: the GPUs of the node.
        wall_ns: Unix nanoseconds.
        visible: minor numbers of the GPUs of the pod's job on the node, for whole GPUs.
    """
    minors = [minor for minor, _ in choice.used]
    texts = {DECIDED_ANNOTATION: uid}
    if any(amounts == WHOLE for _, amounts in choice.used):
        shown = sorted({*minors, *visible})
        return texts | {GROUP_ANNOTATION: _names(minors), VISIBLE_ANNOTATION: _names(shown)}
    for key, part in ((MEMORY_ANNOTATION, "memory"), (CORE_ANNOTATION, "core")):
        units = {n: {minor: getattr(one, part) for minor, one in gpus.items()} for n, gpus in choice.containers.items()}
        if any(sum(gpus.values()) for gpus in units.values()):
            texts[key] = shares_text(Shares({n: gpus for n, gpus in units.items() if any(gpus.values())}))
    memory = sum(amounts.memory for _, amounts in choice.used)
    if len(minors) == 1 and memory:
        of = next((gpu.memory for gpu in node.gpus if gpu.minor == minors[0]), 0)
        texts |= assumed_texts(Assumed(minors[0], memory, of, wall_ns, assigned=False))
    return texts


def _names(minors: list[int]) -> str:
    return ",".join(map(str, minors))
