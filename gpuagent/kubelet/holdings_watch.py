"""When to read kubelet's allocations: on request, several times after an Allocate, and now and then."""

import logging
import math
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.identity import Listed
from gpuagent.domain.pods.pod import CheckpointEntry, PodName
from gpuagent.kubelet import checkpoint
from gpuagent.kubelet.pod_resources import PodResources

log = logging.getLogger(__name__)

RETRY_S = 0.25
SOON_S = 0.1
"""Pause from an Allocate to the first read: one read covers pods that come together."""
MIN_GAP_S = 0.02
"""Least time between two reads: kubelet allows 100 calls a second of all clients together."""


class HoldingsWatch:
    """Reads kubelet's allocations in a thread of its own: on request, and every `period_s`.

    One read serves all requests that came before it began. A read waits for a moment with no Allocate in progress,
    because kubelet can lose a reservation when it serves a list during one.

    Kubelet records an allocation only after the agent has answered, and its checkpoint has it after a write to disk.
    Both may take long on a busy node. So reads follow 0.1 s, 0.2 s, 0.4 s and so on after the last answer.
    """

    def __init__(
        self,
        client: PodResources,
        post: Callable[[ev.Event], None],
        wait_idle: Callable[[float], bool],
        clock: Callable[[], float],
        plugins: Path,
    ) -> None:
        self._plugins = plugins
        self._client = client
        self._post = post
        self._wait_idle = wait_idle
        self._clock = clock
        self._cond = threading.Condition()
        self._wanted = 1
        self._begun = 0
        self._done = 0
        self._latest: ev.HoldingsRead | None = None
        self._stopping = False
        self._soon = math.inf
        self._answered_at = -math.inf
        self.period_s = 30.0
        self._thread = threading.Thread(target=self._run, name="pod-resources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._cond:
            self._stopping = True
            self._cond.notify_all()

    def refresh(self) -> None:
        """Request a read of kubelet's allocations; returns at once."""
        with self._cond:
            self._wanted = self._begun + 1
            self._cond.notify_all()

    def refresh_soon(self) -> None:
        """Request a read once kubelet has had time to record the last answer, and later ones; returns at once."""
        with self._cond:
            self._answered_at = now = self._clock()
            if now + SOON_S < self._soon:
                self._soon = now + SOON_S
                self._cond.notify_all()

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        """As `KubeletAllocations.query`; no list is read while an Allocate is in progress."""
        return self._client.query(pods, listing=listing and self._wait_idle(0.0))

    def read(self, timeout_s: float) -> ev.HoldingsRead | None:
        """Kubelet's allocations from a read that begins after this call; None if it did not end in time."""
        with self._cond:
            target = self._wanted = self._begun + 1
            self._cond.notify_all()
            if not self._cond.wait_for(lambda: self._done >= target or self._stopping, timeout_s):
                return None
            return self._latest

    def _run(self) -> None:
        while True:
            with self._cond:
                due = self._clock() + self.period_s
                while not (self._stopping or self._wanted > self._begun):
                    if (left_s := min(due, self._soon) - self._clock()) <= 0:
                        break
                    self._cond.wait(left_s)
                if self._stopping:
                    return
                self._soon = math.inf
            self._wait_idle(1.0)
            with self._cond:
                self._begun += 1
                turn = self._begun
            began = self._clock()
            kept: tuple[CheckpointEntry, ...] = ()
            try:
                holdings = self._client.list()
                kept = checkpoint.read(self._plugins)
            except Exception as err:  # nothing may end this thread: no other reads kubelet's allocations
                log.exception("Failed to read pod-resources")
                holdings = None
                self._client.problem = str(err)
            now = self._clock()
            read = None if holdings is None else ev.HoldingsRead(holdings, began, now, kept)
            self._post(read or ev.HoldingsUnavailable(self._client.problem, now))
            with self._cond:
                self._soon = min(self._soon, now + max(SOON_S, now - self._answered_at))
                self._latest = read
                self._done = turn
                self._cond.notify_all()
                if holdings is None:
                    self._wanted = self._begun + 1  # kubelet does not answer: read again until it does
                self._cond.wait_for(lambda: self._stopping, RETRY_S if holdings is None else MIN_GAP_S)
