"""When to read kubelet's allocations: on request, several times after an Allocate, and now and then."""

import logging
import math
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
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
        self._changed = threading.Condition()
        self._wanted = 1
        self._begun = 0
        self._done = 0
        self._latest: ev.HoldingsRead | None = None
        self._stopping = False
        self._read_at = math.inf
        self._answered_at = -math.inf
        self.period_s = 30.0
        self._thread = threading.Thread(target=self._run, name="pod-resources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def refresh(self) -> None:
        """Request a read of kubelet's allocations; returns at once."""
        with self._changed:
            # Not one more for each request: the next read serves all of them.
            self._wanted = self._begun + 1
            self._changed.notify_all()

    def refresh_soon(self) -> None:
        """Request a read once kubelet has had time to record the last answer, and later ones; returns at once."""
        with self._changed:
            now = self._clock()
            self._answered_at = now
            if now + SOON_S < self._read_at:
                self._read_at = now + SOON_S
                self._changed.notify_all()

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        """As `KubeletAllocations.query`; no list is read while an Allocate is in progress."""
        return self._client.query(pods, listing=listing and self._wait_idle(0.0))

    def read(self, timeout_s: float) -> ev.HoldingsRead | None:
        """Kubelet's allocations from a read that begins after this call; None if it did not end in time."""
        with self._changed:
            target = self._begun + 1
            self._wanted = target
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._done >= target or self._stopping, timeout_s):
                return None
            return self._latest

    def _run(self) -> None:
        while self._wait_until_due():
            # A list during an Allocate may make kubelet lose the reservation. But no Allocate may delay reads forever.
            self._wait_idle(1.0)
            with self._changed:
                self._begun += 1
                turn = self._begun
            read = self._read_now()
            with self._changed:
                self._read_at = min(self._read_at, self._next_after_answer())
                self._latest = read
                self._done = turn
                self._changed.notify_all()
                if read is None:
                    self._wanted = self._begun + 1  # kubelet does not answer: read again until it does
                self._changed.wait_for(lambda: self._stopping, RETRY_S if read is None else MIN_GAP_S)

    def _wait_until_due(self) -> bool:
        """Wait for the next read; False when stopping."""
        with self._changed:
            due = self._clock() + self.period_s
            while not self._stopping and self._wanted <= self._begun:
                left_s = min(due, self._read_at) - self._clock()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._read_at = math.inf
            return not self._stopping

    def _read_now(self) -> ev.HoldingsRead | None:
        """Read and post; None if kubelet does not answer."""
        began = self._clock()
        entries: tuple[CheckpointEntry, ...] = ()
        try:
            holdings = self._client.list()
            entries = checkpoint.read(self._plugins)
        except Exception as err:  # nothing may end this thread: no other reads kubelet's allocations
            log.exception("Failed to read pod-resources")
            holdings = None
            self._client.problem = str(err)
        now = self._clock()
        if holdings is None:
            self._post(ev.HoldingsUnavailable(self._client.problem, now))
            return None
        read = ev.HoldingsRead(holdings, began, now, entries)
        self._post(read)
        return read

    def _next_after_answer(self) -> float:
        """As long after now as the last answer to kubelet is before it."""
        now = self._clock()
        return now + max(SOON_S, now - self._answered_at)
