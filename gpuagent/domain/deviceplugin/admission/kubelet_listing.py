"""Which container kubelet admits, by its list of pods and their devices.

The list has names and no UIDs. A pod that kubelet has rejected stays in it for a while, and a deleted pod may stand
under the name of a living one. So each entry is first compared with what the agent knows of the pod.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuagent.domain.deviceplugin.admission.fitting_containers import HeldDevices, Search
from gpuagent.domain.deviceplugin.admission.recent_allocations import all_ids
from gpuagent.domain.deviceplugin.admission.requester import HiddenPod, Requester, UnorderedPods
from gpuagent.domain.pods.holdings import of_another_pod
from gpuagent.domain.pods.pod import Holding, Pod, PodName

Listed = Sequence[tuple[PodName, Sequence[Holding]]]
"""Pods that kubelet lists, with the devices that they hold now. A terminating pod and a new one may share a name."""


@dataclass(frozen=True)
class KubeletListing:
    """Kubelet's list of pods in answer to one search.

    Attributes:
        entries: pod name to the devices of each listed pod of that name.
    """

    search: Search
    entries: dict[PodName, list[Sequence[Holding]]] = field(default_factory=dict)

    def add(self, listed: Listed) -> None:
        for name, holdings in listed:
            self.entries.setdefault(name, []).append(holdings)

    def requester_among(self, pods: Collection[Pod]) -> Requester | None:
        """The container in admission. `pods` are in the order in which the agent saw them."""
        without_devices: list[Requester] = []
        with_devices: list[Requester] = []
        for pod in pods:
            entries = self.entries.get(pod.name)
            if entries is None:
                continue
            init_held = self._held_by_init(pod)
            for holdings in entries:
                if self._was_given_up(pod, holdings):
                    continue
                held = [*init_held, *self.search.held(holdings)]
                requester = self.search.lacking(pod, held, certain=True)
                if requester is None:
                    continue
                if held:
                    with_devices.append(requester)
                else:
                    without_devices.append(requester)
        if not (with_devices or without_devices):
            return None
        return self._in_admission(with_devices, without_devices)

    def _held_by_init(self, pod: Pod) -> list[HeldDevices]:
        """Allocations of the pod's ordinary init containers, whose devices kubelet does not list."""
        last = self.search.tracker.last
        if last is None or last.pod_uid != pod.uid:
            return []
        init_names = pod.init_names
        given = self.search.given_in_admission()
        return [(container, resource, uuids) for container, resource, uuids in given if container in init_names]

    def _in_admission(self, with_devices: Sequence[Requester], without_devices: Sequence[Requester]) -> Requester:
        """The container in admission, of pods that have devices by kubelet's list, and of pods that have none yet."""
        # A pod that has devices and lacks others is in admission. One without any may only be rejected.
        fitting = with_devices or without_devices
        is_only_one = len(fitting) == 1
        # Kubelet's list has no UIDs: under a reused name it may show the deleted pod.
        reused_names = {entry.pod.name for entry in self.search.tracker.deleted}
        clear = [requester for requester in fitting if requester.pod_name not in reused_names]
        if clear:
            return self._last_of(clear, is_only_one=is_only_one)
        deleted: list[Pod] = []
        living: list[Requester] = []
        for requester in (*with_devices, *without_devices):
            if requester.pod and requester.pod.uid not in self.search.snap.pod_index.by_uid:
                deleted.append(requester.pod)
            else:
                living.append(requester)
        if not deleted:
            # The later ones may be deleted pods of the same names.
            return replace(fitting[0], certain=is_only_one)
        gone = deleted[0]
        if not living:
            return self.search.unseen(gone)
        why = f"pod {gone.name} was deleted a moment ago, and kubelet lists no UIDs"
        return self.search.unconfirmed(why, living, gone)

    def _last_of(self, listed: Sequence[Requester], *, is_only_one: bool) -> Requester:
        """The container of the pod that kubelet got last. Rejected pods may linger in its list."""
        search = self.search
        last = listed[-1]
        decided = [requester.pod.name for requester in listed if requester.pod and search.is_decided(requester)]
        if not decided or search.alike(listed) or self._came_last(last, listed):
            return replace(last, certain=is_only_one)
        return UnorderedPods(
            why="kubelet lists several pods without devices, and the API server does not show yet which ones failed",
            maybe_decided=True,
            candidates=tuple(decided),
            pods=frozenset([requester.pod.uid for requester in listed if requester.pod]),
        )

    def _came_last(self, last: Requester, listed: Iterable[Requester]) -> bool:
        """Whether kubelet certainly got the pod of `last` after all others that are `listed`."""
        for requester in listed:
            if requester.pod is None or last.pod is None or requester.pod is last.pod:
                continue
            if not self.search.tracker.came_before(requester.pod, last.pod, self.search.snap):
                return False
        return True

    def hidden(self) -> HiddenPod | None:
        """Decided pods under whose names kubelet lists devices of other pods."""
        names = []
        for pod in self.search.asking(self.search.snap.living_pods.values()):
            entries = self.entries.get(pod.name, ())
            if not any(entries) or pod.uid in self.search.tracker.by_pod:
                continue
            # As if the pod had no devices: those that kubelet lists may be the other pod's.
            requester = self.search.lacking(pod, [])
            if requester is None or not self.search.is_decided(requester):
                continue
            if all(self._was_given_up(pod, holdings) for holdings in entries):
                names.append(pod.name)
        if not names:
            return None
        why = "kubelet lists devices of another pod under that name"
        return HiddenPod(why=why, maybe_decided=True, candidates=tuple(names))

    def _was_given_up(self, pod: Pod, holdings: Sequence[Holding]) -> bool:
        """Whether kubelet does not list the pod's allocations: it rejected it, or lists another pod of the name."""
        snap = self.search.snap
        if of_another_pod(pod, holdings, snap.policy.resources.names):
            return True
        tracker = self.search.tracker
        allocations = tracker.by_pod.get(pod.uid, ())
        listed = all_ids(holdings)
        init_names = pod.init_names
        has_certain = False
        for allocation in allocations:
            if not allocation.certain or allocation.owner is None:
                continue
            has_certain = True
            is_listable = allocation.owner.container not in init_names
            # Kubelet frees all devices of a pod at once. So one missing allocation shows that it has freed them all.
            if is_listable and allocation.ids.isdisjoint(listed):
                return True
        if not listed:
            # A pod has no devices before its admission, and none after kubelet has rejected it.
            is_in_admission = tracker.last is not None and tracker.last.pod_uid == pod.uid
            had_devices = has_certain or pod.uid in snap.allocation_index.with_devices
            return had_devices and not is_in_admission
        if listed <= all_ids(allocations):
            return False
        if pod.static:
            # The checkpoint has another UID for it than the API server.
            return False
        # If other pods have the listed devices, and this one has none of them, the list is of another pod.
        holders = self._holders(listed)
        return bool(holders) and pod.uid not in holders

    def _holders(self, ids: frozenset[str]) -> set[str]:
        """UIDs of the pods that have some of `ids`, by kubelet's allocations since and before the agent started."""
        record = self.search.tracker.record
        holders = record.holders(ids)
        old_ids = ids - record.ids
        if old_ids:
            for entry in self.search.snap.allocations.checkpoint:
                if not entry.ids.isdisjoint(old_ids):
                    holders.add(entry.pod_uid)
        return holders
