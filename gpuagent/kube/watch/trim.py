"""Reduces a Node object to the parts that the agent reads, so that the other parts cost no memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings

Json = dict[str, Any]


def trim_node(node: Mapping[str, Any]) -> Json:
    """Return the Node without annotations, image list, field ownership, volumes, and other long parts."""
    spec, status = mapping(node.get("spec")), mapping(node.get("status"))
    return {
        "metadata": _picked(mapping(node.get("metadata")), ("name", "uid", "resourceVersion", "labels")),
        "spec": {"taints": list(mappings(spec.get("taints")))},
        "status": {
            **_picked(status, ("capacity", "allocatable")),
            "conditions": list(mappings(status.get("conditions"))),
            "nodeInfo": _picked(mapping(status.get("nodeInfo")), ("kubeletVersion",)),
        },
    }


def _picked(found: Mapping[str, Any], names: Iterable[str]) -> Json:
    return {name: found[name] for name in names if name in found}
