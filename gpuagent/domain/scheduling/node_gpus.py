"""The node annotation `gpuagent.io/gpus`, in which the agent publishes the GPUs that a scheduler may use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.domain.pods.annotations import MOST_UNITS, Malformed, shown
from gpuagent.domain.pods.json_values import decoded

NODE_GPUS_ANNOTATION = "gpuagent.io/gpus"
MOST_GPUS = 64
"""GPUs of a node that are read."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """One GPU in the mode in force.

    Attributes:
        minor: its minor number, the index that schedulers use.
        memory: units of `aliyun.com/gpu-mem`; 0 in modes without.
        core: percent of `aliyun.com/gpu-core.percentage`; 0 in modes without.
        whole: whether it is advertised as one `aliyun.com/gpu`.
        usable: it is healthy, not fenced, and no container holds it in another mode.
    """

    minor: int
    memory: int = 0
    core: int = 0
    whole: bool = False
    usable: bool = True


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of a node.

    Attributes:
        gpus: by ascending minor number.
        unit_mib: MiB of one unit of memory.
        most_pods: how many pods may share a GPU.
        core_step: requests for compute are multiples of this many percent.
        both: a container must ask for memory and compute, or neither.
        links: identifies the links between the GPUs; empty if none are known. Nodes with equal text have equal links.
    """

    gpus: tuple[NodeGpu, ...]
    unit_mib: int = 1024
    most_pods: int = 20
    core_step: int = 1
    both: bool = False
    links: str = ""


def node_gpus_text(published: NodeGpus) -> str:
    """The annotation's text; `node_gpus` reads the same back. For 16 GPUs, it has at most 640 bytes, all ASCII."""
    values = {
        "v": _VERSION,
        "unit": published.unit_mib,
        "pods": published.most_pods,
        "step": published.core_step,
        "both": published.both,
        "links": published.links,
        "gpus": [_entry(gpu) for gpu in published.gpus],
    }
    return json.dumps(values, separators=(",", ":"))


def node_gpus(annotations: Mapping[str, Any]) -> NodeGpus | Malformed | None:
    """Read the annotation; None where it is absent. Each GPU is `[minor, memory, core, whole, usable]`."""
    text = annotations.get(NODE_GPUS_ANNOTATION)
    if text is None:
        return None
    values = decoded(text)
    if not isinstance(values, dict) or values.get("v") != _VERSION:
        return Malformed(NODE_GPUS_ANNOTATION, f"is not an object of version {_VERSION}: {shown(text)}")
    published = _without_gpus(values)
    if published is None:
        return Malformed(NODE_GPUS_ANNOTATION, f"lacks unit, pods, step, both or links: {shown(text)}")
    entries: Any = values.get("gpus")
    if not _are_gpus(entries):
        return Malformed(NODE_GPUS_ANNOTATION, f"has an invalid list of GPUs: {shown(text)}")
    gpus = [_gpu(entry) for entry in sorted(entries)]
    minors = {gpu.minor for gpu in gpus}
    if len(minors) < len(gpus):
        return Malformed(NODE_GPUS_ANNOTATION, f"has a GPU twice: {shown(text)}")
    return replace(published, gpus=tuple(gpus))


def _without_gpus(values: Mapping[str, Any]) -> NodeGpus | None:
    """What the annotation says of the node; None if a part is absent or of another shape."""
    unit = _number(values.get("unit"))
    pods = _number(values.get("pods"))
    step = _number(values.get("step"))
    links = values.get("links")
    both = values.get("both")
    # Nothing can be divided by a unit or a step of 0.
    if not unit or not step or pods is None:
        return None
    if not isinstance(links, str) or not isinstance(both, bool):
        return None
    return NodeGpus(
        gpus=(),
        unit_mib=unit,
        most_pods=pods,
        core_step=step,
        both=both,
        links=links,
    )


def _entry(gpu: NodeGpu) -> list[int]:
    return [
        gpu.minor,
        gpu.memory,
        gpu.core,
        int(gpu.whole),
        int(gpu.usable),
    ]


def _gpu(entry: list[int]) -> NodeGpu:
    minor, memory, core, whole, usable = entry
    return NodeGpu(minor, memory, core, bool(whole), bool(usable))


def _are_gpus(entries: Any) -> bool:  # noqa: ANN401 (whatever the text has)
    if not isinstance(entries, list) or len(entries) > MOST_GPUS:
        return False
    return all(map(_is_gpu, entries))


def _is_gpu(entry: object) -> bool:
    width = len(NodeGpu.__dataclass_fields__)
    if not isinstance(entry, list) or len(entry) != width:
        return False
    return None not in map(_number, entry)


def _number(value: object) -> int | None:
    # The type itself is compared, because True is an int, too.
    if type(value) is not int:
        return None
    return value if 0 <= value <= MOST_UNITS else None
