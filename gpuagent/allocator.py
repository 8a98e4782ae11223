"""Answers kubelet's questions from the published snapshot and the ledger of the last minutes.

Thread-safe; touches no API server, no NVML and no disk. Kubelet's pod-resources socket is asked only where two
readings of a call are possible and its answer settles it.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gpuagent.domain import demand as asked
from gpuagent.domain import events as ev
from gpuagent.domain.choose import Request, choose_share, choose_whole
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.grant import DeviceStrategy, Grant, grant, locate
from gpuagent.domain.ledger import Handout, Ledger
from gpuagent.domain.mode import GPU_CORE
from gpuagent.domain.pods import Holding, Owner, PodName
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.units import MemoryUnit
from gpuagent.isolation import Isolation, IsolationError

log = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How long a question of kubelet's waits for the pod it is about to appear in our own watch."""


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
        self._published = threading.Condition()
        self._in_flight = 0
        self._idle = threading.Condition()

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        with self._published:
            self._snapshot = snapshot
            self._published.notify_all()

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
        if size < 1 or not available:
            raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: {size} of {len(available)} devices is no request")
        offered = set(available)
        if not set(must_include) <= offered:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: a device that must be included is not available")
        claims = self._seeing_the_asker(resource, size, offered)
        free = _by_gpu(resource, available, claims.snapshot)
        with self._lock:
            try:
                return self._choose(resource, size, free, must_include, claims)
            except Refusal:
                self._ledger = self._ledger.closed()
                raise

    def _seeing_the_asker(self, resource: str, size: int, offered: set[str]) -> Claims:
        """The newest knowledge; kubelet may have heard of the asking pod a moment before our own watch did."""
        end = self._clock() + PATIENCE_S
        while True:
            snap, now = self._current(), self._clock()
            claims = Claims(snap, self._ledger, offered, now)
            if not snap.pods_known or now >= end or asked.is_known(resource, size, claims):
                return claims
            with self._published:
                self._published.wait_for(lambda seen=snap: self._snapshot is not seen, end - now)  # type: ignore[misc]

    def _choose(
        self, resource: str, size: int, free: dict[str, list[str]], must_include: Collection[str], claims: Claims
    ) -> tuple[str, ...]:
        snap = claims.snapshot
        kind = snap.sold[resource]
        who = asked.demand(resource, size, claims)
        first = self._partner(resource, size, claims)
        request = Request(
            resource=resource,
            size=size,
            unit="" if kind.is_whole else "%" if resource == GPU_CORE else _named(snap.policy.unit),
            free=free,
            order={uuid: gpu.index for uuid, gpu in snap.gpus.items()},
            must_include=must_include,
            placement=snap.placement,
            doubtful={i for claim in claims.doubted for i in claim.ids if i not in must_include},
            gpu_count=who.gpu_count,
            room=who.room,
            pinned=who.pinned,
            short=() if first else claims.short_gpus(resource, who.other),
            only=first.uuids if first else None,
            full=() if kind.is_whole else claims.full_gpus(who.owner),
            max_pods=snap.policy.max_pods_per_gpu,
            asker=str(who.owner or "this container"),
        )
        try:
            chosen = choose_whole(request) if kind.is_whole else choose_share(request)
            self._check_doubt(resource, request.doubtful, chosen, claims)
        except Refusal as refusal:
            if who.owner:
                self._say(who.owner.pod, "GpuRefused", refusal.message)
            raise
        return chosen

    def _partner(self, resource: str, size: int, claims: Claims) -> Handout | None:
        """The handout of the same container's other resource, if this call is for its second one."""
        snap = claims.snapshot
        first = self._ledger.awaiting_partner(resource, claims.now)
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

    def _check_doubt(self, resource: str, doubtful: Collection[str], chosen: tuple[str, ...], claims: Claims) -> None:
        """Refuse ids that kubelet offers although its own book gives them to a pod; there are no others left."""
        doubt = set(doubtful) & set(chosen)
        if not doubt:
            return
        for pod in {claim.owner.pod for claim in claims.doubted if claim.owner and claim.ids & doubt}:
            if any(h.ids & doubt for h in self._book.of_pod(pod) or ()):
                text = (
                    f"{resource}: kubelet offers units that pod {pod} still holds, and no others are free; "
                    "try again when a pod has ended"
                )
                raise Refusal(Reason.STILL_HELD, text)
        log.info("devices given out again soon", extra={"resource": resource, "devices": sorted(doubt)[:8]})

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
                claims = Claims(snap, self._ledger, (), now)
                _check_offered(resource, key, counts, claims)
                first = None if kind.is_whole else self._partner(resource, len(key), claims)
                if first and set(first.uuids) != set(counts):
                    self._ledger = self._ledger.closed()
                    raise _apart(resource, first, counts, snap)
                who = asked.demand(resource, len(key), claims)
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


def _check_offered(resource: str, ids: frozenset[str], counts: dict[str, int], claims: Claims) -> None:
    """New units must be on offer and on one GPU unless a spread was asked for; units given out before are fine."""
    snap = claims.snapshot
    if claims.covers(resource, ids):
        return
    if not ids <= snap.units.keys():
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


def _named(unit: MemoryUnit) -> str:
    return str(unit) if unit.mib in {1, 1024} else f"x {unit}"


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
