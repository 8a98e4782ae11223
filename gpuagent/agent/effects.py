"""What follows from each new state: in kubelet, at the API server, in the state directory, in isolation drivers."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from gpuagent.agent.dra_driver import DraDriver
from gpuagent.agent.publisher import Publisher
from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State
from gpuagent.domain.status import problems
from gpuagent.isolation.interface import Isolation
from gpuagent.isolation.need import isolation_needs
from gpuagent.kube.cluster_sync import ClusterSync
from gpuagent.kube.no_cluster import NoCluster
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from gpuagent.system.resize_file import ResizeFile

log = logging.getLogger(__name__)

WAITING_PERIOD_S = 1.0
"""How often kubelet's allocations are read while the node waits for a change of them."""
QUIET_PERIOD_S = 30.0
"""How often otherwise."""


class Effects:
    """Carries out what follows from a state. For the loop's thread only; nothing here waits.

    Args:
        publisher: hands the state to the threads that answer calls.
        first_reads: set when driver, kubelet's allocations and isolation drivers have been read once.
        kube: the API server's side.
        holdings: reads kubelet's allocations.
        dra_driver: serves claims in mode dra.
        isolation: drivers by name, without the one that isolates nothing.
        keep_mode: stores the mode in force, and returns why that failed.
        keep_resizes: stores what resized pods were granted.
        post: takes an event at once.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        publisher: Publisher,
        first_reads: threading.Event,
        kube: ClusterSync | NoCluster,
        holdings: HoldingsWatch,
        dra_driver: DraDriver,
        isolation: Mapping[str, Isolation],
        keep_mode: Callable[[Mode], str | None],
        keep_resizes: ResizeFile,
        post: Callable[[ev.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._publisher = publisher
        self._first_reads = first_reads
        self._kube = kube
        self._holdings = holdings
        self._dra_driver = dra_driver
        self._isolation = isolation
        self._keep_mode = keep_mode
        self._resizes = keep_resizes
        self._post = post
        self._clock = clock

    def begin(self, state: State) -> None:
        """Publish the first state. What is wrong with the settings is announced now."""
        self._publisher.publish(state)
        for problem in problems.problems(state):
            if not problem.passing:
                self._announce([Announcement(problem.reason, problem.message, warning=problem.warning)])

    def follow(self, before: State, after: State, event: ev.Event, announcements: Iterable[Announcement]) -> None:
        """Follow a new state. Calls are answered from it first, since they cannot wait."""
        self._publisher.publish(after)
        if after.has_first_reads:
            self._first_reads.set()
        self._store_mode(after)
        self._store_resizes(after)
        self._announce(announcements)
        # First what is desired: an older desired state may not apply to the node that was just read.
        self._kube.desire(after)
        if isinstance(event, ev.NodeSeen):
            self._kube.observe(event.node)
        self._read_holdings(before, after)
        self._dra_driver.follow(after)
        # Most events leave the state as it is.
        if after is not before:
            self._desire_isolation(after)

    def _store_mode(self, state: State) -> None:
        if state.node.object is None:
            return  # the mode is the stored one, or a guess
        # An agent that starts in mode dra looks for slices, and deletes them when it reads another mode.
        mode = Mode.DRA if state.claims.published else state.node.mode
        unsaved = self._keep_mode(mode)
        if unsaved != state.node.mode_unsaved:
            self._post(ev.ModeKept(unsaved, self._clock()))

    def _store_resizes(self, state: State) -> None:
        resizes = state.resizes
        if resizes.to_store == resizes.stored and resizes.unsaved is None:
            return
        problem = self._resizes.keep(resizes.to_store)
        stored = self._resizes.saved
        if (stored, problem) != (resizes.stored, resizes.unsaved):
            self._post(ev.ResizesStored(stored, problem, self._clock()))

    def _announce(self, announcements: Iterable[Announcement]) -> None:
        for announcement in announcements:
            log_announcement(announcement)
            self._kube.send_event(announcement)

    def _read_holdings(self, before: State, after: State) -> None:
        is_waiting = problems.switch(after).phase != "steady" or after.holdings.problem is not None
        self._holdings.period_s = WAITING_PERIOD_S if is_waiting else QUIET_PERIOD_S
        if _must_read_holdings(before, after):
            self._holdings.refresh()

    def _desire_isolation(self, state: State) -> None:
        for name, need in isolation_needs(state, self._isolation).items():
            self._isolation[name].desire(need)


def _must_read_holdings(before: State, after: State) -> bool:
    """Whether kubelet's allocations have to be read at once, instead of at the next period."""
    if after.pods.seen is not before.pods.seen:
        ended = before.pods.living_uids - after.pods.living_uids
        if ended:
            return True  # their devices are free
    if _has_begun_to_grow(before, after):
        return True  # a limit rises only after a read that began after its units left the lists
    unaudited = after.advertised.unaudited
    newly_unaudited = unaudited - before.advertised.unaudited
    if newly_unaudited:
        return True
    if unaudited and after.advertised.cleared_at != before.advertised.cleared_at:
        return True  # GPUs wait for a read that began after this moment
    is_lost = after.holdings.listed is None and before.holdings.listed is not None
    fails_first = after.holdings.problem is not None and before.holdings.problem is None
    return is_lost or fails_first


def _has_begun_to_grow(before: State, after: State) -> bool:
    """Whether units have begun to leave the lists for a resized pod."""
    growing_before = before.resizes.growing
    for uid, growth in after.resizes.growing.items():
        former = growing_before.get(uid)
        if former is None or former.since != growth.since:
            return True
    return False


def log_announcement(announcement: Announcement) -> None:
    """Write a line for it, with its pods."""
    level = logging.WARNING if announcement.warning else logging.INFO
    fields = {}
    if announcement.pods:
        fields["pods"] = ",".join(map(str, announcement.pods))
    fields["text"] = announcement.message
    log.log(level, "%s", announcement.reason, extra=fields)
