"""Answers kubelet's calls about claims. Thread-safe."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from gpuagent.domain.announcement import EventSink
from gpuagent.domain.dra.cdi_spec import cdi_spec
from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.dra.ledger import Conflict, conflict, in_use, is_same, most_sharers
from gpuagent.domain.dra.prepare import (
    check_alone,
    claimed_gpus,
    container_parts,
    grants,
    merged,
    must_isolate,
    reserved_for,
)
from gpuagent.domain.dra.refused import refusal_event
from gpuagent.domain.dra.unusable_gpus import Unusable, unusable_gpu
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, DeviceStrategy, Grant
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import PROMISES, Mode
from gpuagent.domain.state import State
from gpuagent.isolation.interface import CannotIsolateError, Isolation, IsolationError
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

WAIT_S = 40.0
"""How long a call waits for an isolation layer that is coming. Kubelet waits 45 s, and retries after 60 to 90 s."""
RETRY_S = 0.5
SEEN_S = 2.0
"""How long a call waits for the pods of its claim: kubelet may see a new pod before the agent does. It waits as long
for a GPU of another claim that living pods use, because the agent may not have seen their end yet."""
LOOK_S = 2.0
"""How often a call that waits for another claim looks whether kubelet has forgotten that."""

Gpus = tuple[ClaimedGpu, ...]
Part = tuple[Gpus, Grant]
"""GPUs of a claim that a container gets together, and their grant."""
IsWanted = Callable[[], bool]
"""Whether kubelet still waits for the answer of a call."""
CdiNames = Mapping[str, tuple[str, ...]]
"""CDI devices of others, by the device of the claim with which a container gets them."""
ReadClaim = Callable[[str, str], Mapping[str, Any]]
"""Reads a ResourceClaim by namespace and name. Raises Refusal: it cannot be read."""
IsForgotten = Callable[[PreparedClaim], bool]
"""Whether a claim is gone at the API server and in kubelet's state, for certain. Kubelet never unprepares it."""


