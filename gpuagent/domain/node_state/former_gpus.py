"""The GPUs that the node had before, as its annotation `gpuagent.io/known-gpus` has them.

So a GPU that is missing after a restart or a reboot is noticed. The operator removes the annotation when GPUs were
taken out on purpose, and the agent writes it again with the GPUs that are there.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.json_values import decoded, mapping, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.scheduling.node_gpus import NodeGpus, node_gpus

KNOWN_GPUS_ANNOTATION = "gpuagent.io/known-gpus"
COUNT_LABEL = "aliyun.accelerator/nvidia_count"
MOST_FORMER = 64
"""More GPUs than a node has; entries beyond are not kept."""
_MOST_KEY = 64

FormerGpus = Mapping[str, str]
"""UUID to PCI address. A GPU that an agent before this annotation saw has another key: ``minor 3`` or ``number 8``."""


def former_gpus(node: Mapping[str, Any]) -> FormerGpus | None:
    """The GPUs of the annotation; None without it. A text that is not the agent's own counts as no GPU."""
    written = _metadata(node, "annotations").get(KNOWN_GPUS_ANNOTATION)
    if written is None:
        return None
    entries = list(mapping(decoded(written)).items())[:MOST_FORMER]
    return {uuid: address for uuid, address in entries if _is_former(uuid, address)}


def _is_former(uuid: str, address: object) -> bool:
    return isinstance(address, str) and len(uuid) <= _MOST_KEY and len(address) <= _MOST_KEY


def gpus_before_annotation(node: Mapping[str, Any]) -> FormerGpus:
    """The GPUs that an agent without this annotation published: by minor number, or by their count only."""
    published = node_gpus(_metadata(node, "annotations"))
    if isinstance(published, NodeGpus) and published.gpus:
        return {f"minor {gpu.minor}": "" for gpu in published.gpus}
    count = amount(text(_metadata(node, "labels").get(COUNT_LABEL))) or 0
    numbers = range(1, min(count, MOST_FORMER) + 1)
    return {f"number {number}": "" for number in numbers}


def former_gpus_text(gpus: FormerGpus) -> str:
    """The annotation's text."""
    kept = sorted(gpus.items())[:MOST_FORMER]
    return json.dumps(dict(kept), separators=(",", ":"))


def _metadata(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    metadata = mapping(mapping(node).get("metadata"))
    return mapping(metadata.get(part))
