"""Answers kubelet's questions from the published snapshot and the ledger of the last minutes.

Thread-safe; touches no API server, no NVML and no disk. Kubelet's pod-resources socket is asked only where two
readings of a call are possible and its answer settles it.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpuagent.allocator.inflight import InFlight
from gpuagent.allocator.memory import Memory
from gpuagent.allocator.preference import Preference
from gpuagent.allocator.refusalevents import RefusalEvents, Say
from gpuagent.allocator.starts import Starts
from gpuagent.book import Book
from gpuagent.domain.admission import Admission, Candidate
from gpuagent.domain.checks import apart, as_decided, check_core_mem, check_offered, check_sharers
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.exchange import Exchanged, key, written
from gpuagent.domain.grant import DeviceStrategy, Grant, Located, grant, locate
from gpuagent.domain.job import seen_by_whoever_asks
from gpuagent.domain.ledger import Handout
from gpuagent.domain.pods import Holding, Owner
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.unasked import paired, pick
from gpuagent.isolation import Isolation, IsolationError
from gpuagent.isolation.serving import serving_layer

log = logging.getLogger(__name__)


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
        self._memory = Memory(clock)
        self._preference = Preference(self._memory, book, say)
        self._starts = Starts(self._memory, book, isolation, strategy, say)
        self._refusals = RefusalEvents(clock, say)
        self._isolation = isolation
        self._strategy = strategy

    def expect_pods(self, within_s: float) -> None:
        """The node's pods are about to be seen for the first time: for so long questions wait for them."""
        self._memory.first_pods_by = self._memory.clock() + within_s

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        self._memory.publish(snapshot)
        self._refusals.publish(snapshot.pods)

    def report(self, refusal: Refusal) -> None:
        """Make an Event of what kubelet is answered; never blocks."""
        self._refusals.add(refusal.message, refusal.pod)

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
        self._memory.wait_for_first_pods()
        with self._memory.lock:
            self._memory.asked = True
            if self._memory.counts_only:
                return (*must_include, *sorted(offered - must_include))[:size]
            self._memory.carried(resource, must_include, size)
        return self._preference.choose(resource, offered, must_include, size)

    def prestart(self, resource: str, ids: Collection[str]) -> Owner | None:
        """The container that `ids` belong to, from kubelet's book, with its isolation verified.

        None where kubelet cannot say: an ordinary init container whose devices no later container reuses.

        Raises:
            Refusal: the isolation layer is not ready for it; kubelet tries again.
        """
        return self._starts.prestart(resource, ids)

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """What the container gets for `ids`. The same ids always give the same answer.

        Raises:
            Refusal: the request cannot be honoured.
        """
        picked = frozenset(ids)
        with self.in_flight.one():
            exchanged = self._exchanged(resource, picked)
            share = self._allocate(resource, frozenset(exchanged.values()) or picked, exchanged)
        if not exchanged:
            return share
        return replace(share, annotations={**share.annotations, key(resource): written(exchanged)})

    def _exchanged(self, resource: str, picked: frozenset[str]) -> Exchanged:
        """What ids are exchanged for that kubelet picked without asking; nothing where they stand for themselves."""
        memory = self._memory
        memory.wait_for_first_pods()
        with memory.lock:
            memory.carried(resource, picked, len(picked))
            if not memory.counts_only:
                return {}
            memory.check_units_known(resource)
            claims = memory.claims()
            found = pick(resource, picked, memory.admission.going_on(resource, len(picked), claims), claims)
        if len(found.exchanged) == len(picked):
            return found.exchanged
        if not locate(resource, picked, claims.snapshot).listed:
            return {}
        chosen = self._preference.choose(resource, found.offered, frozenset(found.exchanged.values()), len(picked))
        return paired(picked, chosen, found.exchanged)

    def _allocate(self, resource: str, ids: frozenset[str], exchanged: Exchanged) -> Grant:
        with self._memory.lock:
            admission, claims = self._memory.admission, self._memory.claims()
            # Ids we have just been asked to choose were free: a new container, even if somebody had them before.
            before = None if self._memory.chosen(resource, ids) else claims.given(resource, ids)
        snap = claims.snapshot
        at = locate(resource, ids, snap)
        try:
            check_offered(resource, ids, at, claims)
            with self._memory.lock:
                candidates = self._on_their_gpu(resource, ids, at, before, claims)
            beside = self._beside(ids, at, before, candidates, claims)
            share = self._isolated(grant(resource, at, snap, self._strategy, beside), snap)
        except Refusal as refusal:
            if likely := admission.candidates(resource, len(ids), claims):
                refusal.pod = likely[0].pod.name
            raise
        with self._memory.lock:
            meant = candidates[0].pod.uid if candidates else None
            given = Handout(resource, ids, tuple(at.counts), claims.now, meant=meant, exchanged=exchanged)
            self._record(given, before, candidates, claims)
            self._memory.give(share, ids)
        log.debug("allocated", extra={"resource": resource, "units": len(ids), "gpus": list(at.counts)})
        return share

    def _on_their_gpu(
        self, resource: str, ids: frozenset[str], at: Located, before: Holding | Handout | None, claims: Claims
    ) -> tuple[Candidate, ...]:
        """Who these ids can be for: the two resources of one container have to be on one GPU."""
        if choice := self._memory.chosen(resource, ids):
            return choice.candidates
        if before:  # asked for again, or reused by the next container of the same pod
            candidates, nameless = self._memory.admission.going_on(resource, len(ids), claims), None
        else:
            candidates = self._memory.admission.candidates(resource, len(ids), claims)
            nameless = self._memory.ledger.awaiting_partner(resource, claims.now)
        fitting = tuple(c for c in candidates if c.first is None or set(c.first.uuids) == at.counts.keys())
        first = candidates[0].first if candidates else nameless
        if not fitting and first and set(first.uuids) != at.counts.keys():
            self._memory.give_up()
            raise apart(resource, first.resource, first.uuids, at.counts, claims.snapshot)
        if not before:
            fitting = as_decided(resource, at, fitting, claims)
            check_core_mem(resource, len(ids), fitting, claims.snapshot)
            check_sharers(resource, at, fitting[0].owner if fitting else None, claims)
        return fitting

    def _beside(
        self,
        ids: frozenset[str],
        at: Located,
        before: Holding | Handout | None,
        candidates: tuple[Candidate, ...],
        claims: Claims,
    ) -> tuple[str, ...]:
        """UUIDs of GPUs that the container sees besides, the same for the same ids. None are shown on a guess."""
        if before and (share := self._memory.given(before.resource, ids)):
            return tuple(gpu.uuid for gpu in share.beside)
        living = claims.snapshot.living_pods
        pods = [c.pod for c in candidates]
        if before and before.owner:
            pods = [living[before.owner.pod]] if before.owner.pod in living else []
        return seen_by_whoever_asks(pods, at, claims)

    def _record(
        self, handout: Handout, before: Holding | Handout | None, candidates: tuple[Candidate, ...], claims: Claims
    ) -> None:
        memory = self._memory
        memory.choice = None
        if before and not candidates:
            memory.ledger = memory.ledger.closed()  # whoever that was, what was given before has no partner to come
            return
        # Whose container is not known may be about to ask for its other resource.
        second = memory.ledger.awaiting_partner(handout.resource, handout.at) is not None
        opens = len(claims.snapshot.sold) > 1 and not second and not candidates
        memory.ledger = memory.ledger.recorded(handout, opens=opens)
        places = tuple(replace(c, trail=(*c.trail, (c.owner, handout))) for c in candidates)
        memory.admission = Admission(places, handout.at)
        memory.believe(claims)

    def _isolated(self, share: Grant, snap: Snapshot) -> Grant:
        try:
            return self._isolation[serving_layer(share, snap).driver].prepare(share)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{share.resource}: {err}") from err
