"""Reads the objects that the watches show, and passes them on as the core's values."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.scheduling.node_links import BANDWIDTH_KEY, node_links
from gpuscheduler.cluster_api.connection import Json
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.service import Service

CONFIG_MAPS = "kube-system"
"""Namespace of the ConfigMaps about nodes."""
UNHEALTHY, REPORT = "unhealthy-gpu-", "-gputopo-report"
"""Before a node's name in the ConfigMap of its unhealthy GPUs, and after it in that of its links."""
_MINOR = re.compile(r"[0-9]{1,9}")
"""A minor number. Python refuses to read a number of thousands of digits."""


class PodFollower:
    """Follows Pod objects."""

    key = "uid"

    def __init__(self, service: Service) -> None:
        self._service = service

    def seen(self, found: Json) -> None:
        """Take a pod."""
        self._service.pod_seen(pod_facts(found))

    def gone(self, key: str) -> None:
        """Forget a pod."""
        self._service.pod_gone(key)


class NodeFollower:
    """Follows Node objects, with what ConfigMaps add. A node without GPUs is none."""

    key = "name"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._unpublished: dict[str, Json] = {}
        self._unhealthy: dict[str, Collection[int]] = {}
        self._reports: dict[str, Mapping[str, Any]] = {}

    def seen(self, found: Json) -> None:
        """Take a node."""
        name = text(mapping(found.get("metadata")).get("name"))
        facts = node_facts(found, self._unhealthy.get(name, ()))
        if facts is None:
            self.gone(name)
            return
        if facts.assumed:  # needed again when its unhealthy GPUs change
            self._unpublished[name] = {key: found.get(key) for key in ("metadata", "status")}
        else:
            self._unpublished.pop(name, None)
        self._service.node_seen(facts)
        self._learn_links(name)

    def gone(self, key: str) -> None:
        """Forget a node."""
        self._unpublished.pop(key, None)
        self._service.node_gone(key)

    def unhealthy(self, name: str, minors: Collection[int]) -> None:
        """Take the minor numbers of a node's unhealthy GPUs, which count unless the node publishes its GPUs."""
        self._unhealthy[name] = minors
        if node := self._unpublished.get(name):
            self.seen(node)

    def report(self, name: str, data: Mapping[str, Any]) -> None:
        """Take the ConfigMap with a node's links; it has no data when it is gone."""
        self._reports.pop(name, None)
        if BANDWIDTH_KEY in data:
            self._reports[name] = {BANDWIDTH_KEY: data[BANDWIDTH_KEY]}
            self._learn_links(name)

    def _learn_links(self, name: str) -> None:
        """Have the core know the links of a node, once node and ConfigMap agree. Most nodes are alike."""
        node, data = self._service.core.usage.nodes.get(name), self._reports.get(name)
        if node and data and (mbps := node_links(data, node.facts.gpus)) is not None:
            del self._reports[name]
            self._service.core.links.seen(node.facts.gpus.links, mbps)


class ConfigMapFollower:
    """Follows the ConfigMaps about nodes."""

    key = "name"

    def __init__(self, nodes: NodeFollower) -> None:
        self._nodes = nodes

    def seen(self, found: Json) -> None:
        """Take a ConfigMap."""
        name, data = text(mapping(found.get("metadata")).get("name")), mapping(found.get("data"))
        if name.startswith(UNHEALTHY):
            numbers = (number.strip() for number in text(data.get("gpus")).split(","))
            minors = {int(number) for number in numbers if _MINOR.fullmatch(number)}
            self._nodes.unhealthy(name.removeprefix(UNHEALTHY), minors)
        elif name.endswith(REPORT):
            self._nodes.report(name.removesuffix(REPORT), data)

    def gone(self, key: str) -> None:
        """Forget a ConfigMap. Links that were learned stay."""
        self.seen({"metadata": {"name": key}})
