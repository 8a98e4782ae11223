"""Answers kubelet's calls about claims. Thread-safe."""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain.announcement import EventSink
from gpuagent.domain.dra.cdi_spec import cdi_spec
from gpuagent.domain.dra.prepare import reserved_for
from gpuagent.domain.dra.refused import refusal_event, with_mode
from gpuagent.domain.dra.unusable_gpus import tolerates_fence
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.state import State
from gpuagent.isolation.interface import Serving
from gpuagent.preparer import waits
from gpuagent.preparer.call import Call, IsWanted, LatestState, WaitsFor
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.preparer.claim_isolation import ClaimIsolation, ReadClaim
from gpuagent.preparer.gpu_hold import GpuHold, IsForgotten
from gpuagent.preparer.prepared_claims import PreparedClaims
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

CdiNames = Mapping[tuple[str, str], tuple[str, ...]]
"""CDI devices of others, by the request and the device of the claim with which a container gets them."""


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
        is_of_administrators: whether a namespace is one of administrators, who may use fenced GPUs; None if it
            cannot be read.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        pool: str,
        read_claim: ReadClaim,
        isolation: Mapping[str, Serving],
        strategy: DeviceStrategy,
        files: ClaimFiles,
        changed: Callable[[tuple[PreparedClaim, ...]], None],
        send_event: EventSink,
        is_forgotten: IsForgotten = lambda _claim: False,
        is_of_administrators: Callable[[str], bool | None] = lambda _namespace: False,
    ) -> None:
        self._read_claim = read_claim
        self._is_of_administrators = is_of_administrators
        self._files = files
        self._send_event = send_event
        self._latest = LatestState()
        self._claims = PreparedClaims(files, self._latest, changed)
        self._hold = GpuHold(self._latest, self._claims, files, is_forgotten)
        self._isolation = ClaimIsolation(
            pool=pool,
            drivers=isolation,
            strategy=strategy,
            latest=self._latest,
            claims=self._claims,
            read_claim=read_claim,
        )

    def start(self) -> None:
        """Read the claims that a former run prepared."""
        self._claims.start()

    def refresh(self) -> None:
        """Read the claims that another agent has prepared since, or unprepared."""
        self._claims.refresh()

    def stop(self) -> None:
        """End the waits of calls."""
        self._latest.stop()

    def publish(self, state: State) -> None:
        """Answer from this state from now on."""
        self._latest.publish(state)

    def prepare(  # noqa: PLR0913 (what kubelet's call has)
        self,
        uid: str,
        namespace: str,
        name: str,
        is_wanted: IsWanted = lambda: True,
        until: float | None = None,
        together: frozenset[str] = frozenset(),
    ) -> tuple[PreparedClaim, CdiNames]:
        """Prepare a claim, also one that is prepared already; it and what else its containers get.

        Args:
            uid: of the claim.
            namespace: of the claim.
            name: of the claim.
            is_wanted: whether kubelet still waits.
            until: monotonic seconds until which the call may wait, `WAIT_S` from now by default.
            together: names of further claims in the namespace that kubelet has prepared in the same call.

        Raises:
            Refusal: its containers cannot start now, or kubelet no longer waits.
        """
        if until is None:
            until = time.monotonic() + waits.WAIT_S

        def of_mode(refusal: Refusal) -> Refusal:
            is_prepared = self._claims.get(uid) is not None
            return refusal if is_prepared else with_mode(refusal, self._latest.state)

        def tell(refusal: Refusal) -> None:
            # A call that kubelet has given up says nothing about the claim: the next one may succeed.
            if is_wanted():
                self._send_event(refusal_event(self._latest.state, namespace, name, refusal))

        call = Call(
            uid, namespace, name, is_wanted, until, _send_late(lambda refusal: tell(of_mode(refusal))), together
        )
        try:
            with self._claims.lock(uid):
                return self._prepare(call)
        except Refusal as err:
            refusal = of_mode(err)
            tell(refusal)
            raise refusal from None

    def unprepare(self, uid: str) -> None:
        """Forget a claim, which may be gone by now. Raises Refusal: its files cannot be removed."""
        with self._claims.lock(uid):
            self._claims.remove(uid)

    def _prepare(self, call: Call) -> tuple[PreparedClaim, CdiNames]:
        """As `prepare`, under the claim's lock."""
        claim = self._read(call)
        # Few claims tolerate the fence, so few calls have to ask.
        if tolerates_fence(claim):
            call = replace(call, of_administrators=self._is_of_administrators(call.namespace))
        # Only the pods show which GPUs of the claim a container gets, and whether it uses another claim as well.
        self._wait_for_pods(call, reserved_for(claim))
        # Before the GPUs are held: while the call waits for a driver, other claims may have them.
        isolated = self._isolation.isolated(call, claim)
        prepared = isolated.prepared
        self._hold.hold(call, claim, prepared, isolated.coming)
        others = self._write_files(call, claim, prepared, isolated.coming)
        uuids = ",".join(gpu.uuid for gpu in prepared.gpus)
        log.info("Prepared claim", extra={"claim": str(prepared), "gpus": uuids})
        return prepared, others

    def _read(self, call: Call) -> Mapping[str, Any]:
        """The claim, which must be the one that kubelet means and not a later one of the same name."""
        claim = self._read_claim(call.namespace, call.name)
        metadata = claim.get("metadata", {})
        present_uid = metadata.get("uid")
        if present_uid != call.uid:
            text = f"claim {call.namespace}/{call.name} has UID {present_uid} by now, not {call.uid}"
            raise Refusal(Reason.UNKNOWN_POD, text)
        return claim

    def _wait_for_pods(self, call: Call, uids: frozenset[str]) -> None:
        """Wait a little until these pods were seen; those that are gone by now never are.

        A claim whose answer depends on its pods is refused later if none of them was seen.
        """
        end = time.monotonic() + waits.SEEN_S
        with self._latest.changed:
            while not self._has_seen(uids):
                if self._latest.is_over(call):
                    return
                if not self._latest.wait(end - time.monotonic()):
                    return

    def _has_seen(self, uids: frozenset[str]) -> bool:
        state = self._latest.state
        if state is None:
            return False
        seen_uids = {pod.uid for pod in state.pods.seen}
        return uids <= seen_uids

    def _write_files(
        self, call: Call, claim: Mapping[str, Any], prepared: PreparedClaim, coming: Collection[str]
    ) -> CdiNames:
        """Write the claim's files, and specifications that change with it; CDI devices of others.

        Raises:
            Refusal: a file cannot be written, or a container that was seen just now cannot get what it names.
        """
        try:
            self._files.write(prepared)
            with self._claims.writing():
                specs = self._isolation.specs_now(call, claim, prepared, coming)
                for uid, devices in specs.devices.items():
                    self._files.write_spec(uid, cdi_spec(uid, devices))
        except (OSError, ValueError) as err:
            raise Refusal(Reason.INTERNAL, f"cannot write the claim's files: {error_words(err)}") from err
        return specs.others


def _send_late(tell: WaitsFor) -> WaitsFor:
    """Tells once why a call waits, when it has waited for a moment: people see nothing else meanwhile."""
    due = time.monotonic() + waits.EVENT_AFTER_S

    def waits_for(refusal: Refusal) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = math.inf
            tell(refusal)

    return waits_for
