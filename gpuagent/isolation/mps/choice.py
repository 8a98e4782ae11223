"""The control daemons that serve a node: one for each GPU, or one for all of them that is there already."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.gpu_share import NO_SHARE, GpuShare, whole_of
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.ceiling import Held
from gpuagent.isolation.mps.ceiling_keeper import CeilingKeeper
from gpuagent.isolation.mps.clients.client_watch import ClientWatch, GpuPods
from gpuagent.isolation.mps.daemon import MpsDaemon, MpsDaemons
from gpuagent.isolation.mps.daemon_record import NODE
from gpuagent.isolation.mps.daemon_state import NOT_LOOKED, Demand, MpsPolicy, Phase
from gpuagent.isolation.mps.daemon_watch import DaemonWatch
from gpuagent.isolation.mps.gpu_keeper import GpuDemand, GpuKeeper
from gpuagent.isolation.mps.share import why_not
from gpuagent.isolation.mps.summary import Summary, summary

log = logging.getLogger(__name__)


class DaemonChoice:
    """Chooses the daemons, and has them looked after.

    Another program's daemon for all GPUs is used where there is one. The agent's own from an earlier release serves
    until no container has its directory.

    Args:
        daemons: of the node.
        policy: when they are looked after, started and stopped.
        clock: monotonic seconds.
        changed: called from any thread when the state of a GPU's daemon may have changed.
        watch_clients: makes the watch of the clients of one daemon.
    """

    def __init__(
        self,
        daemons: MpsDaemons,
        policy: MpsPolicy,
        clock: Callable[[], float],
        changed: Callable[[], None],
        watch_clients: Callable[[DaemonWatch], ClientWatch],
    ) -> None:
        self._daemons = daemons
        self._policy = policy
        self._clock = clock
        self._watch_clients = watch_clients
        self._changed = changed
        # No container may get the directory of a daemon that is about to be replaced.
        self._giving = threading.Lock()
        self._node_wide: DaemonWatch | None = None
        self._given_at = clock()
        self._keepers: dict[str, GpuKeeper] = {}

    # -- for any thread --------------------------------------------------------------------------------------

    @property
    def node_wide(self) -> MpsDaemon | None:
        """The daemon that serves all GPUs; None where each GPU has its own."""
        watch = self._node_wide
        return watch.daemon if watch else None

    def serving(self, uuid: str) -> MpsDaemon:
        """The daemon for programs on this GPU."""
        return self.node_wide or self._daemons.of_gpu(uuid)

    def give(self, uuid: str) -> MpsDaemon:
        """The same, for a container that gets its directory."""
        with self._giving:
            daemon = self.serving(uuid)
            if daemon.gpu == NODE:
                self._given_at = self._clock()
            return daemon

    def admit(self, gpu: Gpu, share: GpuShare) -> None:
        """Check just before a container starts that the GPU's own daemon will serve it, with all of its share.

        Raises:
            MpsError: it will not.
        """
        keeper = self._keepers.get(gpu.uuid)
        if keeper is not None and self._node_wide is None:
            keeper.admit(share, whole_of(gpu))

    @property
    def lacks_ceiling(self) -> bool:
        """Whether a program that leaves its caps has the whole GPU."""
        is_missing = any(keeper.lacks_ceiling for keeper in self._keepers.values())
        return is_missing or self._node_wide is not None

    @property
    def unprobed(self) -> str:
        """Why it cannot be tried whether servers serve new programs; empty if it can."""
        reasons = [keeper.unprobed for keeper in self._keepers.values() if keeper.unprobed]
        return reasons[0] if reasons else ""

    @property
    def one_user(self) -> bool:
        """Whether a daemon serves one user at a time."""
        return any(keeper.one_user for keeper in self._keepers.values())

    def summary(self, gpus: Iterable[Gpu], *, worked: bool) -> Summary:
        """The state of MPS on these GPUs of the node.

        Args:
            gpus: of the node.
            worked: MPS was reported to work before.
        """
        watch = self._node_wide
        if watch is not None:
            return Summary(watch.state.problem)
        states = {}
        for gpu in gpus:
            keeper = self._keepers.get(gpu.uuid)
            if why_not(gpu) is None and keeper is not None:
                states[gpu] = keeper.state
        return summary(states, worked=worked) if states else Summary(NOT_LOOKED, standby=True)

    def wake(self) -> None:
        """Have the daemons of all GPUs looked after at once."""
        for keeper in list(self._keepers.values()):
            keeper.wake()

    # -- for the driver's thread -----------------------------------------------------------------------------

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        watch = self._node_wide
        return watch.state.pause_s if watch else self._policy.every_s

    @property
    def node_wide_pid(self) -> int | None:
        """PID of the daemon that serves all GPUs."""
        watch = self._node_wide
        return watch.pid if watch else None

    def look(self, demand: Demand, usable: Collection[str]) -> None:
        """Choose the daemons, and demand one for each of these GPUs (UUIDs) where none serves all.

        Args:
            demand: of the node.
            usable: UUIDs of the GPUs that can be shared through MPS.
        """
        if not demand.is_wanted:
            self._release_node_wide(demand)
        elif usable:
            self._choose(demand, usable)
        self._demand_by_gpu(demand, usable)

    def stop(self, until: float) -> bool:
        """End the threads, at most until then (`time.monotonic`); whether they have ended."""
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.stop()
        waiting = [keeper for keeper in keepers if not keeper.join(max(0.0, until - time.monotonic()))]
        return not waiting

    def _choose(self, demand: Demand, usable: Collection[str]) -> None:
        watch = self._node_wide
        if watch is None:
            if not self._serves_by_gpu(usable):
                self._adopt()
            return
        if not watch.state.has_daemon:
            # Its owner may have brought it back, there or in another directory.
            is_back = self._adopt()
            if not is_back and not watch.await_owner():
                self._node_wide = None
            return
        watch.ask()
        if watch.state.has_daemon and watch.daemon.is_ours:
            self._replace_former(watch, demand)

    def _serves_by_gpu(self, usable: Collection[str]) -> bool:
        """Whether a GPU has a daemon of its own, or its keeper has not looked yet."""
        if self._keepers:
            states = [keeper.state for keeper in self._keepers.values()]
            return any(state.has_daemon or state.phase is Phase.NOT_LOOKED for state in states)
        return any(self._daemons.of_gpu(uuid).is_there() for uuid in usable)

    def _adopt(self) -> bool:
        """Use the daemon for all GPUs, if there is one."""
        daemon = self._daemons.find_for_node()
        if daemon is None:
            return False
        watch = DaemonWatch(daemon, self._policy, self._clock, has_daemon=True)
        watch.ask()
        self._node_wide = watch
        return True

    def _replace_former(self, watch: DaemonWatch, demand: Demand) -> None:
        """End the agent's own daemon for all GPUs, once no container has its directory."""
        if demand.need.in_use:
            return
        with self._giving:
            # Kubelet's allocations show a container some seconds after it was given the directory.
            used_at = max(demand.unused_since, self._given_at)
            if self._clock() - used_at < self._policy.release_s or watch.daemon.control.clients():
                return
            self._node_wide = None
        log.info("Replacing the MPS daemon for all GPUs with one for each")
        watch.daemon.quit()

    def _release_node_wide(self, demand: Demand) -> None:
        """As no container needs MPS, end the agent's own daemon for all GPUs, and leave another program's alone."""
        noted = self._daemons.record.daemons
        watch = self._node_wide
        if watch is None:
            if NODE not in noted:
                return
            former = self._daemons.of_node(self._daemons.own)
            watch = DaemonWatch(former, self._policy, self._clock)
        watch.release(demand.unneeded_since)
        is_left = not watch.state.has_daemon and NODE not in self._daemons.record.daemons
        self._node_wide = None if is_left else watch

    def _demand_by_gpu(self, demand: Demand, usable: Collection[str]) -> None:
        is_by_gpu = demand.is_wanted and self._node_wide is None
        # An agent before this one may have left daemons that no container needs now.
        uuids = {*self._keepers, *self._daemons.record.daemons} - {NODE}
        if is_by_gpu:
            uuids.update(usable)
        for uuid in sorted(uuids):
            wanted = is_by_gpu and uuid in usable
            pods = pods_on(uuid, demand.need)
            held = held_of(uuid, demand.need)
            keeper = self._keepers.get(uuid)
            if keeper is not None:
                keeper.desire(self._clock(), pods, held, wanted=wanted)
                continue
            first = GpuDemand(wanted, demand.unneeded_since, pods, held)
            self._keepers = {**self._keepers, uuid: self._keeper(uuid, first)}

    def _keeper(self, uuid: str, demand: GpuDemand) -> GpuKeeper:
        watch = DaemonWatch(self._daemons.of_gpu(uuid), self._policy, self._clock)
        clients = self._watch_clients(watch)
        ceiling = CeilingKeeper(watch.daemon, self._clock)
        return GpuKeeper(watch, clients, ceiling, self._daemons.node_wide_dirs, demand, self._changed)


def pods_on(uuid: str, need: Need) -> GpuPods:
    """The pods that hold this GPU through MPS."""
    uids = [uid for uid, shares in need.pods.items() if uuid in shares.total]
    # Kubelet's checkpoint also has pods that have ended. Those that the API server shows have not.
    present = [uid for uid in uids if uid in need.pod_names]
    living = present or uids
    names = {uid: need.pod_names.get(uid, uid) for uid in living}
    ending = {uid: ends_at for uid, ends_at in need.ending.items() if uid in uids}
    label = uuid
    for gpu in need.gpus:
        if gpu.uuid == uuid:
            label = f"GPU {gpu.index}"
    return GpuPods(label, uuid in need.held, names, ending)


def held_of(uuid: str, need: Need) -> Held:
    """What containers have of this GPU through MPS."""
    whole = NO_SHARE
    for gpu in need.gpus:
        if gpu.uuid == uuid:
            whole = whole_of(gpu)
    if need.largest is None:
        return Held(whole)
    return Held(whole, need.largest.get(uuid, NO_SHARE))
