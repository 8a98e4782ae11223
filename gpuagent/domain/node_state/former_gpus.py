"""The GPUs that the node had before, as its annotation `gpuagent.io/known-gpus` has them.

So a GPU that is missing or has less memory after a restart or a reboot is noticed. The operator removes the annotation
when that was on purpose, and the agent writes it again with the GPUs that are there.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import decoded, mapping, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.scheduling.node_gpus import NodeGpus, node_gpus

KNOWN_GPUS_ANNOTATION = "gpuagent.io/known-gpus"
COUNT_LABEL = "aliyun.accelerator/nvidia_count"
MOST_FORMER = 64
"""More GPUs than a node has; entries beyond are not kept."""
_MOST_KEY = 64
_MOST_MIB = 4 << 20
"""4 TiB, more than a GPU has."""


class FormerGpu(NamedTuple):
    """A GPU that the node had before.

    Attributes:
        pci: its PCI address; empty if that is not known.
        memory_mib: the most memory that it had; 0 if that is not known.
    """

    pci: str = ""
    memory_mib: int = 0


FormerGpus = Mapping[str, FormerGpu]
"""By UUID. A GPU that an agent before this annotation saw has another key: ``minor 3`` or ``number 8``."""


def former_gpus(node: Mapping[str, Any]) -> FormerGpus | None:
    """The GPUs of the annotation; None without it. A text that is not the agent's own counts as no GPU."""
    annotations = _metadata(node, "annotations")
    written = annotations.get(KNOWN_GPUS_ANNOTATION)
    if written is None:
        return None
    gpus = mapping(decoded(written))
    entries = list(gpus.items())[:MOST_FORMER]
    former = {}
    for uuid, entry in entries:
        gpu = _former_gpu(entry)
        if gpu is not None and max(len(uuid), len(gpu.pci)) <= _MOST_KEY:
            former[uuid] = gpu
    return former


def _former_gpu(entry: object) -> FormerGpu | None:
    """One entry; None if it is not the agent's own."""
    # Agents wrote the address alone before they wrote the memory.
    if isinstance(entry, str):
        return FormerGpu(entry)
    fields = mapping(entry)
    pci = fields.get("pci")
    if not isinstance(pci, str):
        return None
    mib = fields.get("mib")
    # Not isinstance: for Python, true and false are numbers.
    if type(mib) is int and 0 <= mib <= _MOST_MIB:
        return FormerGpu(pci, mib)
    return FormerGpu(pci)


def gpus_before_annotation(node: Mapping[str, Any]) -> FormerGpus:
    """The GPUs that an agent without this annotation published: by minor number, or by their count only."""
    annotations = _metadata(node, "annotations")
    published = node_gpus(annotations)
    if isinstance(published, NodeGpus) and published.gpus:
        names = [f"minor {gpu.minor}" for gpu in published.gpus]
        return dict.fromkeys(names, FormerGpu())
    labels = _metadata(node, "labels")
    written = text(labels.get(COUNT_LABEL))
    count = amount(written) or 0
    # Anyone who may change the Node can write any number in the label.
    count = min(count, MOST_FORMER)
    names = [f"number {number}" for number in range(1, count + 1)]
    return dict.fromkeys(names, FormerGpu())


def former_gpus_text(gpus: FormerGpus) -> str:
    """The annotation's text."""
    in_order = sorted(gpus.items())
    kept = {}
    for uuid, gpu in in_order[:MOST_FORMER]:
        kept[uuid] = {"pci": gpu.pci, "mib": gpu.memory_mib}
    return json.dumps(kept, separators=(",", ":"))


def _metadata(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    metadata = mapping(mapping(node).get("metadata"))
    return mapping(metadata.get(part))
