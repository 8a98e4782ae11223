"""What answers to kubelet are made from: the published snapshot, and the record of kubelet's calls since."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from gpuagent.domain.deviceplugin.admission.admission_tracker import ADMISSION_S, AdmissionTracker
from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocation
from gpuagent.domain.deviceplugin.admission.requester import Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.holdings import Allocation
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.snapshot import Snapshot

KubeletProcess = tuple[int, int, int]
"""Distinguishes one kubelet process from the next: device, inode and time of change of its socket file."""

FIRST_PODS_S = 3.0
"""How long calls wait for the first list of pods, from the first registration with kubelet.

Also while the API server fails: it may have started together with the agent, and answer a second later.
"""

DECIDED_PODS_S = 10.0
"""The same on a node where a scheduler decides.

Kubelet never admits again a pod that it was refused devices for, so a longer wait is better than a refusal.
"""

MOST_GIVEN = 1024
"""Maximum number of stored grants."""


class AllocatorState:
    """State shared by all calls: one lock guards immutable values, and is never held during a call elsewhere."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._registered_at = float("-inf")
        self._kubelet: KubeletProcess | None = None
        # Pods that kubelet listed without devices since the last answer.
        self._begun = set[PodName]()
        # The last allocation, while the container's other resource may follow.
        self._half: RecentAllocation | None = None
        self._changed = threading.Condition()
        self._tracker = AdmissionTracker()
        self._snapshot: Snapshot | None = None
        self._occupancy: Occupancy | None = None
        self._answered: tuple[Allocation, Requester] | None = None
        self._grants: OrderedDict[Allocation, Grant] = OrderedDict()
        self._noted: list[RecentAllocation] = []

    def _latest(self) -> AdmissionTracker:
        """The record of calls, with the noted allocations added. Allocate itself only notes them, to answer sooner."""
        for allocation in self._noted:
            former = self._tracker
            self._tracker = former.allocated(allocation)
            # Extending the devices in use is much faster than to work them out again.
            if self._occupancy and self._occupancy.tracker is former:
                self._occupancy = self._occupancy.allocated(self._tracker)
        self._noted.clear()
        return self._tracker

    def publish(self, snapshot: Snapshot) -> AdmissionTracker:
        """Answer from this snapshot from now on. Returns the record of calls as of then."""
        with self._changed:
            former = self._snapshot
            self._snapshot = snapshot
            tracker = self._latest().seeing(former, snapshot, self.clock())
            self._tracker = tracker
            occupancy = Occupancy(snapshot, tracker)
            self._occupancy = occupancy
            self._changed.notify_all()
        # Without the lock: calls need not wait for it.
        occupancy.work_out()
        return tracker

    def expect_pods(self) -> None:
        """Have calls wait for the first list of the node's pods, from now on and for a bounded time."""
        if self._registered_at == float("-inf"):
            self._registered_at = self.clock()

    def serving(self, kubelet: KubeletProcess | None) -> None:
        """Record which process of kubelet the calls come from now on."""
        with self._changed:
            former = self._kubelet
            self._kubelet = kubelet
            was_replaced = former is not None and former != kubelet
            # The new process has forgotten what it was about to allocate, and what it rejected.
            if was_replaced:
                self._end_admission()
                self._tracker = self._latest().restarted(self._snapshot)

    def wait_for_pods(self, *, undecided: bool = False) -> None:
        """Wait for the first list of pods, which has the schedulers' decisions; `undecided`: no decision matters."""
        since_s = self.clock() - self._registered_at
        if since_s >= DECIDED_PODS_S:
            return
        # Before the pods are read, each of them looks unseen, and may be refused for that.
        self.wait(lambda snap: snap.pod_list.known, FIRST_PODS_S - since_s)
        if undecided:
            return
        until = self._registered_at + DECIDED_PODS_S
        self.wait(lambda snap: snap.pod_list.known or not snap.schedulers.assumed, until - self.clock())

    def occupancy(self) -> Occupancy:
        """The devices in use now. Raises Refusal: no snapshot was published yet."""
        at = self.clock()
        with self._changed:
            snap = self._snapshot
            if snap is None:
                raise Refusal(Reason.NOT_READY, "the GPU agent is starting; try again")
            tracker = self._latest().fresh(at, snap)
            occupancy = self._occupancy
            # Usually the record is the same as in the last call, and so is everything that was derived from it.
            if occupancy is None or tracker is not occupancy.tracker:
                occupancy = Occupancy(snap, tracker)
                self._tracker = tracker
                self._occupancy = occupancy
            return occupancy

    def wait(self, condition: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Wait for a snapshot with which `condition` holds; False if none came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._snapshot is not None and condition(self._snapshot), timeout_s)

    def answered(self, allocation: Allocation, requester: Requester) -> None:
        """Record an answer to GetPreferredAllocation."""
        with self._changed:
            self._answered = allocation, requester

    def chosen_for(self, allocation: Allocation) -> Requester | None:
        """The container of the last answer to GetPreferredAllocation, if kubelet allocates just that next."""
        answered = self._answered
        if answered is None:
            return None
        chosen, requester = answered
        return requester if chosen == allocation else None

    def allocated(self, allocation: RecentAllocation, grant: Grant) -> None:
        """Record an answered Allocate."""
        with self._changed:
            self._answered = None
            self._begun.clear()
            # A container has at most two resources: with the second one, the next call is for another container.
            half = self._half
            completes = half is not None and half.resource != allocation.resource
            self._half = None if completes else allocation
            self._noted.append(allocation)
            key = grant.resource, allocation.ids
            self._grants[key] = grant
            # PreStartContainer asks in which order the containers came.
            self._grants.move_to_end(key)
            if len(self._grants) > MOST_GIVEN:
                self._grants.popitem(last=False)

    def begun(self, pods: Collection[PodName]) -> None:
        """Record pods that kubelet lists without devices: it admits one of them, and is done with the others."""
        with self._changed:
            self._begun.update(pods)

    def refused(self, pod: Pod | None) -> None:
        """Record a refusal, after which kubelet rejects the pod in admission; `pod` is None if the pod is uncertain.

        Then kubelet is done with every pod that it has listed.
        """
        with self._changed:
            snap = self._snapshot
            if snap is not None:
                tracker = self._latest()
                self._tracker = tracker.refusing(pod, self._begun, snap, self.clock())
            self._end_admission()

    def _end_admission(self) -> None:
        """Drop what was noted of the pod in admission: kubelet does not go on with it."""
        self._answered = None
        self._begun.clear()
        self._half = None

    def half(self) -> RecentAllocation | None:
        """The last allocation, if kubelet may allocate the other resource of that container next.

        Kubelet allocates the resources of a container one after the other. So this holds whatever pods the agent knows.
        """
        half = self._half
        if half is None or self.clock() - half.at >= ADMISSION_S:
            return None
        return half

    def freed(self, ids: frozenset[str]) -> None:
        """Record that kubelet has freed these ids."""
        with self._changed:
            self._tracker = self._latest().freeing(ids)

    def granted(self, allocation: Allocation) -> Grant | None:
        """The stored grant, if there is one."""
        return self._grants.get(allocation)

    def grant_order(self) -> tuple[Allocation, ...]:
        """The allocations with a stored grant, the last one granted or repeated last."""
        with self._changed:
            return tuple(self._grants)


class CallsInFlight(NamedTuple):
    """The number of calls in progress, and when the last one ended in monotonic seconds (-inf for none)."""

    running: int
    last_end: float


class InFlight:
    """The Allocate calls in progress. A list query during such a call may make kubelet lose its devices."""

    def __init__(self, clock: Callable[[], float], ended: Callable[[], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._changed = threading.Condition()
        self._calls = CallsInFlight(0, float("-inf"))

    def __enter__(self) -> None:
        """Count one call as in progress."""
        with self._changed:
            running = self._calls.running + 1
            self._calls = CallsInFlight(running, self._calls.last_end)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            running = self._calls.running - 1
            # Kubelet has yet to receive the answer: `advertise` waits for a while from this time on.
            self._calls = CallsInFlight(running, self._clock())
            self._changed.notify_all()
        self._ended()

    def now(self) -> CallsInFlight:
        return self._calls

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is in progress; False if one still is after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._calls.running == 0, timeout_s)
