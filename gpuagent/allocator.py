"""Answers kubelet's questions from the published snapshot and the ledger of the last minutes.

Thread-safe; touches no API server, no NVML and no disk. Kubelet's pod-resources socket is asked only where two
readings of a call are possible and its answer settles it.
"""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gpuagent.domain import demand as asked
from gpuagent.domain import events as ev
from gpuagent.domain.choose import Request, choose_share, choose_whole
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.grant import DeviceStrategy, Grant, grant, locate
from gpuagent.domain.ledger import Handout, Ledger
from gpuagent.domain.mode import GPU_CORE
from gpuagent.domain.pods import Holding, Owner, PodName
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.units import units_of
from gpuagent.isolation import Isolation, IsolationError

log = logging.getLogger(__name__)


class Book(Protocol):
    """Kubelet's own account of who holds what (pod-resources)."""

    def of_pod(self, pod: PodName) -> Sequence[Holding] | None:
        """What the pod holds now, also during its admission; None if kubelet cannot be asked."""

    def read(self, timeout_s: float) -> Sequence[Holding] | None:
        """Everything held, read after this call began; None if it took too long or kubelet cannot be asked."""


Say = Callable[[PodName | None, str, str], None]
"""Tell people: pod (None for the node), reason, message."""


class Allocator:
    """One for all resources: the two resources of a container have to end on one GPU."""

    def __init__(  # noqa: PLR0913 (collaborators)
        self,
        *,
        clock: Callable[[], float],
        post: Callable[[ev.Event], None],
        book: Book,
        isolation: Isolation,
        strategy: DeviceStrategy,
        say: Say,
    ) -> None:
        self._clock = clock
        self._post = post
        self._book = book
        self._isolation = isolation
        self._strategy = strategy
        self._say = say
        self._snapshot: Snapshot | None = None
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._in_flight = 0
        self._idle = threading.Condition()

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        self._snapshot = snapshot

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no Allocate is under way: kubelet may lose one's devices if it is asked for a list then."""
        with self._idle:
            return self._idle.wait_for(lambda: self._in_flight == 0, timeout_s)

    # -- GetPreferredAllocation ------------------------------------------------------------------------------

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Which of `available` a container should get.

        Raises:
            Refusal: the total may be enough, but no GPU is; or the request makes no sense.
        """
        snap = self._current()
        if size < 1 or not available:
            raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: {size} of {len(available)} devices is no request")
        free = _by_gpu(resource, available, snap)
        offered = set(available)
        if not set(must_include) <= offered:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: a device that must be included is not available")
        with self._lock:
            return self._prefer(resource, free, offered, must_include, size, snap)

    def _prefer(  # noqa: PLR0913
        self,
        resource: str,
        free: dict[str, list[str]],
        offered: set[str],
        must_include: Collection[str],
        size: int,
        snap: Snapshot,
    ) -> tuple[str, ...]:
        now = self._clock()
        who = asked.demand(resource, size, snap, self._ledger, offered, now)
        first = self._partner(resource, size, snap, now)
        doubtful = self._doubtful(offered, snap, now) - set(must_include)
        kind = snap.sold[resource]
        request = Request(
            resource=resource,
            size=size,
            unit="" if kind.is_whole else "%" if resource == GPU_CORE else f"x {snap.policy.unit}",
            free=free,
            order={uuid: gpu.index for uuid, gpu in snap.gpus.items()},
            must_include=must_include,
            placement=snap.placement,
            doubtful=doubtful,
            gpu_count=who.gpu_count,
            room=who.room,
            pinned=who.pinned,
            short=() if first else self._short_of_other(resource, who.other, offered, snap, now),
            only=first.uuids if first else None,
            full=() if kind.is_whole else self._full(offered, who.owner, snap, now),
            max_pods=snap.policy.max_pods_per_gpu,
            asker=str(who.owner or "this container"),
        )
        try:
            chosen = choose_whole(request) if kind.is_whole else choose_share(request)
            self._check_doubt(request, chosen, snap, now)
        except Refusal as refusal:
            self._ledger = self._ledger.closed()
            if who.owner:
                self._say(who.owner.pod, "GpuRefused", refusal.message)
            raise
        return chosen

    def _partner(self, resource: str, size: int, snap: Snapshot, now: float) -> Handout | None:
        """The handout of the same container's other resource, if this call is for its second one."""
        first = self._ledger.awaiting_partner(resource, now)
        if first is None or not snap.pods_known:
            return first
        owners = list(asked.same_container(first, resource, size, snap))
        if not owners:
            return None
        if asked.asks_alone(first, resource, snap) and self._confirmed(first, owners) is False:
            return None
        return first

    def _confirmed(self, first: Handout, owners: list[Owner]) -> bool | None:
        """Whether kubelet's book gives `first` to one of `owners`; None if kubelet does not say."""
        for pod in dict.fromkeys(owner.pod for owner in owners):
            held = self._book.of_pod(pod)
            if held is None:
                return None
            if any(h.ids == first.ids and h.owner in owners for h in held):
                return True
        return False

    def _claims(self, snap: Snapshot, now: float) -> Iterator[Holding | Handout]:
        yield from snap.holdings
        yield from self._ledger.recent(now)

    def _living(self, offered: Collection[str], snap: Snapshot, now: float) -> Iterator[Holding | Handout]:
        """Every holding that kubelet does not offer again, and every handout that is not a holding yet."""
        book = [h for h in snap.holdings if h.ids.isdisjoint(offered)]
        known = {(h.resource, h.ids) for h in book}
        yield from book
        for handout in self._ledger.recent(now):
            if (handout.resource, handout.ids) not in known and handout.ids.isdisjoint(offered):
                yield handout

    def _full(self, offered: set[str], asker: Owner | None, snap: Snapshot, now: float) -> set[str]:
        """GPUs with as many pods as allowed; the asking pod's own GPUs are not full for it."""
        pods: dict[str, set[object]] = defaultdict(set)
        for item in self._living(offered, snap, now):
            for uuid in {snap.units.get(device_id) for device_id in item.ids} - {None}:
                pods[str(uuid)].add(item.owner.pod if item.owner else item.ids)
        full = {uuid for uuid, sharers in pods.items() if len(sharers) >= snap.policy.max_pods_per_gpu}
        return {uuid for uuid in full if asker is None or asker.pod not in pods[uuid]}

    def _short_of_other(
        self, resource: str, need: int, offered: set[str], snap: Snapshot, now: float
    ) -> set[str]:
        """GPUs that, by the book, have less than `need` units of the mode's other resource."""
        others = {name: kind for name, kind in snap.sold.items() if name != resource}
        if not others:
            return set()
        (other, kind), *_ = others.items()
        given_back = {h.owner for h in snap.holdings if h.resource == resource and not h.ids.isdisjoint(offered)}
        used: Counter[str] = Counter()
        for item in self._living(offered, snap, now):
            if item.resource == other and item.owner not in given_back:
                used.update(snap.units[device_id] for device_id in item.ids if device_id in snap.units)
        return {
            uuid
            for uuid, gpu in snap.gpus.items()
            if units_of(gpu, kind, snap.policy.unit) - used[uuid] < max(need, 1)
        }

    def _doubtful(self, offered: set[str], snap: Snapshot, now: float) -> set[str]:
        """Offered ids that somebody may hold all the same: kubelet can lose a reservation from its books."""
        doubtful: set[str] = set()
        for item in self._claims(snap, now):
            if item.ids.isdisjoint(offered):
                continue
            if item.owner is None or not snap.pods_known or item.owner.pod in snap.living_pods:
                doubtful |= item.ids & offered
        return doubtful

    def _check_doubt(self, request: Request, chosen: tuple[str, ...], snap: Snapshot, now: float) -> None:
        """Refuse ids that kubelet offers and gives to a living pod at once; say it where it cannot be settled."""
        doubt = set(request.doubtful) & set(chosen)
        if not doubt:
            return
        holders = {item.owner.pod for item in self._claims(snap, now) if item.owner and item.ids & doubt}
        for pod in holders:
            if any(h.ids & doubt for h in self._book.of_pod(pod) or ()):
                text = (
                    f"{request.resource}: kubelet offers units that pod {pod} still holds, and no others are free; "
                    "try again when a pod has ended"
                )
                raise Refusal(Reason.STILL_HELD, text)
        log.info("devices given out again soon", extra={"resource": request.resource, "devices": sorted(doubt)[:8]})

    # -- Allocate --------------------------------------------------------------------------------------------

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """What the container gets for `ids`. The same ids always give the same answer.

        Raises:
            Refusal: the request cannot be honoured.
        """
        with self._under_way():
            snap = self._current()
            key = frozenset(ids)
            kind, counts = locate(resource, key, snap)
            now = self._clock()
            with self._lock:
                self._check_offered(resource, key, counts, snap, now)
                first = None if kind.is_whole else self._partner(resource, len(key), snap, now)
                if first and set(first.uuids) != set(counts):
                    self._ledger = self._ledger.closed()
                    raise _apart(resource, first, counts, snap)
                who = asked.demand(resource, len(key), snap, self._ledger, (), now)
            share = self._isolated(grant(resource, kind, counts, snap, self._strategy))
            with self._lock:
                handout = Handout(resource, key, tuple(counts), now, who.owner)
                self._ledger = self._ledger.recorded(handout, opens=len(snap.sold) > 1 and first is None)
            log.info("allocated", extra={"resource": resource, "units": len(key), "gpus": list(counts)})
            return share

    def _isolated(self, share: Grant) -> Grant:
        try:
            return self._isolation.prepare(share)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{share.resource}: {err}") from err

    def _check_offered(
        self, resource: str, ids: frozenset[str], counts: dict[str, int], snap: Snapshot, now: float
    ) -> None:
        """New units must be on offer and on one GPU unless a spread was asked for; units held before are fine."""
        if any(item.resource == resource and ids <= item.ids for item in self._claims(snap, now)):
            return
        if not all(device_id in snap.units for device_id in ids):
            text = f"{resource}: not offered in mode {snap.mode}, which is in force on this node"
            raise Refusal(Reason.NOT_OFFERED, text)
        kind = snap.sold.get(resource)
        if len(counts) == 1 or kind is None or kind.is_whole:
            return
        even = len(set(counts.values())) == 1
        if not (even and asked.spread_was_asked(resource, len(ids), len(counts), snap)):
            where = ", ".join(f"{n} on GPU {snap.gpus[uuid].index}" for uuid, n in counts.items())
            text = (
                f"{resource}: kubelet picked units of several GPUs for one container ({where}); a share stays on "
                "one GPU unless the pod label aliyun.com/gpu-count asks for an even spread"
            )
            raise Refusal(Reason.SPANS_GPUS, text)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._post(ev.AllocateBegan(self._clock()))
        with self._idle:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()
            self._post(ev.AllocateEnded(self._clock()))

    # -- PreStartContainer -----------------------------------------------------------------------------------

    def prestart(self, resource: str, ids: Collection[str]) -> Owner | None:
        """The container that `ids` belong to, from kubelet's book, with its isolation verified.

        None where kubelet cannot say: an ordinary init container whose devices no later container reuses.

        Raises:
            Refusal: the isolation layer is not ready for it; kubelet tries again.
        """
        snap = self._current()
        key = frozenset(ids)
        kind, counts = locate(resource, key, snap)
        owner = self._known_owner(resource, key, snap) or _holder(resource, key, self._book.read(timeout_s=5.0) or ())
        with self._lock:
            if owner:
                self._ledger = self._ledger.identified(key, owner)
        log.info("container starts", extra={"resource": resource, "units": len(key), "container": str(owner)})
        try:
            self._isolation.verify(grant(resource, kind, counts, snap, self._strategy), owner)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{resource}: {err}") from err
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


