"""Takes limits of dead pods off new containers that have no share of the GPU.

On backend `misc`, the driver keeps a limit by the kernel's address of the cgroup, and new cgroups get used addresses.
Of pods without any share, only containers are touched that appear while this agent runs. Before that, another agent may
have limited the pod. Of a pod with a share, this agent knows all limits that it should have.
"""

import threading
from collections.abc import Callable, Collection, Iterable

from gpuagent.host.cgroups import leaves
from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.pods import PodLimits

_MOST_LATE = 4096
"""Containers that are kept in mind while the helper is away."""


class ForeignLimits:
    """Knows which pods have a share, and frees the others. For several threads.

    Args:
        pods: reads and sets limits.
        count: called with why a limit was taken off.
    """

    def __init__(self, pods: PodLimits, count: Callable[[Why], None]) -> None:
        self._pods = pods
        self._count = count
        # Held while a limit is taken off, so that none is of a pod that has just got its share.
        self._lock = threading.Lock()
        self._with_share: set[str] = set()
        self._looked_at: dict[str, set[str]] = {}
        """UID of a pod with a share to its containers' cgroups that were looked at."""
        self._older = {uid: frozenset(leaves(directory)) for uid, directory in pods.root.pods().items()}
        """UID of each pod that was there before to its containers' cgroups then."""
        self._late: dict[tuple[str, str], None] = {}

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
            for uid in ended:
                self._looked_at.pop(uid, None)
        return ended

    def clear_other_gpus(self, uid: str, uuids: Iterable[str]) -> None:
        """Look once at each container of a pod with a share, at GPUs of which it has none. Raises LimitsError.

        Such a GPU may be one that the pod has whole.
        """
        present = set(self._pods.leaves(uid))
        others = tuple(uuids)
        with self._lock:
            looked_at = present & self._looked_at.get(uid, set())
        new = present - looked_at
        limited = self._pods.limited_gpus(uid, others) if new else frozenset()
        for leaf in new:
            for repair in self._pods.foreign(uid, leaf, others, limited):
                self._pods.clear(uid, repair)
                self._count(repair.why)
            looked_at.add(leaf)
        with self._lock:
            self._looked_at[uid] = looked_at

    def look_later(self, uid: str, leaf: str) -> None:
        """Keep a container in mind that cannot be looked at now."""
        with self._lock:
            if len(self._late) < _MOST_LATE:
                self._late[uid, leaf] = None

    def take_late(self) -> list[tuple[str, str]]:
        """The containers to look at now: UID of the pod, and name of the cgroup."""
        with self._lock:
            late = list(self._late)
            self._late = {}
        return late

    def clear(self, uid: str, leaf: str, uuids: Collection[str]) -> None:
        """Look at a new container, unless its pod has a share. Raises LimitsError."""
        if uid in self._with_share or leaf in self._older.get(uid, ()):
            return
        limited = self._pods.limited_gpus(uid, uuids)
        if uid in self._older:
            # Another agent may have limited the pod. Only a container's own limit is inherited for certain.
            uuids = [uuid for uuid in uuids if uuid not in limited]
        for repair in self._pods.foreign(uid, leaf, uuids, limited):
            with self._lock:
                if uid in self._with_share:
                    return  # the limit that was read is its own
                self._pods.clear(uid, repair)
            self._count(repair.why)
