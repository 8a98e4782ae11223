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
    metadata = mapping(node.get("metadata"))
    spec = mapping(node.get("spec"))
    status = mapping(node.get("status"))
    annotations = mapping(metadata.get("annotations"))
    node_info = mapping(status.get("nodeInfo"))
    return {
        "metadata": {
            **_picked(metadata, ("name", "uid", "resourceVersion", "labels")),
            "annotations": _picked(annotations, _ANNOTATIONS),
        },
        "spec": {"taints": list(mappings(spec.get("taints")))},
        "status": {
            **_picked(status, ("capacity", "allocatable")),
            "conditions": list(mappings(status.get("conditions"))),
            "nodeInfo": _picked(node_info, ("kubeletVersion",)),
        },
    }


def _picked(fields: Mapping[str, Any], names: Iterable[str]) -> Json:
    return {name: fields[name] for name in names if name in fields}