def _by_gpu(resource: str, available: Collection[str], snap: Snapshot) -> dict[str, list[str]]:
    if resource not in snap.sold:
        text = f"{resource}: not offered in mode {snap.mode}, which is in force on this node"
        raise Refusal(Reason.NOT_OFFERED, text)
    free: dict[str, list[str]] = defaultdict(list)
    for device_id in available:
        uuid = snap.units.get(device_id)
        if uuid is None:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} is not on offer on this node")
        free[uuid].append(device_id)
    return dict(free)


def _apart(resource: str, first: Handout, counts: Collection[str], snap: Snapshot) -> Refusal:
    there = ", ".join(str(snap.gpus[uuid].index) for uuid in first.uuids)
    here = ", ".join(str(snap.gpus[uuid].index) for uuid in counts)
    text = f"{resource}: kubelet picked GPU {here}, but the container's {first.resource} is on GPU {there}"
    return Refusal(Reason.PAIR_APART, text)


def _holder(resource: str, ids: frozenset[str], holdings: Collection[Holding]) -> Owner | None:
    """Who holds `ids`; for an init container, which kubelet does not list, the pod whose container reuses them."""
    reusers = [h for h in holdings if h.resource == resource and h.ids & ids]
    exact = [h.owner for h in reusers if h.ids == ids]
    if exact:
        return exact[0]
    pods = {h.owner.pod for h in reusers}
    return Owner(pods.pop(), "") if len(pods) == 1 else None
