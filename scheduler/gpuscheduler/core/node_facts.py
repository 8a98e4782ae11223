"""A node as the scheduler keeps it: its GPUs, its CPU, and how shares are placed on it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpuagent.domain.pods.annotations import Malformed
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.scheduling.held_gpus import HeldGpu, held_gpus
from gpuagent.domain.scheduling.node_gpus import MOST_GPUS, NodeGpu, NodeGpus, node_gpus
from gpuagent.domain.sharing.mode import (
    CORE_PERCENT_PER_GPU,
    GPU_CORE,
    GPU_COUNT,
    GPU_MEM,
    GPU_WHOLE,
    PLACEMENT_LABEL,
    Placement,
)
from gpuscheduler.core.gpu_request import WHOLE, Amounts, Used

MODEL_LABEL = "aliyun.accelerator/nvidia_name"
_CPU = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?)([num]?)", re.ASCII)
_SCALES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        name: of the Node.
        gpus: its GPUs.
        cpu: allocatable cores.
        model: of the GPUs; empty if it is not labeled.
        placement: how shares are placed on it.
        assumed: the node does not publish its GPUs, so `gpus` follow from its amounts.
        problem: the published GPUs could not be read.
        held: UID to what a pod uses, for the pods of which the agent publishes it. None if the agent publishes none.
    """

    name: str
    gpus: NodeGpus
    cpu: float = 0.0
    model: str = ""
    placement: Placement = Placement.BINPACK
    assumed: bool = False
    problem: str = ""
    held: Mapping[str, Used] | None = field(default=None, hash=False)


def node_facts(node: Mapping[str, Any], unhealthy: Collection[int] = ()) -> NodeFacts | None:
    """Read a Node object (decoded JSON); None if it has no GPUs.

    `unhealthy` are minor numbers from the ConfigMap `unhealthy-gpu-<node>`, for nodes that do not publish their GPUs.
    """
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    annotations, labels = mapping(metadata.get("annotations")), mapping(metadata.get("labels"))
    allocatable = mapping(status.get("allocatable"))
    published = node_gpus(annotations)
    found = published if isinstance(published, NodeGpus) else _by_amounts(allocatable, unhealthy)
    if not found.gpus:
        return None
    return NodeFacts(
        name=text(metadata.get("name")),
        gpus=_first(found),
        cpu=cores(allocatable.get("cpu")),
        model=text(labels.get(MODEL_LABEL)),
        placement=Placement.SPREAD if labels.get(PLACEMENT_LABEL) == Placement.SPREAD else Placement.BINPACK,
        assumed=published is not found,
        problem=str(published) if isinstance(published, Malformed) else "",
        held=_held(annotations),
    )


@lru_cache(maxsize=4096)
def _first(gpus: NodeGpus) -> NodeGpus:
    """The first value that was equal to this one: a cluster has thousands of nodes, of few kinds."""
    return gpus


def _held(annotations: Mapping[str, Any]) -> dict[str, Used] | None:
    pods = held_gpus(annotations)
    if pods is None or isinstance(pods, Malformed):
        return None
    return {uid: tuple((gpu.minor, _amounts(gpu)) for gpu in sorted(gpus)) for uid, gpus in pods.items()}


def _amounts(gpu: HeldGpu) -> Amounts:
    return WHOLE if gpu.whole else Amounts(gpu.memory, gpu.core)


def _by_amounts(allocatable: Mapping[str, Any], unhealthy: Collection[int]) -> NodeGpus:
    """GPUs as the open scheduler extender assumes them: equal ones, numbered from 0."""
    memory, core, whole, count = (_units(allocatable, name) for name in (GPU_MEM, GPU_CORE, GPU_WHOLE, GPU_COUNT))
    gpus = min(count or whole or core // CORE_PERCENT_PER_GPU, MOST_GPUS)
    if not gpus or not (memory or whole):
        return NodeGpus(())
    one = NodeGpu(0, memory // gpus, core // gpus, whole=bool(whole))
    return NodeGpus(tuple(replace(one, minor=n, usable=n not in unhealthy) for n in range(gpus)), both=bool(core))


def _units(amounts: Mapping[str, Any], name: str) -> int:
    return amount(str(amounts.get(name, "0"))) or 0


def cores(quantity: object) -> float:
    """A quantity of CPU, as nodes and pods have it (``4``, ``0.5``, ``3920m``), in cores; 0 where it is none."""
    match = _CPU.fullmatch(str(quantity))
    return float(match[1]) * _SCALES[match[2]] if match else float(amount(str(quantity)) or 0)
