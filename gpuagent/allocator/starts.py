"""A container is about to start: whose it is, for certain now, and whether its isolation works."""

import logging
from collections.abc import Collection, Mapping

from gpuagent.allocator.memory import Memory
from gpuagent.allocator.refusalevents import Say
from gpuagent.book import Allocated, Book
from gpuagent.domain.errors import Reason, Refusal, refusals_name
from gpuagent.domain.exchange import by_units
from gpuagent.domain.grant import DeviceStrategy, Located, grant, locate
from gpuagent.domain.holdings import Recorded, given_by_another, holder
from gpuagent.domain.job import decision_kept
from gpuagent.domain.pods import Owner
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.startchecks import Start, check_start
from gpuagent.isolation import Isolation, IsolationError
from gpuagent.isolation.serving import serving_layer

log = logging.getLogger(__name__)

BOOK_S = 5.0
"""How long kubelet's book is waited for."""


class Starts:
    """Answers PreStartContainer."""

    def __init__(
        self, memory: Memory, book: Book, isolation: Mapping[str, Isolation], strategy: DeviceStrategy, say: Say
    ) -> None:
        self._memory = memory
        self._book = book
        self._isolation = isolation
        self._strategy = strategy
        self._say = say

    def prestart(self, resource: str, ids: Collection[str]) -> Owner | None:
        """As `Allocator.prestart`."""
        memory, picked = self._memory, frozenset(ids)
        memory.wait(lambda: memory.units_known, BOOK_S)
        if given_by_another(picked):
            read = self._book.read(timeout_s=BOOK_S)
            owner = holder(resource, picked, read.holdings if read else ())
            log.info(
                "a container of another plugin starts again", extra={"resource": resource, "container": str(owner)}
            )
            return owner
        with memory.lock:
            memory.check_units_known(resource)
            claims = memory.claims()
        snap = claims.snapshot
        units = frozenset(claims.exchanged.get(device_id, device_id) for device_id in picked)
        fresh, owner = None, self._known_owner(resource, units)
        if owner is None:
            fresh = self._book.read(timeout_s=BOOK_S)
            owner = holder(resource, picked, fresh.holdings if fresh else ())
        if owner:
            self._proved(resource, units, owner, snap)
        with refusals_name(owner.pod if owner else None):
            self._check(resource, units, owner, snap, fresh)
        return owner

    def _check(
        self, resource: str, units: frozenset[str], owner: Owner | None, snap: Snapshot, fresh: Allocated | None
    ) -> None:
        memory, at = self._memory, locate(resource, units, snap)
        self._check_mode(resource, units, at, snap, fresh)
        log.info("container starts", extra={"resource": resource, "units": len(units), "container": str(owner)})
        # What it was given, as long as we know: the layer may have moved since.
        share = memory.given(resource, units) or grant(resource, at, snap, self._strategy)
        try:
            self._isolation[serving_layer(share, snap).driver].verify(share, owner)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{resource}: {err}") from err
        for text in decision_kept(owner, at, {gpu.uuid for gpu in share.beside}, memory.claims()):
            self._say(owner.pod if owner else None, "GpuGroupDiffers", text)

    def _check_mode(
        self, resource: str, units: frozenset[str], at: Located, snap: Snapshot, fresh: Allocated | None
    ) -> None:
        """What the mode promises; `fresh` is what kubelet has recorded, where it was read for this call."""
        start = Start(resource, units, at, snap, lambda: self._memory.given_after(resource, units))
        if fresh is None:
            try:
                check_start(start, snap.recorded)
            except Refusal:
                # That may have been read in the middle of the pod's admission.
                fresh = self._book.read(timeout_s=BOOK_S)
                if fresh is None:
                    raise
        if fresh is not None:
            holdings, checkpoint, _ = by_units(fresh.holdings, fresh.checkpoint)
            check_start(start, Recorded(holdings, checkpoint, snap.pods, snap.units))

    def _known_owner(self, resource: str, ids: frozenset[str]) -> Owner | None:
        """The owner by the book as last read, if nobody was given these ids since that read began."""
        snap = self._memory.snapshot
        given_at = max([h.at for h in self._memory.ledger.handouts if not h.ids.isdisjoint(ids)], default=float("-inf"))
        if snap.holdings_at <= given_at:
            return None
        owners = (h.owner for h in snap.holdings if h.resource == resource and h.ids == ids)
        # The checkpoint alone gives no name; kubelet's list may have been read just before it had the container.
        return next((owner for owner in owners if owner.pod.namespace), None)

    def _proved(self, resource: str, ids: frozenset[str], owner: Owner, before: Snapshot) -> None:
        """Whether a scheduler had decided on `owner` tells the snapshot of `before`: the agent annotates pods, too."""
        memory, pod = self._memory, before.living_pods.get(owner.pod)
        with memory.lock:
            decided = owner in before.decided_asks
            memory.ledger = memory.ledger.believed(ids, owner, pod.uid if pod else None, decided=decided)
            memory.admission = memory.admission.told({(resource, ids): owner})
