"""Takes limits of dead pods off the containers of pods without a share.

On backend `misc`, the driver keeps a limit by the kernel's address of the cgroup, and new cgroups get used addresses.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable

from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.pods import PodLimits

FOREIGN_S = 60.0
"""How often all pods without a share are looked at. Their new containers are looked at as they appear."""


class ForeignLimits:
    """Knows which pods have a share, and frees the others. For several threads.

    Args:
        pods: reads and sets limits.
        count: called with why a limit was taken off.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pods: PodLimits,
        count: Callable[[Why], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._count = count
        self._clock = clock
        # Held while a limit is taken off, so that none is of a pod that has just got its share.
        self._lock = threading.Lock()
        self._with_share: set[str] = set()
        self._looked_at = float("-inf")

    def has_share(self, uid: str) -> None:
        """Take no limit off this pod's containers from now on."""
        with self._lock:
            self._with_share.add(uid)

    def forget_ended(self, uids: Collection[str]) -> set[str]:
        """Drop the pods that have ended and return their UIDs. A pod that starts just now may not be in `uids` yet."""
        known = tuple(self._with_share)
        ended = {uid for uid in known if uid not in uids and self._pods.directory(uid) is None}
        with self._lock:
            self._with_share -= ended
        return ended

    def clear_all(self, uuids: Iterable[str]) -> None:
        """Look at every pod of the node, if it is time. Raises LimitsError."""
        now = self._clock()
        if now - self._looked_at < FOREIGN_S:
            return
        self._looked_at = now
        uuids = tuple(uuids)
        for uid in self._pods.root.pods():
            self.clear(uid, uuids)

    def clear(self, uid: str, uuids: Iterable[str]) -> None:
        """Look at one pod, unless it has a share. Raises LimitsError."""
        if uid in self._with_share:
            return
        for repair in self._pods.foreign(uid, uuids):
            with self._lock:
                if uid in self._with_share:
                    return  # the limit that was read is its own
                self._pods.clear(uid, repair)
            self._count(repair.why)
