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


def read_config_map(found: Mapping[str, Any]) -> GpuConfigMap | None:
    """Parse a ConfigMap; None where it is about something else. Never raises."""
    name = text(mapping(found.get("metadata")).get("name"))
    labels, data = mapping(mapping(found.get("metadata")).get("labels")), mapping(found.get("data"))
    if name.startswith(UNHEALTHY):
        numbers = (_number(part.strip()) for part in text(data.get("gpus")).split(","))
        return GpuConfigMap(name.removeprefix(UNHEALTHY), {gpu: "Unhealthy" for gpu in numbers if gpu is not None})
    if name.endswith(REPORT):
        # Arena uses the label, and other writers may do so, too.
        node = text(labels.get("nodename")) or text(data.get("nodeName")) or name.removesuffix(REPORT)
        devices = mapping(_json(data.get("devices")))
        health = {gpu: text(word) for key, word in devices.items() if (gpu := _number(str(key))) is not None}
        return GpuConfigMap(node, health, whole=True, links=_links(_json(data.get("linkType"))))
    return None


def _number(name: str) -> int | None:
    ok = name.isascii() and name.isdigit() and len(name) < 5 and int(name) < MOST_GPUS
    return int(name) if ok else None


def _json(value: object) -> object:
    try:
        return json.loads(text(value))
    except (ValueError, RecursionError):
        return None


def _links(found: object) -> tuple[tuple[str, ...], ...]:
    rows = found if isinstance(found, list) else []
    square = tuple(tuple(map(text, row)) for row in rows if isinstance(row, list))
    return square if all(len(row) == len(rows) for row in square) and len(square) == len(rows) else ()
