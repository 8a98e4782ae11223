"""Kubelet's own record of the devices that containers hold."""

from collections.abc import Collection
from typing import Protocol

from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.events import HoldingsRead
from gpuagent.domain.pods.pod import PodName


class KubeletAllocations(Protocol):
    """Kubelet's own record of the devices that containers hold (pod-resources API)."""

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        """Those of the pods that kubelet lists, also during their admission; None if kubelet does not answer.

        Args:
            pods: their names; None for all.
            listing: whether to allow a query for the whole list. That makes kubelet lose ids that it has only reserved
                for this call.
        """

    def read(self, timeout_s: float) -> HoldingsRead | None:
        """All holdings, read after this call began; None if that took too long or kubelet cannot be queried."""
