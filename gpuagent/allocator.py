"""Answers kubelet's questions from the published snapshot and the ledger of the last minutes.

Thread-safe; touches no API server, no NVML and no disk. Kubelet's pod-resources socket is asked only where two
readings of a call are possible and its answer settles it.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpuagent.book import Book, check_doubt, holds_first, settled, told_apart
from gpuagent.domain.admission import Admission, Candidate, beginning, deleted_unserved
from gpuagent.domain.checks import apart, as_decided, check_core_mem, check_offered, check_sharers, free_by_gpu
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.exchange import Exchanged, key, picks_itself, written
from gpuagent.domain.grant import DeviceStrategy, Grant, Located, grant, locate
from gpuagent.domain.holdings import given_by_another, holder
from gpuagent.domain.honour import ignored, not_kept
from gpuagent.domain.job import decision_kept, seen_by_whoever_asks
from gpuagent.domain.ledger import Handout, Ledger
from gpuagent.domain.pods import Owner, PodName
from gpuagent.domain.question import Question, chosen_for, doubted, for_any
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.unasked import paired, pick
from gpuagent.inflight import InFlight
from gpuagent.isolation import Isolation, IsolationError
from gpuagent.isolation.serving import serving_layer

log = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How long a question of kubelet's waits for the pod it is about to appear in our own watch."""


BOOK_S = 5.0
"""How long kubelet's book is waited for where a container is about to start."""

GONE_S = 30.0
"""How long kubelet may go on to ask for a pod whose deletion our own watch has shown."""

MOST_GIVEN = 1024
"""Grants that are remembered for PreStartContainer."""

Say = Callable[[PodName | None, str, str], None]
"""Tell people: pod (None for the node), reason, message."""


