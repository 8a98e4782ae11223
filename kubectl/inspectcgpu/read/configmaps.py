"""ConfigMaps about a node's GPUs: which are unhealthy, and which links join them in mode `topology`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, text
from inspectcgpu.read.gpu_node import MOST_GPUS

NAMESPACE = "kube-system"
UNHEALTHY, REPORT = "unhealthy-gpu-", "-gputopo-report"
HEALTHY = "Healthy"


@dataclass(frozen=True, slots=True)
class GpuConfigMap:
    """One ConfigMap's data about a node.

    Attributes:
        node: name of the node.
        health: minor number of a GPU to ``Healthy`` or another word; only those that it names.
        whole: it names every GPU of the node.
        links: type of link between every two GPUs, ``NV2``; empty where it has none.
    """

    node: str
    health: Mapping[int, str]
    whole: bool = False
    links: tuple[tuple[str, ...], ...] = ()


def read_config_map(configmap: Mapping[str, Any]) -> GpuConfigMap | None:
    """Parse a ConfigMap; None where it is about something else. Never raises."""
    metadata = mapping(configmap.get("metadata"))
    data = mapping(configmap.get("data"))
    name = text(metadata.get("name"))
    if name.startswith(UNHEALTHY):
        return _unhealthy_gpus(name.removeprefix(UNHEALTHY), data)
    if name.endswith(REPORT):
        labels = mapping(metadata.get("labels"))
        # Arena uses the label, and other writers may do so, too.
        node = text(labels.get("nodename")) or text(data.get("nodeName")) or name.removesuffix(REPORT)
        return _topology_report(node, data)
    return None


def _unhealthy_gpus(node: str, data: Mapping[str, Any]) -> GpuConfigMap:
    health: dict[int, str] = {}
    for part in text(data.get("gpus")).split(","):
        gpu = _number(part.strip())
        if gpu is not None:
            health[gpu] = "Unhealthy"
    return GpuConfigMap(node, health)


def _topology_report(node: str, data: Mapping[str, Any]) -> GpuConfigMap:
    health: dict[int, str] = {}
    for key, word in mapping(_json(data.get("devices"))).items():
        gpu = _number(str(key))
        if gpu is not None:
            health[gpu] = text(word)
    links = _links(_json(data.get("linkType")))
    return GpuConfigMap(node, health, whole=True, links=links)


def _number(name: str) -> int | None:
    """The minor number of a GPU; None if the text is not one."""
    is_short_number = name.isascii() and name.isdigit() and len(name) < 5
    if not is_short_number or int(name) >= MOST_GPUS:
        return None
    return int(name)


def _json(value: object) -> object:
    try:
        return json.loads(text(value))
    except (ValueError, RecursionError):
        return None


def _links(value: object) -> tuple[tuple[str, ...], ...]:
    """The links of each GPU to each other; none if these are not as many in each row as there are rows."""
    rows = value if isinstance(value, list) else []
    lines = []
    for row in rows:
        is_as_long = isinstance(row, list) and len(row) == len(rows)
        if not is_as_long:
            return ()
        lines.append(tuple(map(text, row)))
    return tuple(lines)
