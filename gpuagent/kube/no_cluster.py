"""Stands where `ClusterSync` would, in an agent that uses no API server."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.state import State
from gpuagent.domain.usage.idle_policy import IdlePod


class NoCluster:
    """Reads nothing, writes nothing and sends nothing, so that no caller has to ask whether there is an API server."""

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def observe(self, node: Mapping[str, Any]) -> None:
        """Nothing is written on a Node."""

    def set_pods(self, pods: Collection[Pod]) -> None:
        """No Event is about a pod."""

    def desire(self, state: State) -> None:
        """Nothing is written."""

    def set_idle_pods(self, pods: Iterable[IdlePod]) -> None:
        """No namespace has a policy."""

    def send_event(self, announcement: Announcement) -> None:
        """Events have nowhere to go. The log has every announcement."""

    def fetch(self, _pods: Collection[PodName] | None, _timeout_s: float) -> frozenset[str] | None:
        """No pod can be read."""
        return None

    def claim(self, _namespace: str, _name: str) -> dict[str, Any]:
        """Never called, because the driver for claims is not registered."""
        return {}

    def is_of_administrators(self, _namespace: str) -> bool:
        """Never called, because the driver for claims is not registered."""
        return False

    def is_forgotten(self, _claim: PreparedClaim) -> bool:
        """It cannot be known that a claim is gone."""
        return False
