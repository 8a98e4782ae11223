"""A container is about to start: whose it is, for certain now, and whether its isolation works."""

import logging
from collections.abc import Collection, Mapping

from gpuagent.allocator.memory import Memory, View
from gpuagent.book import Allocated, Book
from gpuagent.domain.errors import Reason, Refusal, refusals_name
from gpuagent.domain.exchange import by_units
from gpuagent.domain.grant import DeviceStrategy, Located, grant, locate
from gpuagent.domain.holdings import Recorded, given_by_another, holder
from gpuagent.domain.pods import Owner
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.startchecks import Start, check_start
from gpuagent.isolation import Isolation, IsolationError
from gpuagent.isolation.serving import serving_layer

log = logging.getLogger(__name__)

BOOK_S = 5.0
"""How long kubelet's book is waited for."""


class PreStart:
    """Answers PreStartContainer."""

    def __init__(
        self, memory: Memory, book: Book, isolation: Mapping[str, Isolation], strategy: DeviceStrategy
    ) -> None:
        self._memory = memory
        self._book = book
        self._isolation = isolation
        self._strategy = strategy

    def prestart(self, resource: str, ids: Collection[str]) -> Owner | None:
        """As `Allocator.prestart`."""
        memory, picked = self._memory, frozenset(ids)
        asks = not memory.view().counts_only
        memory.wait(lambda snap: snap.holdings_known or (bool(snap.kubelet) and asks), BOOK_S)
        if given_by_another(picked):
            read = self._book.read(timeout_s=BOOK_S)
            owner = holder(resource, picked, read.holdings if read else ())
            log.info(
                "a container of another plugin starts again", extra={"resource": resource, "container": str(owner)}
            )
            return owner
        view = memory.view()
        view.check_units_known(resource)
        snap, exchanged = view.snap, view.occupancy().exchanged
        units = frozenset(exchanged.get(device_id, device_id) for device_id in picked)
        fresh, owner = None, self._known_owner(resource, units, view)
        if owner is None:
            fresh = self._book.read(timeout_s=BOOK_S)
            owner = holder(resource, picked, fresh.holdings if fresh else ())
        with refusals_name(owner.pod if owner else None):
            self._check(resource, units, owner, snap, fresh)
        return owner

    def _check(
        self, resource: str, units: frozenset[str], owner: Owner | None, snap: Snapshot, fresh: Allocated | None
    ) -> None:
        at = locate(resource, units, snap)
        self._check_mode(resource, units, at, snap, fresh)
        log.info("container starts", extra={"resource": resource, "units": len(units), "container": str(owner)})
        # What it was given, as long as we know: the layer may have moved since.
        share = self._memory.granted(resource, units) or grant(resource, at, snap, self._strategy)
        try:
            self._isolation[serving_layer(share, snap).driver].verify(share, owner)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{resource}: {err}") from err

    def _check_mode(
        self, resource: str, units: frozenset[str], at: Located, snap: Snapshot, fresh: Allocated | None
    ) -> None:
        """What the mode promises; `fresh` is what kubelet has recorded, where it was read for this call."""
        start = Start(resource, units, at, snap, lambda: self._memory.granted_after(resource, units))
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

    @staticmethod
    def _known_owner(resource: str, ids: frozenset[str], view: View) -> Owner | None:
        """The container by kubelet's allocations as last read, if these ids were allocated to none since."""
        snap = view.snap
        given = [one.at for one in view.tracker.recent.all if not one.ids.isdisjoint(ids)]
        if snap.holdings_at <= max(given, default=float("-inf")):
            return None
        owners = (h.owner for h in snap.holdings if h.resource == resource and h.ids == ids)
        # The checkpoint alone gives no name; kubelet's list may have been read just before it had the container.
        return next((owner for owner in owners if owner.pod.namespace), None)