class Allocator:
    """One for all resources: the two resources of a container have to end on one GPU."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        book: Book,
        isolation: Mapping[str, Isolation],
        strategy: DeviceStrategy,
        say: Say,
    ) -> None:
        self.in_flight = InFlight(clock)
        self._clock = clock
        self._book = book
        self._isolation = isolation
        self._strategy = strategy
        self._say = say
        self._snapshot: Snapshot | None = None
        self._looked: Snapshot | None = None
        self._ledger = Ledger()
        self._given: OrderedDict[tuple[str, frozenset[str]], Grant] = OrderedDict()
        self._admission = Admission()
        self._asked = False
        self._answered: tuple[str, frozenset[str], tuple[Candidate, ...]] | None = None
        self._lock = threading.Lock()
        self._published = threading.Condition()
        self._gone_at = float("-inf")

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        with self._published:
            if self._snapshot and deleted_unserved(self._snapshot, snapshot):
                self._gone_at = self._clock()
            self._snapshot = snapshot
            self._published.notify_all()

    # -- GetPreferredAllocation ------------------------------------------------------------------------------

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Which of `available` a container should get.

        Raises:
            Refusal: the total may be enough, but no GPU is; or the request makes no sense.
        """
        if size < 1 or not available:
            raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: {size} of {len(available)} devices is no request")
        if len(set(must_include)) > size:
            text = f"{resource}: {len(set(must_include))} devices must be included, but {size} are asked for"
            raise Refusal(Reason.EMPTY_REQUEST, text)
        offered, must_include = frozenset(available), frozenset(must_include)
        if not must_include <= offered:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: a device that must be included is not available")
        with self._lock:
            self._asked = True
            if self._counts_only(self._current()):
                return (*must_include, *sorted(offered - must_include))[:size]
        return self._chosen(resource, offered, must_include, size)

    def _chosen(
        self, resource: str, offered: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        with self._lock:
            self._read_owners()
            claims, candidates = self._look(resource, size, offered)
            asking = self._told_apart(candidates, resource, claims)
            if asking or not claims.snapshot.pods_watched:
                return self._choose(resource, size, must_include, asking, claims)
        # Kubelet may have heard of the asking pod a moment before our own watch did.
        others = {candidate.pod.uid for candidate in candidates}
        with self._published:
            self._published.wait_for(lambda: self._fresh(resource, size, offered, others), PATIENCE_S)
        with self._lock:
            claims, candidates = self._look(resource, size, offered)
            asking = self._told_apart(candidates, resource, claims)
            asking = candidates if asking == () else asking
            return self._choose(resource, size, must_include, asking, claims)

    def _told_apart(
        self, candidates: tuple[Candidate, ...], resource: str, claims: Claims
    ) -> tuple[Candidate, ...] | None:
        gone = claims.now - self._gone_at < GONE_S
        return told_apart(self._book, candidates, resource, claims, gone=gone)

    def _read_owners(self) -> None:
        """Take over from a book that was read since the last question whose the handouts are."""
        snap, before = self._current(), self._looked
        if before and before.holdings_at < snap.holdings_at:
            asks = before.decided_asks
            self._ledger = self._ledger.listed(snap.holdings, snap.holdings_at, snap.living_pods, asks)
        self._looked = snap

    def _fresh(self, resource: str, size: int, offered: frozenset[str], others: Collection[str]) -> bool:
        """A pod that may be asking has appeared."""
        return any(candidate.pod.uid not in others for candidate in self._look(resource, size, offered)[1])

    def _look(self, resource: str, size: int, offered: frozenset[str]) -> tuple[Claims, tuple[Candidate, ...]]:
        claims = Claims(self._current(), self._ledger, offered, self._clock())
        return claims, self._admission.candidates(resource, size, claims)

    def _choose(
        self,
        resource: str,
        size: int,
        must_include: frozenset[str],
        candidates: tuple[Candidate, ...] | None,
        claims: Claims,
    ) -> tuple[str, ...]:
        free = free_by_gpu(resource, claims.offered, claims.snapshot)
        question = Question(resource, size, free, must_include, gone=candidates is None)
        candidates = settled(self._book, candidates or ())
        try:
            try:
                chosen, candidates = for_any(candidates, lambda order: self._choose_for(order, question, claims))
            except Refusal:
                fresh = tuple(beginning(question.resource, question.size, claims))
                if not fresh or not candidates or candidates[0].first is None or holds_first(self._book, candidates[0]):
                    raise
                # The container we took it for was given up by kubelet: this call begins another pod.
                candidates = fresh
                chosen = self._choose_for(fresh, question, claims)
        except Refusal as refusal:
            # Kubelet gives the container up: whatever it got first awaits no second resource.
            self._ledger = self._ledger.closed()
            self._admission = Admission()
            if candidates:
                uids = [pod.uid for pod in claims.snapshot.pods]
                self._ledger = self._ledger.having_refused(candidates[0].pod.uid, uids)
                self._say(candidates[0].pod.name, "GpuRefused", refusal.message)
            raise
        self._answered = (question.resource, frozenset(chosen), candidates)
        if candidates and (text := ignored(candidates[0], claims.snapshot)):
            self._say(candidates[0].pod.name, "GpuDecisionIgnored", text)
        if candidates and (text := not_kept(candidates[0], resource, chosen, claims)):
            self._say(candidates[0].pod.name, "GpuDecisionNotKept", text)
        return chosen

    def _choose_for(self, candidates: tuple[Candidate, ...], question: Question, claims: Claims) -> tuple[str, ...]:
        chosen = chosen_for(question, candidates, claims)
        if doubt := doubted(question, claims).intersection(chosen):
            text = check_doubt(self._book, question.resource, doubt, claims)
            log.warning("devices given out again soon", extra={"resource": question.resource, "devices": len(doubt)})
            self._say(None, "DevicesGivenOutAgain", text)
        return chosen

    # -- Allocate --------------------------------------------------------------------------------------------

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """What the container gets for `ids`. The same ids always give the same answer.

        Raises:
            Refusal: the request cannot be honoured.
        """
        with self.in_flight.one():
            exchanged = self._exchanged(resource, frozenset(ids))
            share = self._allocate(resource, frozenset(exchanged.values()) or frozenset(ids), exchanged)
        if not exchanged:
            return share
        return replace(share, annotations={**share.annotations, key(resource): written(exchanged)})

    def _exchanged(self, resource: str, picked: frozenset[str]) -> Exchanged:
        """What ids are exchanged for that kubelet picked without asking; nothing where they stand for themselves."""
        snap = self._current()
        with self._lock:
            if not self._counts_only(snap):
                return {}
            self._check_read(resource, snap)
            claims = Claims(snap, self._ledger, frozenset(), self._clock())
            found = pick(resource, picked, self._admission.going_on(resource, len(picked), claims), claims)
        if len(found.exchanged) == len(picked) or not locate(resource, picked, snap).listed:
            return found.exchanged
        chosen = self._chosen(resource, found.offered, frozenset(found.exchanged.values()), len(picked))
        return paired(picked, chosen, found.exchanged)

    def _counts_only(self, snap: Snapshot) -> bool:
        """Kubelet's ids are counts: it does not ask which to take, or still has some that it took so."""
        exchanged = snap.exchanged or any(handout.exchanged for handout in self._ledger.handouts)
        return bool(exchanged) or picks_itself(snap.kubelet, asked=self._asked)

    def _units_known(self, snap: Snapshot) -> bool:
        return snap.holdings_known or (bool(snap.kubelet) and not self._counts_only(snap))

    def _check_read(self, resource: str, snap: Snapshot) -> None:
        """Only kubelet's book tells what its ids were exchanged for before the agent started."""
        if self._counts_only(snap) and not snap.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)

    def _allocate(self, resource: str, ids: frozenset[str], exchanged: Exchanged) -> Grant:
        snap, now = self._current(), self._clock()
        at = locate(resource, ids, snap)
        with self._lock:
            admission, claims = self._admission, Claims(snap, self._ledger, frozenset(), now)
        try:
            check_offered(resource, ids, at, claims)
            with self._lock:
                candidates = self._on_their_gpu(resource, ids, at, claims)
            beside = self._beside(resource, ids, at, candidates, claims)
            share = self._isolated(grant(resource, at, snap, self._strategy, beside), snap)
        except Refusal as refusal:
            if likely := admission.candidates(resource, len(ids), claims):
                self._say(likely[0].pod.name, "GpuRefused", refusal.message)
            raise
        with self._lock:
            meant = candidates[0].pod.uid if candidates else None
            given = Handout(resource, ids, tuple(at.counts), now, meant=meant, exchanged=exchanged)
            self._record(given, candidates, claims)
            self._given[resource, ids] = share
            self._given.move_to_end((resource, ids))
            if len(self._given) > MOST_GIVEN:
                self._given.popitem(last=False)
        log.debug("allocated", extra={"resource": resource, "units": len(ids), "gpus": list(at.counts)})
        return share

    def _on_their_gpu(self, resource: str, ids: frozenset[str], at: Located, claims: Claims) -> tuple[Candidate, ...]:
        """Who these ids can be for: the two resources of one container have to be on one GPU."""
        if self._answered and self._answered[:2] == (resource, ids):
            return self._answered[2]
        given = claims.given(resource, ids)
        if given:  # asked for again, or reused by the next container of the same pod
            candidates, nameless = self._admission.going_on(resource, len(ids), claims), None
        else:
            candidates = self._admission.candidates(resource, len(ids), claims)
            nameless = self._ledger.awaiting_partner(resource, claims.now)
        fitting = tuple(c for c in candidates if c.first is None or set(c.first.uuids) == at.counts.keys())
        first = candidates[0].first if candidates else nameless
        if not fitting and first and set(first.uuids) != at.counts.keys():
            self._ledger = self._ledger.closed()
            self._admission = Admission()
            raise apart(resource, first, at.counts, claims.snapshot)
        if not given:
            fitting = as_decided(resource, at, fitting, claims)
            check_core_mem(resource, len(ids), fitting, claims.snapshot)
            check_sharers(resource, at, fitting[0].owner if fitting else None, claims)
        return fitting

    def _beside(
        self, resource: str, ids: frozenset[str], at: Located, candidates: tuple[Candidate, ...], claims: Claims
    ) -> tuple[str, ...]:
        """UUIDs of GPUs that the container sees besides, the same for the same ids. None are shown on a guess."""
        new = self._answered is not None and self._answered[:2] == (resource, ids)
        before = None if new else claims.given(resource, ids)
        if before and (share := self._given.get((resource, ids))):
            return tuple(gpu.uuid for gpu in share.beside)
        living = claims.snapshot.living_pods
        pods = [c.pod for c in candidates]
        if before and before.owner:
            pods = [living[before.owner.pod]] if before.owner.pod in living else []
        return seen_by_whoever_asks(pods, at, claims)

    def _record(self, handout: Handout, candidates: tuple[Candidate, ...], claims: Claims) -> None:
        # Ids we have just been asked to choose were free: a new container, even if somebody had the same ones before.
        new = self._answered is not None and self._answered[:2] == (handout.resource, handout.ids)
        self._answered = None
        if not new and not candidates and claims.given(handout.resource, handout.ids):
            self._ledger = self._ledger.closed()  # whoever that was, what was given before has no partner to come
            return
        # Whose container is not known may be about to ask for its other resource.
        second = self._ledger.awaiting_partner(handout.resource, handout.at) is not None
        opens = len(claims.snapshot.sold) > 1 and not second and not candidates
        self._ledger = self._ledger.recorded(handout, opens=opens)
        places = tuple(replace(c, trail=(*c.trail, (c.owner, handout))) for c in candidates)
        self._admission = Admission(places, handout.at)
        for owner, given in places[0].trail if places else ():
            uid = places[0].pod.uid
            instead = claims.roles.get(owner) if given.meant != uid else None  # of one that was mistaken for another
            self._ledger = self._ledger.believed(given.ids, owner, uid, instead)

    def _isolated(self, share: Grant, snap: Snapshot) -> Grant:
        try:
            return self._isolation[serving_layer(share, snap).driver].prepare(share)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{share.resource}: {err}") from err

    # -- PreStartContainer -----------------------------------------------------------------------------------

    def prestart(self, resource: str, ids: Collection[str]) -> Owner | None:
        """The container that `ids` belong to, from kubelet's book, with its isolation verified.

        None where kubelet cannot say: an ordinary init container whose devices no later container reuses.

        Raises:
            Refusal: the isolation layer is not ready for it; kubelet tries again.
        """
        with self._published:
            self._published.wait_for(lambda: self._units_known(self._current()), BOOK_S)
        snap = self._current()
        picked = frozenset(ids)
        if given_by_another(picked):
            owner = holder(resource, picked, self._book.read(timeout_s=BOOK_S) or ())
            log.info(
                "a container of another plugin starts again", extra={"resource": resource, "container": str(owner)}
            )
            return owner
        with self._lock:
            claims = Claims(snap, self._ledger, frozenset(), self._clock())
            self._check_read(resource, snap)
        units = frozenset(claims.exchanged.get(device_id, device_id) for device_id in picked)
        at = locate(resource, units, snap)
        owner = self._known_owner(resource, units, snap)
        owner = owner or holder(resource, picked, self._book.read(timeout_s=BOOK_S) or ())
        with self._lock:
            if owner:
                pod = snap.living_pods.get(owner.pod)
                claims = replace(claims, ledger=self._ledger)
                self._ledger = self._ledger.believed(units, owner, pod.uid if pod else None, claims.roles.get(owner))
        log.info("container starts", extra={"resource": resource, "units": len(units), "container": str(owner)})
        # What it was given, as long as we know: the layer may have moved since.
        share = self._given.get((resource, units)) or grant(resource, at, snap, self._strategy)
        try:
            self._isolation[serving_layer(share, snap).driver].verify(share, owner)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{resource}: {err}") from err
        claims = Claims(self._current(), self._ledger, frozenset(), self._clock())
        for text in decision_kept(owner, at, {gpu.uuid for gpu in share.beside}, claims):
            self._say(owner.pod if owner else None, "GpuGroupDiffers", text)
        return owner

    def _known_owner(self, resource: str, ids: frozenset[str], snap: Snapshot) -> Owner | None:
        """The owner by the book as last read, if nobody was given these ids since that read began."""
        given_at = max((h.at for h in self._ledger.handouts if h.ids & ids), default=float("-inf"))
        if snap.holdings_at <= given_at:
            return None
        return next((h.owner for h in snap.holdings if h.resource == resource and h.ids == ids), None)

    def _current(self) -> Snapshot:
        if self._snapshot is None:
            raise Refusal(Reason.NOT_READY, "the GPU agent is starting; try again")
        return self._snapshot
