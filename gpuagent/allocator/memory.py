"""What answers to kubelet follow from: the published snapshot, and what was allocated since kubelet's list was read."""

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
"""Grants that are remembered."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that answers follow from.

    Attributes:
        tracker: what the agent keeps of kubelet's calls.
        snap: what is known now.
        now: monotonic seconds.
        answered: what GetPreferredAllocation was answered last, and for which container, until kubelet allocates it.
        counts_only: kubelet's ids are counts: it does not ask which to take, or still has some that it took so.
    """

    tracker: AdmissionTracker
    snap: Snapshot
    now: float
    answered: tuple[Allocation, Requester] | None
    counts_only: bool

    def occupancy(self, offered: frozenset[str] = frozenset()) -> Occupancy:
        """What is in use, seen from a call in which kubelet offers these ids."""
        return Occupancy(self.snap, self.tracker.recent, offered, self.tracker.refused)

    def check_units_known(self, resource: str) -> None:
        """Before kubelet's allocations were read, ids that are counts stand for nothing. Raises Refusal."""
        if self.counts_only and not self.snap.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)


class Memory:
    """Shared by all calls; one lock around immutable values, held for no call to anything else."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.first_pods_by = float("-inf")
        self._changed = threading.Condition()
        self._tracker = AdmissionTracker()
        self._snapshot: Snapshot | None = None
        self._answered: tuple[Allocation, Requester] | None = None
        self._asked = False
        self._granted: OrderedDict[Allocation, Grant] = OrderedDict()

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        with self._changed:
            former, self._snapshot = self._snapshot, snapshot
            self._tracker = self._tracker.seeing(former, snapshot, self.clock())
            self._changed.notify_all()

    def view(self, *, asked: bool = False) -> View:
        """The moment; `asked`: kubelet asks which ids to take.

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
            tracker = self._tracker = self._tracker.fresh(now)
            counts = snap.exchanged or tracker.recent.exchanged or picks_itself(snap.kubelet, asked=self._asked)
            return View(tracker, snap, now, self._answered, bool(counts))

    def wait(self, condition: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Wait for a snapshot with which `condition` holds; False if none came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._snapshot is not None and condition(self._snapshot), timeout_s)

    def answered(self, allocation: Allocation, requester: Requester) -> None:
        """Kubelet was told which ids to take."""
        with self._changed:
            self._answered = allocation, requester

    def allocated(self, new: RecentAllocation, share: Grant) -> None:
        """An Allocate was answered."""
        with self._changed:
            self._answered = None
            self._tracker = self._tracker.allocated(new)
            self._granted[share.resource, new.ids] = share
            self._granted.move_to_end((share.resource, new.ids))
            if len(self._granted) > MOST_GIVEN:
                self._granted.popitem(last=False)

    def refused(self, pod: Pod | None) -> None:
        """Kubelet gives up the pod in admission; `pod` is it, where that is certain."""
        with self._changed:
            self._tracker = self._tracker.refusing(pod)

    def granted(self, resource: str, ids: frozenset[str]) -> Grant | None:
        """What was granted for `ids`, as long as that is remembered."""
        return self._granted.get((resource, ids))

    def granted_after(self, resource: str, ids: frozenset[str]) -> set[Allocation] | None:
        """What was granted later than `ids`, or again; None where it is not remembered when these were."""
        with self._changed:
            order = list(self._granted)
        return set(order[order.index((resource, ids)) + 1 :]) if (resource, ids) in order else None
