"""The thread that looks after the control daemon of one GPU: a daemon that hangs delays no other GPU."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.isolation.mps_state import MpsState
from gpuagent.isolation.mps_wakeup import Wakeup
from gpuagent.isolation.mps_watch import DaemonWatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """What is asked of the daemon of one GPU.

    Attributes:
        wanted: it has to run.
        unneeded_since: since when it need not run; has no meaning while it is wanted.
    """

    wanted: bool
    unneeded_since: float

    def changed(self, at: float, *, wanted: bool) -> "GpuDemand":
        """The demand from now on."""
        if self.wanted and not wanted:
            return replace(self, wanted=False, unneeded_since=at)
        return replace(self, wanted=wanted)


class GpuKeeper:
    """Keeps the control daemon of one GPU as it is demanded.

    Args:
        watch: of the daemon.
        pipe_dirs: where another program may run one, for people.
        demand: the first demand.
        changed: called after each look.
    """

    def __init__(
        self, watch: DaemonWatch, pipe_dirs: Iterable[Path], demand: GpuDemand, changed: Callable[[], None]
    ) -> None:
        self._watch = watch
        self._pipe_dirs = tuple(pipe_dirs)
        self._demand = demand
        self._changed = changed
        self._stopping = threading.Event()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="isolation-mps-gpu", daemon=True)
        self._thread.start()

    @property
    def state(self) -> MpsState:
        """What is known of the daemon."""
        return self._watch.state

    @property
    def one_user(self) -> bool:
        """Whether the daemon serves one user at a time."""
        return self._watch.daemon.one_user

    def desire(self, at: float, *, wanted: bool) -> None:
        """Store whether the daemon has to run from now on."""
        demand = self._demand.changed(at, wanted=wanted)
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
            self._wakeup.sleep(self.state.pause_s, self._watch.pid)

    def _look(self, demand: GpuDemand) -> None:
        if demand.wanted:
            self._watch.keep(self._pipe_dirs)
        else:
            self._watch.release(demand.unneeded_since)
