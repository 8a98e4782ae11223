"""The claims that are prepared on this node, as this agent and its files have them."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State
from gpuagent.preparer.call import LatestState
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)


class PreparedClaims:
    """The prepared claims by UID. Thread-safe.

    Args:
        files: of the claims.
        latest: whose waiting calls are told of each change.
        changed: called with all prepared claims after each change.
    """

    def __init__(
        self, files: ClaimFiles, latest: LatestState, changed: Callable[[tuple[PreparedClaim, ...]], None]
    ) -> None:
        self._files = files
        self._latest = latest
        self._changed = changed
        # A lock lives as long as a call uses it.
        self._locks = WeakValueDictionary[str, threading.Lock]()
        self._claims: dict[str, PreparedClaim] = {}
        self._writing = threading.Lock()

    def start(self) -> None:
        """Read the claims that a former run prepared."""
        self._files.sweep()
        self._claims = self._files.read()
        self._changed(self.every)

    def refresh(self) -> None:
        """Read the claims that another agent has prepared since, or unprepared."""
        with self._latest.changed:
            # A call in progress holds its claim before it has written the files.
            in_progress = {uid: claim for uid, claim in self._claims.items() if uid in self._locks}
            on_disk = self._files.read(self._claims)
            claims = in_progress | on_disk
            if claims != self._claims:
                self._claims = claims
                self._changed(self.every)

    @property
    def every(self) -> tuple[PreparedClaim, ...]:
        """All of them."""
        return tuple(self._claims.values())

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim; None if it is not prepared."""
        return self._claims.get(uid)

    def lock(self, uid: str) -> threading.Lock:
        """The lock of a claim. Two pods may have one claim: kubelet prepares it for both at once."""
        with self._latest.changed:
            return self._locks.setdefault(uid, threading.Lock())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While specifications are written: those of several claims change together, and with each claim."""
        with self._writing, self._files.locked():
            yield

    def hold(self, claim: PreparedClaim) -> None:
        """Count the claim as prepared. Its files are written later."""
        self._set(claim.uid, claim)

    def remove(self, uid: str) -> None:
        """Remove a claim and its files, under its lock; it may be gone by now. Raises Refusal: a file stays."""
        # The files first: with a file that stays, the claim would be prepared again after a restart.
        try:
            with self.writing():
                self._files.remove(uid)
        except (OSError, ValueError) as err:
            raise Refusal(Reason.INTERNAL, f"cannot remove the claim's files: {error_words(err)}") from err
        claim = self._claims.get(uid)
        if claim is not None:
            log.info("Unprepared claim", extra={"claim": str(claim)})
        self._set(uid, None)

    def kept_by(self, uid: str) -> frozenset[str]:
        """UUIDs of the GPUs that a claim uses by an earlier preparation."""
        claim = self._claims.get(uid)
        if claim is None:
            return frozenset()
        return frozenset(gpu.uuid for gpu in claim.used)

    def check_other_front_end(self, uid: str, gpus: Iterable[ClaimedGpu], state: State) -> None:
        """The last line of defense: a GPU is given by one front end at a time. Raises Refusal."""
        if uid in self._claims:
            return
        for gpu in gpus:
            why = state.barred_to_claims.get(gpu.uuid)
            if why is None:
                continue
            index = state.gpus.by_uuid[gpu.uuid].index
            if state.node.mode is Mode.DRA:
                advice = ". The claim is prepared as soon as no other pod can have the GPU"
                raise Refusal(Reason.STILL_HELD, f"GPU {index} {why}{advice}")
            # The other mode offers the GPU again when its pods have ended, so no wait helps.
            raise Refusal(Reason.NOT_OFFERED, f"GPU {index} {why}")

    def _set(self, uid: str, claim: PreparedClaim | None) -> None:
        with self._latest.changed:
            # A new mapping each time, because others read it without the lock.
            claims = {key: other for key, other in self._claims.items() if key != uid}
            if claim is not None:
                claims[uid] = claim
            self._claims = claims
            self._changed(self.every)
            self._latest.changed.notify_all()
