"""The annotations of a decision, in every family that agents and tools read."""

from collections.abc import Callable, Collection

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
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.gpu_request import WHOLE, Amounts


def decision_annotations(
    uid: str,
    choice: Choice,
    node: NodeGpus,
    wall_ns: int,
    visible: Collection[int] = (),
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
        texts[GROUP_ANNOTATION] = _names(minors)
        texts[VISIBLE_ANNOTATION] = _names(shown)
        return texts
    parts = {
        MEMORY_ANNOTATION: _units(choice, lambda amounts: amounts.memory),
        CORE_ANNOTATION: _units(choice, lambda amounts: amounts.core),
    }
    for annotation, units in parts.items():
        if units:
            texts[annotation] = shares_text(Shares(units))
    memory = sum(amounts.memory for _, amounts in choice.used)
    if len(minors) == 1 and memory:
        # The older form has place for one GPU.
        total = next((gpu.memory for gpu in node.gpus if gpu.minor == minors[0]), 0)
        decided = Assumed(
            minors[0],
            memory,
            total,
            wall_ns,
            assigned=False,
        )
        texts.update(assumed_texts(decided))
    return texts


def _units(choice: Choice, of_part: Callable[[Amounts], int]) -> dict[int, dict[int, int]]:
    """Units of one part by container and minor number, for the containers that have some."""
    units: dict[int, dict[int, int]] = {}
    for container, gpus in choice.containers.items():
        of_container: dict[int, int] = {}
        for minor, amounts in gpus.items():
            of_container[minor] = of_part(amounts)
        if any(of_container.values()):
            units[container] = of_container
    return units


def _names(minors: list[int]) -> str:
    return ",".join(map(str, minors))
