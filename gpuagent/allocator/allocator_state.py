"""The inputs of answers to kubelet: the published snapshot, and the allocations since kubelet's list was read."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.deviceplugin.identity import AdmissionTracker, Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy, RecentAllocation
from gpuagent.domain.pods.exchange import picks_itself
from gpuagent.domain.pods.holdings import Allocation
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.snapshot import Snapshot

MOST_GIVEN = 1024
"""Maximum number of stored grants."""


@dataclass(frozen=True, slots=True)
class View:
    """All inputs of an answer to kubelet.

    Attributes:
        tracker: the agent's record of kubelet's calls.
        snap: the current snapshot.
        now: monotonic seconds.
        answered: the last answer to GetPreferredAllocation and its container, until kubelet allocates it.
        counts_only: kubelet's ids are counts. Kubelet picks ids itself, or still holds ids that it picked so.
        occupancy: the devices in use.
    """

    tracker: AdmissionTracker
    snap: Snapshot
    now: float
    answered: tuple[Allocation, Requester] | None
    counts_only: bool
    occupancy: Occupancy

    def check_units_known(self, resource: str) -> None:
        """Raise Refusal if ids are counts and the agent has not read kubelet's allocations, which map them to units."""
        if self.counts_only and not self.snap.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)


class AllocatorState:
    """State shared by all calls: one lock guards immutable values, and is never held during a call elsewhere."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.first_pods_by = float("-inf")
        self._changed = threading.Condition()
        self._tracker = AdmissionTracker()
        self._snapshot: Snapshot | None = None
        self._answered: tuple[Allocation, Requester] | None = None
        self._asked = False
        self._occupancy: Occupancy | None = None
        self._granted: OrderedDict[Allocation, Grant] = OrderedDict()

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        with self._changed:
            former, self._snapshot = self._snapshot, snapshot
            tracker = self._tracker = self._tracker.seeing(former, snapshot, self.clock())
            occupancy = self._occupancy = Occupancy(snapshot, tracker.recent, refused=tracker.refused)
            self._changed.notify_all()
        occupancy.work_out()

    def view(self, *, asked: bool = False) -> View:
        """The current view; with `asked`, kubelet asks which ids to take.

        Raises:
            Refusal: no snapshot was published yet.
        """
        if (left_s := self.first_pods_by - self.clock()) > 0:
            self.wait(lambda snap: not snap.pods_awaited, left_s)
        with self._changed:
            self._asked = self._asked or asked
            snap, now = self._snapshot, self.clock()
            if snap is None:
                raise Refusal(Reason.NOT_READY, "the GPU agent is starting; try again")
            tracker = self._tracker = self._tracker.fresh(now, snap)
            counts = snap.exchanged or tracker.recent.exchanged or picks_itself(snap.kubelet, asked=self._asked)
            occupancy = self._occupancy
            if occupancy is None or not occupancy.is_of(snap, tracker.recent, tracker.refused):
                occupancy = self._occupancy = Occupancy(snap, tracker.recent, refused=tracker.refused)
            return View(tracker, snap, now, self._answered, bool(counts), occupancy)

    def wait(self, condition: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Wait for a snapshot with which `condition` holds; False if none came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._snapshot is not None and condition(self._snapshot), timeout_s)

    def answered(self, allocation: Allocation, requester: Requester) -> None:
        """Record an answer to GetPreferredAllocation."""
        with self._changed:
            self._answered = allocation, requester

    def allocated(self, new: RecentAllocation, share: Grant) -> None:
        """Record an answered Allocate."""
        with self._changed:
            self._answered = None
            self._tracker = self._tracker.allocated(new)
            self._granted[share.resource, new.ids] = share
            self._granted.move_to_end((share.resource, new.ids))
            if len(self._granted) > MOST_GIVEN:
                self._granted.popitem(last=False)

    def refused(self, pod: Pod | None) -> None:
        """Record a refusal, after which kubelet rejects the pod in admission; `pod` is None if the pod is uncertain."""
        with self._changed:
            self._tracker = self._tracker.refusing(pod)

    def granted(self, resource: str, ids: frozenset[str]) -> Grant | None:
        """The stored grant for `ids`, if there is one."""
        return self._granted.get((resource, ids))

    def granted_after(self, resource: str, ids: frozenset[str]) -> set[Allocation] | None:
        """Allocations granted or repeated after that of `ids`; None if the grant for `ids` is not stored."""
        with self._changed:
            order = list(self._granted)
        return set(order[order.index((resource, ids)) + 1 :]) if (resource, ids) in order else None
