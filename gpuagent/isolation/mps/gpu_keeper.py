"""The thread that looks after the control daemon of one GPU: a daemon that hangs delays no other GPU."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.host.mps_client import MpsError
from gpuagent.isolation.mps.ceiling import Held
from gpuagent.isolation.mps.ceiling_keeper import CeilingKeeper
from gpuagent.isolation.mps.clients.client_watch import ClientWatch, GpuPods
from gpuagent.isolation.mps.daemon_state import MpsState, Phase
from gpuagent.isolation.mps.daemon_watch import DaemonWatch
from gpuagent.isolation.mps.wakeup import Wakeup

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """What is asked of the daemon of one GPU.

    Attributes:
        wanted: it has to run.
        pods: that use it.
        held: what their containers have of it.
        unneeded_since: since when it need not run; has no meaning while it is wanted.
    """

    wanted: bool
    unneeded_since: float
    pods: GpuPods = GpuPods()
    held: Held = Held()

    def changed(self, at: float, pods: GpuPods, held: Held, *, wanted: bool) -> "GpuDemand":
        """The demand from now on."""
        has_ended = self.wanted and not wanted
        since = at if has_ended else self.unneeded_since
        return GpuDemand(wanted, since, pods, held)


class GpuKeeper:
    """Keeps the control daemon of one GPU as it is demanded.

    Args:
        watch: of the daemon.
        clients: of the daemon.
        ceiling: of the daemon's servers.
        pipe_dirs: where another program may run one, for people.
        demand: the first demand.
        changed: called after each look.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        watch: DaemonWatch,
        clients: ClientWatch,
        ceiling: CeilingKeeper,
        pipe_dirs: Iterable[Path],
        demand: GpuDemand,
        changed: Callable[[], None],
    ) -> None:
        self._watch = watch
        self._clients = clients
        self._ceiling = ceiling
        self._pipe_dirs = tuple(pipe_dirs)
        self._demand = demand
        self._changed = changed
        self._stopping = threading.Event()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="isolation-mps-gpu", daemon=True)
        self._thread.start()

    @property
    def state(self) -> MpsState:
        """What is known of the daemon, with the problem of its server where the daemon itself has none."""
        state = self._watch.state
        if state.phase is Phase.SERVING:
            return replace(state, problem=self._clients.problem)
        return state

    @property
    def unprobed(self) -> str:
        """Why it cannot be tried whether the server serves new programs; empty if it can."""
        return self._clients.state.unprobed

    @property
    def one_user(self) -> bool:
        """Whether the daemon serves one user at a time."""
        return self._watch.daemon.one_user

    @property
    def lacks_ceiling(self) -> bool:
        """Whether the daemon's servers take no ceiling."""
        return self._ceiling.is_missing

    def admit(self, share: GpuShare, whole: GpuShare) -> None:
        """Check just before a container starts that it will be served, with all of its share.

        Args:
            share: of the container.
            whole: all of the GPU.

        Raises:
            MpsError: it will not.
        """
        try:
            # Before the check, with which a server may begin.
            self._ceiling.start(share, whole)
            self._clients.admit()
        except MpsError:
            self.wake()
            raise

    def desire(self, at: float, pods: GpuPods, held: Held, *, wanted: bool) -> None:
        """Store what is demanded from now on.

        Args:
            at: now.
            pods: that use the GPU.
            held: what their containers have of it.
            wanted: the daemon has to run.
        """
        demand = self._demand.changed(at, pods, held, wanted=wanted)
        if demand == self._demand:
            return
        self._demand = demand
        self.wake()

    def wake(self) -> None:
        """Look at once. May be called from any thread."""
        self._wakeup.wake()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()
        self._wakeup.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look(self._demand)
            except Exception as err:
                # Without this thread, the daemon would not be started again.
                log.exception("Failed to look after MPS")
                self._watch.fail(f"looking after MPS failed: {err!r}")
            self._changed()
            self._wakeup.sleep(self._pause_s(), self._watch.pid)

    def _pause_s(self) -> float:
        pause_s = self._watch.state.pause_s
        until_drain_s = self._clients.pause_s(self._demand.pods)
        return pause_s if until_drain_s is None else min(pause_s, until_drain_s)

    def _look(self, demand: GpuDemand) -> None:
        if demand.wanted:
            self._watch.keep(self._pipe_dirs)
            if self._watch.state.phase is Phase.SERVING:
                # Before the first server of a new daemon begins, if it can be.
                self._ceiling.look(demand.held)
            self._clients.look(demand.pods)
            if self._clients.servers is not None:
                self._ceiling.cover(self._clients.servers)
        else:
            self._watch.release(demand.unneeded_since)
