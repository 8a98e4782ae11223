"""Takes limits of dead pods off new containers that have no share of the GPU.

On backend `misc`, the driver keeps a limit by the kernel's address of the cgroup, and new cgroups get used addresses.
Of pods without any share, only containers are touched that appear while this agent runs. Before that, another agent may
have limited the pod. Of a pod with a share, this agent knows all limits that it should have.
"""

import logging
import threading
from collections.abc import Callable, Collection

from gpuagent.host.cgroups import leaves
from gpuagent.host.limits_client import HelperGoneError, LimitsError
from gpuagent.isolation.interface import Need
from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.plan import Backend
from gpuagent.isolation.limits.pods import PodLimits
from gpuagent.isolation.limits.warned import Warned

log = logging.getLogger(__name__)

_MOST_LATE = 4096
"""Containers that are kept in mind while the helper is away."""


class ForeignLimits:
    """Knows which pods have a share, and frees the others. For several threads; on backend `dmem`, it does nothing.

    Args:
        pods: reads and sets limits.
        warned: which pods the log has warned of.
        count: called with why a limit was taken off.
    """

    def __init__(self, pods: PodLimits, warned: Warned, count: Callable[[Why], None]) -> None:
        self._pods = pods
        self._warned = warned
        self._count = count
        self._need = Need()
        # Held while a limit is taken off, so that none is of a pod that has just got its share.
        self._lock = threading.Lock()
        self._with_share: set[str] = set()
        self._looked_at: dict[str, set[str]] = {}
        """UID of a pod with a share to its containers' cgroups that were looked at."""
        self._older = {uid: frozenset(leaves(directory)) for uid, directory in pods.root.pods().items()}
        """UID of each pod that was there before to its containers' cgroups then."""
        self._late: dict[tuple[str, str], None] = {}
        """UIDs of pods and cgroups of containers that are to be looked at."""

    def desire(self, need: Need) -> None:
        """Know the node's GPUs and the pods with a share from now on."""
        self._need = need

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

    def appeared(self, uid: str, leaf: str, *, are_shares_known: bool) -> None:
        """Look at a new container of a pod that seems to have no share. Raises LimitsError."""
        if self._pods.backend is not Backend.MISC:
            return
        if not are_shares_known or not self._need.knows_pods:
            self._look_later(uid, leaf)
            return
        try:
            self._clear(uid, leaf)
        except HelperGoneError:
            self._look_later(uid, leaf)
            raise

    def look_at_late(self) -> None:
        """Look at the containers that could not be looked at when they appeared. Raises HelperGoneError."""
        with self._lock:
            late = list(self._late)
            self._late = {}
        for uid, leaf in late:
            try:
                self._clear(uid, leaf)
            except HelperGoneError:
                self._look_later(uid, leaf)
                raise
            except LimitsError as err:
                log.warning("Failed to look at a new container", extra={"pod_uid": uid, "error": str(err)})

    def clear_other_gpus(self, uid: str, limited: Collection[str]) -> None:
        """Look once at each container of a pod with a share, at GPUs of which it has none.

        Such a GPU may be one that the pod has whole.

        Args:
            uid: of the pod.
            limited: UUIDs of the GPUs of which it has a share.

        Raises:
            HelperGoneError: nothing can be read.
        """
        if self._pods.backend is not Backend.MISC or not self._need.knows_pods:
            return
        others = [gpu.uuid for gpu in self._need.gpus if gpu.uuid not in limited]
        try:
            self._clear_each(uid, others)
        except HelperGoneError:
            raise
        except LimitsError as err:
            # A container with less than it should have is no reason to give up the audit.
            if self._warned.is_first(uid, "other GPUs"):
                log.warning("Failed to look at a new container", extra={"pod_uid": uid, "error": str(err)})

    def _clear_each(self, uid: str, uuids: Collection[str]) -> None:
        present = set(self._pods.leaves(uid))
        with self._lock:
            looked_at = present & self._looked_at.get(uid, set())
        new = present - looked_at
        limited = self._pods.limited_gpus(uid, uuids) if new else frozenset()
        for leaf in new:
            for repair in self._pods.foreign(uid, leaf, uuids, limited):
                self._pods.clear(uid, repair)
                self._count(repair.why)
            looked_at.add(leaf)
        with self._lock:
            self._looked_at[uid] = looked_at

    def _look_later(self, uid: str, leaf: str) -> None:
        with self._lock:
            if len(self._late) < _MOST_LATE:
                self._late[uid, leaf] = None

    def _clear(self, uid: str, leaf: str) -> None:
        """Look at a new container, unless its pod has a share."""
        if uid in self._with_share or leaf in self._older.get(uid, ()):
            return
        uuids = [gpu.uuid for gpu in self._need.gpus]
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
