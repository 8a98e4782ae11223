"""What answers to kubelet go by: the published snapshot, and what was given out since the book in it was read."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.admission import Admission, Candidate, Trail, deleted_unserved
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.exchange import picks_itself
from gpuagent.domain.grant import Grant
from gpuagent.domain.holdings import Allocation
from gpuagent.domain.ledger import Ledger
from gpuagent.domain.pods import Pod, owners_of
from gpuagent.domain.snapshot import Snapshot

GONE_S = 30.0
"""How long kubelet may go on to ask for a pod whose deletion our own watch has shown."""

MOST_GIVEN = 1024
"""Grants that are remembered for PreStartContainer."""

MOST_UNREAD = 32
"""Readings of kubelet's book that are taken over at its next question; older ones tell nothing of the last minutes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The last answer on which units to take, and who may have asked, most likely first."""

    resource: str
    ids: frozenset[str]
    candidates: tuple[Candidate, ...]


class Memory:
    """Shared by all calls of kubelet's. What is not said otherwise is read and written with `lock` held.

    Attributes:
        ledger: handouts of the last minutes.
        admission: where kubelet's admission may be.
        asked: kubelet has asked which units to take.
        choice: what it was answered last, until it allocates.
        first_pods_by: until when the node's pods are waited for at the start.
        in_vain_at: when a pod was last waited for that did not appear: one that nobody has seen (False), or a new one
            under the name of one that gives back what it had (True).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.first_pods_by = float("-inf")
        self.in_vain_at = dict.fromkeys((False, True), float("-inf"))
        self.lock = threading.Lock()
        self.ledger = Ledger()
        self.admission = Admission()
        self.asked = False
        self.choice: Choice | None = None
        self._believed: Trail = ()
        self._given: OrderedDict[tuple[str, frozenset[str]], Grant] = OrderedDict()
        self._published = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._unread: deque[tuple[Snapshot, Snapshot]] = deque(maxlen=MOST_UNREAD)
        self._gone: tuple[tuple[float, Pod], ...] = ()

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on. Waits for no call."""
        with self._published:
            former, self._snapshot = self._snapshot, snapshot
            if former and (gone := deleted_unserved(former, snapshot)):
                late = self.clock() - GONE_S
                self._gone = (*(g for g in self._gone if g[0] > late), *((self.clock(), pod) for pod in gone))
            if former and former.holdings_at < snapshot.holdings_at:
                self._unread.append((former, snapshot))
            self._published.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a snapshot with which `condition` holds; without `lock`. False if none came in time."""
        with self._published:
            return self._published.wait_for(condition, timeout_s)

    def wait_for_first_pods(self) -> None:
        """Wait until the pods were seen once, or cannot be seen; not longer than until `first_pods_by`."""
        if (left_s := self.first_pods_by - self.clock()) > 0:
            self.wait(lambda: not self.snapshot.pods_awaited, left_s)

    @property
    def snapshot(self) -> Snapshot:
        """The newest; may be read without `lock`.

        Raises:
            Refusal: none was published yet.
        """
        if self._snapshot is None:
            raise Refusal(Reason.NOT_READY, "the GPU agent is starting; try again")
        return self._snapshot

    @property
    def gone(self) -> list[Pod]:
        """Pods that were deleted a moment ago and had nothing yet: kubelet may be asking for one of them."""
        return [pod for at, pod in self._gone if self.clock() - at < GONE_S]

    @property
    def counts_only(self) -> bool:
        """Kubelet's ids are counts: it does not ask which to take, or still has some that it took so."""
        return bool(self.snapshot.exchanged or self.ledger.exchanged) or picks_itself(
            self.snapshot.kubelet, asked=self.asked
        )

    @property
    def units_known(self) -> bool:
        """What kubelet's ids stand for: only its book tells, where they are counts."""
        known = self.snapshot.holdings_known
        return known or (bool(self.snapshot.kubelet) and not self.counts_only)

    def check_units_known(self, resource: str) -> None:
        """Before the book was read, ids that are counts stand for nothing."""
        if self.counts_only and not self.snapshot.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)

    def claims(self, offered: frozenset[str] = frozenset()) -> Claims:
        """Who has a claim on what now."""
        return Claims(self.snapshot, self.ledger, offered, self.clock())

    def read_owners(self) -> None:
        """Take over from the books that were read since the last question whose the handouts are."""
        while self._unread:
            before, read = self._unread.popleft()
            owners = owners_of(read.holdings)
            self.ledger = self.ledger.listed(owners, read.holdings_at, read.living_pods, before.decided_asks)
            self.admission = self.admission.told(owners)

    def carried(self, resource: str, ids: frozenset[str], size: int) -> None:
        """Kubelet has fixed `ids` for a call: they may tell that another pod was asked for before than was believed."""
        claims, before = self.claims(), self.admission.places
        self.admission = self.admission.carried(resource, size, ids, claims)
        if self.admission.places[:1] != before[:1]:
            self.believe(claims)

    def believe(self, claims: Claims) -> None:
        """What was given in this admission is the likeliest pod's."""
        for place in self.admission.places[:1]:
            # A pod of many containers is gone through once, not again for each of them.
            known = len(self._believed) if place.trail[: len(self._believed)] == self._believed else 0
            for owner, given in place.trail[known:]:
                decided = owner in claims.snapshot.decided_asks
                self.ledger = self.ledger.believed(given.ids, owner, place.pod.uid, decided=decided)
            self._believed = place.trail

    def chosen(self, resource: str, ids: frozenset[str]) -> Choice | None:
        """The last choice, if it was these ids."""
        choice = self.choice
        return choice if choice and (choice.resource, choice.ids) == (resource, ids) else None

    def give(self, share: Grant, ids: frozenset[str]) -> None:
        """Remember what was granted for `ids`."""
        self._given[share.resource, ids] = share
        self._given.move_to_end((share.resource, ids))
        if len(self._given) > MOST_GIVEN:
            self._given.popitem(last=False)

    def given(self, resource: str, ids: frozenset[str]) -> Grant | None:
        """What was granted for `ids`, as long as that is remembered; may be asked without `lock`."""
        return self._given.get((resource, ids))

    def given_after(self, resource: str, ids: frozenset[str]) -> set[Allocation] | None:
        """What was granted later than `ids`, or again; None where it is not remembered when these were.

        To be called without `lock`.
        """
        with self.lock:
            order = list(self._given)
        return set(order[order.index((resource, ids)) + 1 :]) if (resource, ids) in order else None

    def give_up(self) -> None:
        """Kubelet gives a container up that was refused: whatever it got first awaits no second resource."""
        self.ledger = self.ledger.closed()
        self.admission = Admission()
