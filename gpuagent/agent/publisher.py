"""Hands each new state to the threads that answer calls."""

import logging
import threading
from collections.abc import Mapping

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain.dra.device_health import device_healths
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.snapshot import Snapshot, snapshot
from gpuagent.domain.state import State
from gpuagent.kube.cluster_sync import ClusterSync
from gpuagent.kube.no_cluster import NoCluster
from gpuagent.kubelet.deviceplugin.device_feed import Feed
from gpuagent.kubelet.dra.health_servicer import HealthServicer
from gpuagent.preparer.preparer import Preparer
from gpuagent.system.last_mode import LastMode

log = logging.getLogger(__name__)


class Publisher:
    """Makes the snapshot of each state, and gives both to whatever answers kubelet.

    Attributes:
        snapshot: the last one.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        allocator: Allocator,
        preparer: Preparer,
        device_health: HealthServicer,
        feeds: Mapping[str, Feed],
        kube: ClusterSync | NoCluster,
        remembered: LastMode | None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._allocator = allocator
        self._preparer = preparer
        self._device_health = device_health
        self._feeds = feeds
        self._kube = kube
        self._remembered = remembered
        """Stores whether a scheduler chooses GPUs on this node; None if nothing would show that."""
        self._working_out: BestSets | None = None
        self._unhealthy: frozenset[str] = frozenset()
        self._withheld: frozenset[str] = frozenset()

    def publish(self, state: State) -> None:
        """Have every call answered from this state from now on."""
        latest = snapshot(state, self.snapshot)
        self.snapshot = latest
        # First, because an RPC that waits for a pod may send an Event about it as soon as it has the snapshot.
        self._kube.set_pods(state.pods.seen)
        self._allocator.publish(latest)
        self._remember_scheduler(latest)
        self._preparer.publish(state)
        self._device_health.publish(device_healths(state))
        self._publish_lists(state)
        self._work_out_sets(latest.sets)

    def _remember_scheduler(self, latest: Snapshot) -> None:
        """Store that a scheduler was seen. At once, as the agent may be killed at any time.

        But after the calls have the pod, because a disk may be slow.
        """
        remembered = self._remembered
        if remembered and latest.schedulers.seen is not remembered.scheduler_seen:
            remembered.keep(schedulers=latest.schedulers.seen)

    def _publish_lists(self, state: State) -> None:
        unhealthy = frozenset(state.unhealthy)
        withheld = state.resizes.withheld
        # Kubelet has to know at once of what it must not allocate any more. Other changes of a list may wait for more.
        is_urgent = not (unhealthy <= self._unhealthy and withheld <= self._withheld)
        self._unhealthy = unhealthy
        self._withheld = withheld
        verified = state.verified
        for resource, blocks in state.advertised.lists.items():
            feed = self._feeds[resource]
            if feed.publish(blocks, urgent=is_urgent, verified=resource in verified):
                _log_list(resource, blocks)

    def _work_out_sets(self, sets: BestSets | None) -> None:
        if sets is None or sets.exact or sets is self._working_out:
            return
        self._working_out = sets
        # This takes long only for sixteen GPUs with different links; nothing else waits for it.
        threading.Thread(target=sets.work_out, name="best-sets", daemon=True).start()


def _log_list(resource: str, blocks: tuple[DeviceRange, ...]) -> None:
    healthy = sum(block.healthy_units for block in blocks)
    devices = sum(block.listed for block in blocks)
    log.info("Advertised", extra={"resource": resource, "healthy": healthy, "devices": devices})
