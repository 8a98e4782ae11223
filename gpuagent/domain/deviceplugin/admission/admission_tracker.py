"""The agent's record of kubelet's calls: which pod kubelet is admitting, and which ones it never admits again."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuagent.domain.deviceplugin.admission.recent_allocations import (
    REMEMBER_S,
    ByPod,
    RecentAllocation,
    RecentAllocations,
)
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.snapshot import Snapshot

ADMISSION_S = 30.0
"""The calls of one pod's admission follow each other. After a pause of this length, a call is for another pod."""

DELETED_S = 30.0
"""How long kubelet may still admit a pod whose deletion the agent has seen."""


class DeletedPod(NamedTuple):
    """A pod that was deleted before it held a device, and the monotonic seconds of the sighting."""

    at: float
    pod: Pod


class RefusedName(NamedTuple):
    """The name of a refused pod that the agent has not read yet, and the monotonic seconds of the refusal."""

    at: float
    pod: PodName


@dataclass(frozen=True)
class AdmissionTracker:
    """The agent's record of kubelet's calls.

    Attributes:
        record: allocations of the last minutes.
        admission: allocations of the pod in admission, oldest first.
        refused: UIDs of pods that the agent refused, or whose units kubelet assigned to others. Kubelet never admits
            them again, unless it is restarted.
        deleted: pods that kubelet may still admit although they were deleted.
        refused_names: refused pods whose UIDs are still to come.
        relisted: UIDs of the pods that lived when kubelet was restarted: it takes them by age then.
    """

    record: RecentAllocations = field(default_factory=RecentAllocations)
    admission: tuple[RecentAllocation, ...] = ()
    refused: frozenset[str] = frozenset()
    deleted: tuple[DeletedPod, ...] = ()
    refused_names: tuple[RefusedName, ...] = ()
    relisted: frozenset[str] = frozenset()

    @property
    def recent(self) -> tuple[RecentAllocation, ...]:
        """Allocations of the last minutes, oldest first."""
        return self.record.allocations

    @property
    def by_pod(self) -> ByPod:
        """The same by pod."""
        return self.record.by_pod

    @property
    def last(self) -> RecentAllocation | None:
        """The last allocation of the pod in admission."""
        return self.admission[-1] if self.admission else None

    def allocated(self, allocation: RecentAllocation) -> "AdmissionTracker":
        """The record after an answered Allocate."""
        others = self.record.freeing(allocation.ids)
        refused = self.refused
        if others is not self.record:
            # Kubelet has given these ids to a new container, so it has rejected the pods that had them.
            rejected = self.record.holders(allocation.ids)
            refused |= rejected.difference(others.by_pod)
        # A pod that gets devices is being admitted: a restarted kubelet tries rejected pods again.
        refused -= {allocation.pod_uid}
        admission = self._admission_after(allocation)
        record = others.adding(allocation)
        return replace(self, record=record, admission=admission, refused=refused)

    def _admission_after(self, allocation: RecentAllocation) -> tuple[RecentAllocation, ...]:
        """Allocations of the pod in admission, after this one."""
        last = self.last
        if last is None:
            return (allocation,)
        if allocation.owner is None:
            # An unseen container has at most two resources. With the second one, it is complete.
            is_second_resource = last.owner is None and last.resource != allocation.resource
            return () if is_second_resource else (allocation,)
        if last.pod_uid != allocation.pod_uid:
            return (allocation,)
        replaced = allocation.owner, allocation.resource
        earlier = [other for other in self.admission if (other.owner, other.resource) != replaced]
        return (*earlier, allocation)

    def freeing(self, ids: frozenset[str]) -> "AdmissionTracker":
        """After kubelet has freed these ids."""
        record = self.record.freeing(ids)
        if record is self.record:
            return self
        return replace(self, record=record)

    def refusing(
        self,
        pod: Pod | None,
        begun: Collection[PodName],
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """After a refusal: kubelet rejects the pod in admission.

        Args:
            pod: that pod; None if it is uncertain.
            begun: pods that kubelet listed without devices during the refused call. Kubelet lists a pod from the
                beginning of its admission on, and admits one at a time: so it is done with each of them.
            snap: the current snapshot.
            at: monotonic seconds.
        """
        refused = {*self.refused}
        if pod is not None:
            refused.add(pod.uid)
        refused_names = [*self.refused_names]
        # Under the name of a deleted pod, kubelet may have listed either that pod or the one that took its name.
        ambiguous = {entry.pod.name for entry in self.deleted}
        for name in begun:
            if name in ambiguous:
                continue
            living = snap.living_pods.get(name)
            if living:
                refused.add(living.uid)
            else:
                # The watch has yet to show it. Its UID comes with the snapshot that has the pod.
                refused_names.append(RefusedName(at, name))
        return replace(
            self,
            admission=(),
            refused=frozenset(refused),
            refused_names=tuple(refused_names),
        )

    def restarted(self, snap: Snapshot | None) -> "AdmissionTracker":
        """After a start of kubelet: it may admit again what it has rejected, and lists a pod only from then on.

        It reads its pods from the API server again, so it asks for no deleted pod that was rejected before.
        """
        relisted = frozenset(snap.pod_index.by_uid) if snap else frozenset[str]()
        deleted = [entry for entry in self.deleted if entry.pod.uid not in self.refused]
        return replace(
            self,
            admission=(),
            refused=frozenset(),
            deleted=tuple(deleted),
            refused_names=(),
            relisted=relisted,
        )

    def came_before(self, pod: Pod, other: Pod, snap: Snapshot) -> bool:
        """Whether kubelet has certainly tried the living pod `pod` before `other`.

        It takes pods as they come, and by age those that it reads in one list: when it starts, and when its watch
        breaks. The agent may have seen them in another order.
        """
        if not snap.was_seen_before(pod, other):
            return False
        if pod.uid in self.relisted and other.uid in self.relisted:
            return pod.created < other.created
        return pod.created <= other.created

    def seeing(
        self,
        former: Snapshot | None,
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """With the deleted pods and the container names of a new snapshot, seen `at` these monotonic seconds."""
        tracker = self.fresh(at, snap)
        if former is not None and former.living_pods is not snap.living_pods:
            tracker = tracker.after_pod_changes(former, snap, at)
        if tracker.refused_names:
            tracker = tracker.with_uids(snap)
        if former is None or former.allocations.read_at < snap.allocations.read_at:
            record = tracker.record.with_named_containers(snap)
            tracker = replace(tracker, record=record)
        return tracker

    def after_pod_changes(
        self,
        former: Snapshot,
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """With the pods that were deleted between two snapshots."""
        # Kubelet itself reports the pods that have ended, so those are present.
        present = {pod.uid for pod in snap.pods}
        # A pod in admission has some devices, and kubelet may still ask for its other containers.
        in_admission = {allocation.pod_uid for allocation in self.admission}
        with_devices = former.allocation_index.with_devices | self.by_pod.keys()
        admitted = with_devices - in_admission
        # Kubelet may still admit a deleted pod, but neither one that it has rejected nor one that it has admitted.
        settled = present | self.refused | admitted
        deleted = [*self.deleted]
        for uid, pod in former.pod_index.by_uid.items():
            if uid not in settled:
                deleted.append(DeletedPod(at, pod))
        # A UID that no call can be for any more would stay for ever.
        deleted_uids = {entry.pod.uid for entry in deleted}
        refused = self.refused & (present | deleted_uids)
        return replace(self, deleted=tuple(deleted), refused=refused)

    def with_uids(self, snap: Snapshot) -> "AdmissionTracker":
        """With the UIDs of refused pods that the agent has read by now."""
        refused = {*self.refused}
        still_unread = []
        for entry in self.refused_names:
            pod = snap.living_pods.get(entry.pod)
            if pod is None:
                still_unread.append(entry)
            else:
                refused.add(pod.uid)
        return replace(self, refused=frozenset(refused), refused_names=tuple(still_unread))

    def fresh(self, at: float, snap: Snapshot) -> "AdmissionTracker":
        """Without entries that are too old. Returns itself if there are none, which keeps what was derived from it."""
        record = self.record.fresh(at, snap)
        admission = self.admission
        if admission and at - admission[-1].at >= ADMISSION_S:
            admission = ()
        deleted = self.deleted
        if deleted:
            deleted = tuple([entry for entry in deleted if at - entry.at < DELETED_S])
        # A pod that has not come for so long was deleted before the watch saw it.
        refused_names = self.refused_names
        if refused_names:
            refused_names = tuple([entry for entry in refused_names if at - entry.at < REMEMBER_S])
        kept = record, admission, deleted, refused_names
        if kept == (self.record, self.admission, self.deleted, self.refused_names):
            return self
        return replace(self, record=record, admission=admission, deleted=deleted, refused_names=refused_names)
