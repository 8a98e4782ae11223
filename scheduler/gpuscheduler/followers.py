"""Reads the objects that the watches show, and passes them on as the core's values."""

from gpuagent.domain.pods.json_values import mapping, text
from gpuscheduler.cluster_api.connection import Json
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.service import Service


class Nodes:
    """Follows Node objects. A node without GPUs is none."""

    key = "name"

    def __init__(self, service: Service) -> None:
        self._service = service

    def seen(self, found: Json) -> None:
        """Take a node."""
        facts = node_facts(found)
        if facts is None:
            self.gone(text(mapping(found.get("metadata")).get("name")))
        else:
            self._service.node_seen(facts)

    def gone(self, key: str) -> None:
        """Forget a node."""
        self._service.node_gone(key)


class Pods:
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
