"""Reduces a Node object to the parts that the agent reads, so that the other parts cost no memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION
from gpuagent.domain.pods.json_values import mapping, mappings
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION

Json = dict[str, Any]
_ANNOTATIONS = (NODE_GPUS_ANNOTATION, HELD_GPUS_ANNOTATION, KNOWN_GPUS_ANNOTATION)


def trim_node(node: Mapping[str, Any]) -> Json:
    """Return the Node without others' annotations, image list, field ownership, volumes, and other long parts."""
    metadata, spec, status = (mapping(node.get(part)) for part in ("metadata", "spec", "status"))
    return {
        "metadata": {
            **_picked(metadata, ("name", "uid", "resourceVersion", "labels")),
            "annotations": _picked(mapping(metadata.get("annotations")), _ANNOTATIONS),
        },
        "spec": {"taints": list(mappings(spec.get("taints")))},
        "status": {
            **_picked(status, ("capacity", "allocatable")),
            "conditions": list(mappings(status.get("conditions"))),
            "nodeInfo": _picked(mapping(status.get("nodeInfo")), ("kubeletVersion",)),
        },
    }


def _picked(found: Mapping[str, Any], names: Iterable[str]) -> Json:
    return {name: found[name] for name in names if name in found}