class Preparer:
    """Prepares claims with devices of this node.

    Args:
        pool: name of the node's pool.
        read_claim: kubelet gives the names of a claim only.
        isolation: drivers by name.
        strategy: how containers get device nodes.
        files: of prepared claims.
        changed: called with all prepared claims after each change.
        send_event: called with each refusal.
        is_forgotten: asked about prepared claims that are in the way of another one.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        pool: str,
        read_claim: ReadClaim,
        isolation: Mapping[str, Isolation],
        strategy: DeviceStrategy,
        files: ClaimFiles,
        changed: Callable[[tuple[PreparedClaim, ...]], None],
        send_event: EventSink,
        is_forgotten: IsForgotten = lambda _claim: False,
    ) -> None:
        self._pool, self._read_claim, self._isolation, self._strategy = pool, read_claim, isolation, strategy
        self._files, self._changed, self._send_event = files, changed, send_event
        self._is_forgotten = is_forgotten
        self._state: State | None = None
        self._news = threading.Condition()
        self._stopping = False
        self._locks = WeakValueDictionary[str, threading.Lock]()
        self._holding = threading.Lock()
        self._prepared: dict[str, PreparedClaim] = {}

    def start(self) -> None:
        """Read the claims that a former run prepared."""
        self._files.sweep()
        self._prepared = self._files.read()
        self._changed(tuple(self._prepared.values()))

    def refresh(self) -> None:
        """Read the claims that another agent has prepared since, or unprepared."""
        with self._news:
            # A call in progress holds its claim before it has written the files.
            in_progress = {uid: claim for uid, claim in self._prepared.items() if uid in self._locks}
            found = in_progress | self._files.read(self._prepared)
            if found != self._prepared:
                self._prepared = found
                self._changed(tuple(found.values()))

    def stop(self) -> None:
        """End the waits of calls."""
        self._stopping = True
        with self._news:
            self._news.notify_all()

    def publish(self, state: State) -> None:
        """Answer from this state from now on."""
        with self._news:
            self._state = state
            self._news.notify_all()

    def prepare(
        self, uid: str, namespace: str, name: str, is_wanted: IsWanted = lambda: True, until: float | None = None
    ) -> tuple[PreparedClaim, CdiNames]:
        """Prepare a claim, also one that is prepared already; it and what else its containers get.

        Args:
            uid: of the claim.
            namespace: of the claim.
            name: of the claim.
            is_wanted: whether kubelet still waits.
            until: monotonic seconds until which the call may wait, `WAIT_S` from now by default.

        Raises:
            Refusal: its containers cannot start now, or kubelet no longer waits.
        """
        end = time.monotonic() + WAIT_S if until is None else until
        try:
            return self._prepare(uid, namespace, name, is_wanted, end)
        except Refusal as refusal:
            if is_wanted():
                self._send_event(refusal_event(self._state, namespace, name, refusal))
            raise

    def _prepare(
        self, uid: str, namespace: str, name: str, is_wanted: IsWanted, end: float
    ) -> tuple[PreparedClaim, CdiNames]:
        def is_over() -> bool:
            return self._stopping or time.monotonic() > end or not is_wanted()

        with self._lock(uid):
            claim = self._read_claim(namespace, name)
            if (found := claim.get("metadata", {}).get("uid")) != uid:
                raise Refusal(Reason.UNKNOWN_POD, f"claim {namespace}/{name} has UID {found} by now, not {uid}")
            driver, gpus, parts = self._isolated(uid, claim, is_over)
            prepared = PreparedClaim(uid=uid, namespace=namespace, name=name, layer=driver, gpus=gpus)
            self._wait_seen(reserved_for(claim), is_over)
            self._hold(claim, prepared, is_wanted, is_over)
            try:
                self._files.write(prepared, cdi_spec(uid, [(devices_of(some), grant) for some, grant in parts]))
            except (OSError, ValueError) as err:
                raise Refusal(Reason.INTERNAL, f"cannot write the claim's files: {error_words(err)}") from err
        log.info("Prepared claim", extra={"claim": str(prepared), "gpus": ",".join(one.uuid for one in gpus)})
        return prepared, {device: grant.cdi_names for some, grant in parts for device in devices_of(some)}

    def unprepare(self, uid: str) -> None:
        """Forget a claim, which may be gone by now. Raises Refusal: its files cannot be removed."""
        with self._lock(uid):
            self._unprepare(uid)

    def _unprepare(self, uid: str) -> None:
        """As `unprepare`, under the claim's lock."""
        try:
            self._files.remove(uid)
        except (OSError, ValueError) as err:
            raise Refusal(Reason.INTERNAL, f"cannot remove the claim's files: {error_words(err)}") from err
        if uid in self._prepared:
            log.info("Unprepared claim", extra={"claim": str(self._prepared[uid])})
        self._change(uid, None)

    def _wait_seen(self, pods: frozenset[str], is_over: Callable[[], bool]) -> None:
        """Wait until these pods were seen; those that are gone by now never are."""
        end = time.monotonic() + SEEN_S
        with self._news:
            while not (self._state and pods <= {pod.uid for pod in self._state.pods.seen}):
                if is_over() or not self._news.wait(end - time.monotonic()):
                    return

    def _hold(
        self, given: Mapping[str, Any], claim: PreparedClaim, is_wanted: IsWanted, is_over: Callable[[], bool]
    ) -> None:
        """Hold the GPUs for the claim, as soon as other claims leave room for it.

        If the files cannot be written, the GPUs stay held until kubelet tries again or unprepares the claim.

        Raises:
            Refusal: others have the GPUs and keep them, or kubelet no longer waits.
        """
        began = time.monotonic()
        look_at = began
        while conflict := self._try_hold(given, claim, is_wanted):
            if time.monotonic() >= look_at:
                dropped = [self._drop_forgotten(other) for other in conflict.others]
                look_at = time.monotonic() + LOOK_S
                if any(dropped):
                    continue
            # A claim without a living pod is just being unprepared, so it pays to wait.
            stays = self._state is not None and in_use(conflict.others, self._state.pods.seen)
            if is_over() or (stays and time.monotonic() > began + SEEN_S):
                raise Refusal(Reason.STILL_HELD, conflict.message)
            with self._news:
                self._news.wait(RETRY_S)

    def _try_hold(self, given: Mapping[str, Any], claim: PreparedClaim, is_wanted: IsWanted) -> Conflict | None:
        """Hold the GPUs for the claim, unless others have them or kubelet no longer waits; what is in the way.

        The other front end gives none of them from now on.
        """
        # Another agent may prepare a claim at this moment, while it replaces this one or is replaced by it.
        with self._holding, self._files.locked():
            self.refresh()
            with self._news:
                known = self._prepared.get(claim.uid)
                if self._state:
                    self._check_held(claim.uid, claim.used, self._state)
                    # The call may have waited for pods or for another claim since the first check.
                    if unusable := unusable_gpu(given, claim.gpus, self._kept(claim.uid), self._state):
                        raise unusable.refusal
                    check_alone(claim, self._prepared.values(), self._state.pods.seen)
                    gpus, sharers = self._state.gpus.by_uuid, most_sharers(self._state)
                    found = conflict(claim, self._prepared.values(), gpus, sharers)
                    if found and not is_same(claim, known):
                        return found
                if not is_wanted():
                    raise Refusal(Reason.NOT_READY, "kubelet no longer waits for the claim")
                self._change(claim.uid, claim)
            with suppress(OSError, ValueError):  # it is written again with the CDI specification, and reported then
                self._files.show(claim)
        return None

    def _drop_forgotten(self, claim: PreparedClaim) -> bool:
        """Drop a claim that kubelet never unprepares; whether that was done."""
        if not self._is_forgotten(claim):
            return False
        lock = self._lock(claim.uid)
        if not lock.acquire(blocking=False):  # a call about it is in progress
            return False
        try:
            self._unprepare(claim.uid)
        except Refusal as refusal:
            log.warning("Failed to drop a claim that is gone", extra={"claim": str(claim), "reason": refusal.message})
            return False
        finally:
            lock.release()
        log.warning("Dropped a claim that is gone", extra={"claim": str(claim)})
        return True

    def _change(self, uid: str, claim: PreparedClaim | None) -> None:
        with self._news:
            others = {key: other for key, other in self._prepared.items() if key != uid}
            self._prepared = others | ({uid: claim} if claim else {})
            self._changed(tuple(self._prepared.values()))
            self._news.notify_all()

    def _lock(self, uid: str) -> threading.Lock:
        """Two pods may have one claim: kubelet prepares it for both at once."""
        with self._news:
            return self._locks.setdefault(uid, threading.Lock())

    def _known_state(self, is_over: Callable[[], bool]) -> State:
        """The state, once GPUs, kubelet's allocations and isolation drivers were read."""
        with self._news:
            while not ((state := self._state) and _is_known(state)):
                if is_over():
                    raise Refusal(Reason.NOT_READY, "the agent has not read the GPUs and kubelet's allocations yet")
                self._news.wait(RETRY_S)
            return state

    def _check_held(self, uid: str, gpus: Iterable[ClaimedGpu], state: State) -> None:
        """The last line of defense: a GPU is given by one front end at a time."""
        if uid in self._prepared:
            return
        for gpu in gpus:
            if gpu.uuid in state.barred_to_claims:
                index = state.gpus.by_uuid[gpu.uuid].index
                text = f"GPU {index} is still in use by pods of another mode; the claim is prepared when they end"
                raise Refusal(Reason.STILL_HELD, text)

    def _kept(self, uid: str) -> frozenset[str]:
        """UUIDs of the GPUs that the claim uses by an earlier preparation."""
        known = self._prepared.get(uid)
        return frozenset(gpu.uuid for gpu in known.used) if known else frozenset()

    def _wait_usable(self, unusable: Unusable, is_over: Callable[[], bool]) -> None:
        """Wait for news of a GPU that may become usable within the call. Raises Refusal: it does not."""
        if not unusable.passing or is_over():
            raise unusable.refusal
        with self._news:
            self._news.wait(RETRY_S)

    def _isolated(
        self, uid: str, claim: Mapping[str, Any], is_over: Callable[[], bool]
    ) -> tuple[str, Gpus, list[Part]]:
        """Driver, GPUs and grants, as soon as the layer works."""
        while True:
            state = self._known_state(is_over)
            gpus = claimed_gpus(claim, self._pool, state.gpus.by_uuid, state.policy.unit)
            self._check_held(uid, [gpu for gpu in gpus if not gpu.admin], state)
            if unusable := unusable_gpu(claim, gpus, self._kept(uid), state):
                self._wait_usable(unusable, is_over)
                continue
            try:
                driver, parts = self._try_isolated(claim, gpus, state)
            except CannotIsolateError as err:
                raise Refusal(Reason.ISOLATION, str(err)) from err
            except IsolationError as err:
                with self._news:
                    self._news.wait(RETRY_S)
                if is_over():
                    raise Refusal(Reason.ISOLATION, str(err)) from err
            else:
                return driver, gpus, parts

    def _try_isolated(self, claim: Mapping[str, Any], gpus: Gpus, state: State) -> tuple[str, list[Part]]:
        promised, mode = must_isolate(claim, gpus), layer_mode(state)
        layer = state.layer_of(mode)
        out = next((layer.left_out[one.uuid] for one in gpus if one.uuid in layer.left_out), None)
        works = layer.keeps(mode) and out is None
        if gpus[0].unlimited or not (promised or works):
            mode, driver = Mode.SHARE, NONE
        elif promised <= PROMISES[mode] and works:
            driver = layer.driver
        elif state.policy.allow_unisolated:
            mode, driver = Mode.SHARE, NONE
        else:
            words = layer.problem_in(mode) or out or f"it does not isolate {', '.join(sorted(promised))}"
            raise IsolationError(f"isolation driver {layer.driver} does not serve the claim now: {words}")
        access = DeviceAccess(
            unit=state.policy.unit,
            device_nodes=state.gpus.device_nodes,
            strategy=self._strategy,
            indexes=state.policy.index_for_uuid,
        )
        layer_driver, parts = self._isolation[driver], []
        for some in container_parts(claim, gpus):
            grant = merged([layer_driver.prepare(one) for one in grants(some, mode, state.gpus.by_uuid, access)])
            layer_driver.verify(grant, None)
            parts.append((some, grant))
        return driver, parts


def devices_of(gpus: Gpus) -> list[str]:
    """Names of the devices."""
    return [one.device for one in gpus]


def _is_known(state: State) -> bool:
    return bool(state.gpus.by_uuid) and state.holdings.listed is not None and not state.isolation.unheard
