"""Holds the GPUs of a claim, so that no other claim and no pod of another mode gets them."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from gpuagent.domain.dra.claim_users import check_users, check_uses
from gpuagent.domain.dra.ledger import Conflict, conflict, in_use, is_same, most_sharers
from gpuagent.domain.dra.unusable_gpus import unusable_gpu
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.state import State
from gpuagent.preparer import waits
from gpuagent.preparer.call import Call, LatestState
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.preparer.prepared_claims import PreparedClaims

log = logging.getLogger(__name__)

IsForgotten = Callable[[PreparedClaim], bool]
"""Whether a claim is gone at the API server and in kubelet's state, for certain. Kubelet never unprepares it."""


class GpuHold:
    """Holds GPUs for claims, one claim at a time. Thread-safe.

    Args:
        latest: the agent's state.
        claims: that are prepared.
        files: of the claims; other agents on the node compare with them.
        is_forgotten: asked about prepared claims that are in the way of another one.
    """

    def __init__(
        self, latest: LatestState, claims: PreparedClaims, files: ClaimFiles, is_forgotten: IsForgotten
    ) -> None:
        self._latest = latest
        self._claims = claims
        self._files = files
        self._is_forgotten = is_forgotten
        self._holding = threading.Lock()

    def hold(
        self, call: Call, resource_claim: Mapping[str, Any], claim: PreparedClaim, coming: Collection[str]
    ) -> None:
        """Hold the GPUs for the claim, as soon as other claims leave room for it.

        If the record is written and the specification cannot be, the GPUs stay held until kubelet tries again or
        unprepares the claim.

        Args:
            call: kubelet's.
            resource_claim: the ResourceClaim.
            claim: to be prepared.
            coming: names of claims of its pods that are not prepared yet.

        Raises:
            Refusal: others have the GPUs and keep them, or kubelet no longer waits.
        """
        began = time.monotonic()
        look_at = began
        while True:
            in_the_way = self._try_hold(call, resource_claim, claim, coming)
            if in_the_way is None:
                return
            # API server and kubelet are asked about the claims, so not at each try.
            if time.monotonic() >= look_at:
                dropped = [self._drop_forgotten(other) for other in in_the_way.others]
                look_at = time.monotonic() + waits.LOOK_S
                if any(dropped):
                    continue
            stays = self._stays(in_the_way) and time.monotonic() > began + waits.SEEN_S
            refusal = Refusal(Reason.STILL_HELD, in_the_way.message)
            if stays or self._latest.is_over(call):
                raise refusal
            call.waits_for(refusal)
            self._latest.wait(waits.RETRY_S)

    def _stays(self, in_the_way: Conflict) -> bool:
        """Whether no wait helps. A claim without a living pod is just being unprepared, so it pays to wait."""
        state = self._latest.state
        return state is not None and in_use(in_the_way.others, state.pods.seen)

    def _try_hold(
        self, call: Call, resource_claim: Mapping[str, Any], claim: PreparedClaim, coming: Collection[str]
    ) -> Conflict | None:
        """Hold the GPUs for the claim, unless others have them or kubelet no longer waits; what is in the way.

        The other front end gives none of them from now on.
        """
        # Another agent may prepare a claim at this moment, while it replaces this one or is replaced by it.
        with self._holding, self._files.locked():
            self._claims.refresh()
            with self._latest.changed:
                state = self._latest.state
                if state is not None:
                    check_users(resource_claim, claim, self._claims.every, state.pods)
                    check_uses(resource_claim, claim, self._claims.every, state.pods, coming)
                in_the_way = self._check(call, resource_claim, claim, state)
                if in_the_way is not None:
                    return in_the_way
                if not call.is_wanted():
                    raise Refusal(Reason.NOT_READY, "kubelet no longer waits for the claim")
                self._claims.hold(claim)
            with suppress(OSError, ValueError):  # it is written again with the CDI specification, and reported then
                self._files.show(claim)
        return None

    def _check(
        self, call: Call, resource_claim: Mapping[str, Any], claim: PreparedClaim, state: State | None
    ) -> Conflict | None:
        """What other prepared claims leave no room for. Raises Refusal: the claim must not have its GPUs."""
        if state is None:
            return None
        claims = self._claims
        claims.check_other_front_end(claim.uid, claim.used, state)
        # The call may have waited for pods or for another claim since the first check.
        kept = claims.kept_by(claim.uid)
        unusable = unusable_gpu(resource_claim, claim.gpus, kept, state, of_administrators=call.of_administrators)
        if unusable is not None:
            raise unusable.refusal
        in_the_way = conflict(claim, claims.every, state.gpus.by_uuid, most_sharers(state))
        if in_the_way is None or is_same(claim, claims.get(claim.uid)):
            return None
        return in_the_way

    def _drop_forgotten(self, claim: PreparedClaim) -> bool:
        """Drop a claim that kubelet never unprepares; whether that was done."""
        if not self._is_forgotten(claim):
            return False
        lock = self._claims.lock(claim.uid)
        if not lock.acquire(blocking=False):  # a call about it is in progress
            return False
        try:
            self._claims.remove(claim.uid)
        except Refusal as refusal:
            log.warning("Failed to drop a claim that is gone", extra={"claim": str(claim), "reason": refusal.message})
            return False
        finally:
            lock.release()
        log.warning("Dropped a claim that is gone", extra={"claim": str(claim)})
        return True
