"""Isolation with NVIDIA MPS: memory and compute limits on any NVIDIA GPU from Volta on.

The driver starts the control daemon when a mode needs it, and starts it again when it ends.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY, MpsError, NoDaemonError, UntrustedError, daemon_pid
from gpuagent.isolation.interface import Isolation, IsolationError, Need, Options, Report, Starting
from gpuagent.isolation.mps_daemon import NOT_FOUND, MpsDaemon
from gpuagent.isolation.mps_exclusive import ExclusiveModes
from gpuagent.isolation.mps_gpus import ExclusiveGpus
from gpuagent.isolation.mps_record import MpsRecord
from gpuagent.isolation.mps_share import CAVEATS, MAX_SHARERS, ONE_USER, PIPE_VARIABLE, left_out, share, why_not
from gpuagent.isolation.mps_state import DEFAULT_POLICY, Demand, MpsPolicy, MpsState
from gpuagent.isolation.mps_wakeup import Wakeup
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

PREFERENCE = 20
STOP_S = 1.0
VERIFY_S = 1.0

NO_GPU = "none of the node's GPUs can be shared through MPS"


def make(options: Options) -> Isolation:
    """The driver."""
    return MpsIsolation.on_host(
        options.state_dir,
        unit=options.unit,
        control=options.mps_control,
        pipe_dir=options.mps_pipe_dir,
        starts=options.mps_start,
        exclusive=options.mps_exclusive,
    )


class MpsIsolation:
    """Keeps one MPS control daemon alive while it is needed, and gives containers its directory and their limits.

    Nothing runs before `desire` asks for it. `stop` leaves the daemon to the containers; the next agent finds it.

    Args:
        daemon: finds, starts and stops the control daemon.
        exclusive: sets compute modes for a daemon of the agent's own; None leaves them alone.
        unit: the node's memory unit.
        shm: a directory to mount at /dev/shm of every container, for drivers that need it shared; None: theirs stays.
        policy: when the driver looks after the daemon, starts it and stops it.
        clock: monotonic seconds.
    """

    name = "mps"

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        daemon: MpsDaemon,
        exclusive: ExclusiveModes | None,
        *,
        unit: MemoryUnit,
        shm: Path | None = None,
        policy: MpsPolicy = DEFAULT_POLICY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon = daemon
        self._exclusive = ExclusiveGpus(exclusive)
        self._unit = unit
        self._shm = shm
        self._policy = policy
        self._delays = Backoff(policy.first_retry_s, policy.most_retry_s)
        self._clock = clock
        self._demand = Demand(Need(), clock())
        self._state = MpsState.begun(clock())
        self._layer: Layer | None = None
        self._report: Report = lambda _: None
        self._stopping = threading.Event()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="isolation-mps", daemon=True)

    @classmethod
    def on_host(  # noqa: PLR0913 (all by name)
        cls,
        state_dir: Path,
        *,
        unit: MemoryUnit,
        control: str = CONTROL,
        pipe_dir: Path = OWN_DIRECTORY,
        starts: bool = True,
        exclusive: bool = True,
        shm: Path | None = None,
    ) -> "MpsIsolation":
        """The driver as the agent runs it; its record in `state_dir`, `control` a name or path."""
        record = MpsRecord(state_dir)
        daemon = MpsDaemon(control, record, own=pipe_dir)
        modes = ExclusiveModes(record) if exclusive else None
        return cls(daemon, modes, unit=unit, shm=shm, policy=MpsPolicy(starts=starts))

    def start(self, report: Report) -> None:
        self._report = report
        self._thread.start()

    def desire(self, need: Need) -> None:
        if need == self._demand.need:
            return
        self._demand = self._demand.changed(need, self._clock())
        self._wakeup.wake()

    def stop(self) -> None:
        self._stopping.set()
        self._wakeup.wake()
        if self._thread.ident is None:
            return  # it was never started
        # The thread may wait for a daemon that hangs, and the agent has to end nevertheless.
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            log.warning("Left a thread that still waits for MPS")

    def prepare(self, grant: Grant) -> Grant:
        daemon = self._daemon_for(grant)
        return share(grant, unit=self._unit, pipe_dir=daemon.pipe_dir, shm=self._shm)

    def verify(self, grant: Grant, starting: Starting) -> None:
        whose = str(starting.owner) if starting.owner else "the container"
        daemon = self._daemon_for(grant)
        pipe_dir = str(daemon.pipe_dir)
        given = grant.env.get(PIPE_VARIABLE, pipe_dir)
        if given != pipe_dir:
            # Kubelet keeps the environment for the life of the pod, so the container would look for no daemon.
            raise IsolationError(f"{whose} was given MPS at {given}, but it is at {pipe_dir} now: delete the pod")
        try:
            daemon.control.alive(deadline_s=VERIFY_S)
        except MpsError as err:
            self._wakeup.wake()
            raise IsolationError(f"{whose} has to wait for MPS: {err}; the agent brings it back") from err
        if not daemon.is_ours:
            return  # the compute mode is its owner's
        try:
            # Not earlier: until a GPU is allocated under this mode, containers of another mode may compute on it.
            self._exclusive.hold(grant.gpus)
        except MpsError as err:
            self._wakeup.wake()
            gpus = ", ".join(f"GPU {gpu.index}" for gpu in grant.gpus)
            raise IsolationError(f"{whose} has to wait: {gpus}: {err}") from err

    def _daemon_for(self, grant: Grant) -> MpsDaemon:
        """The daemon, if there can be one for this share."""
        for gpu in grant.gpus:
            reason = why_not(gpu)
            if reason:
                raise IsolationError(reason)
        if self._daemon.program is None:
            raise IsolationError(NOT_FOUND)
        return self._daemon

    def _run(self) -> None:
        self._report_change(self._demand.need)
        while not self._stopping.is_set():
            demand = self._demand
            pid = None
            try:
                self._look(demand)
                pid = daemon_pid(self._daemon.pipe_dir) if self._state.is_found else None
            except Exception as err:
                # Without this thread, the daemon would not be started again.
                log.exception("Failed to look after MPS")
                self._state = self._state.unable(f"looking after MPS failed: {err!r}", self._policy)
            self._report_change(demand.need)
            self._wakeup.sleep(self._state.pause_s, pid)

    def _look(self, demand: Demand) -> None:
        """Look once after the daemon and the compute modes."""
        if self._daemon.program is None:
            self._state = self._state.unable(NOT_FOUND, self._policy)
            return
        if demand.is_wanted:
            self._keep(demand.need)
        else:
            self._release(demand)
        self._exclusive.settle(demand.need)

    def _keep(self, need: Need) -> None:
        """Find or start a daemon that answers."""
        usable = [gpu.uuid for gpu in need.gpus if why_not(gpu) is None]
        if not usable:
            self._state = self._state.unable(NO_GPU, self._policy)
            return
        if not self._state.is_found and self._daemon.find():
            self._state = self._state.found()
        if self._state.is_found:
            self._ask()
        elif self._policy.starts:
            # The server does not start on a GPU that cannot do MPS, so the daemon must not see one.
            can_use_all = len(usable) == len(need.gpus)
            self._start(() if can_use_all else tuple(usable))
        else:
            self._state = self._state.missing(self._daemon.pipe_dirs, self._policy)

    def _ask(self) -> None:
        """Make a round trip to the daemon."""
        try:
            self._daemon.control.alive()
        except NoDaemonError as err:
            is_untrusted = isinstance(err, UntrustedError)
            self._lose(str(err) if is_untrusted else f"{err}: it died")
        except MpsError as err:
            pid = daemon_pid(self._daemon.pipe_dir)
            self._state = self._state.silent(str(err), pid, self._clock(), self._policy)
        else:
            if self._state.is_steady(self._clock(), self._policy):
                self._delays.reset()
            self._state = self._state.serving(self._policy)

    def _lose(self, reason: str) -> None:
        """Report the daemon's end. The next turns look for another daemon, and start one after a pause."""
        log.error("Lost the MPS control daemon", extra={"reason": reason, "started_here": self._daemon.is_ours})
        delay_s = self._delays.next_s()
        is_adopted = not self._daemon.in_own_directory
        self._state = self._state.lost(reason, self._clock(), delay_s, self._policy, adopted=is_adopted)

    def _start(self, visible: tuple[str, ...]) -> None:
        """Start a daemon that sees these GPUs (UUIDs; none: all), if its time has come."""
        if self._state.start_in_s(self._clock()) > 0:
            self._state = self._state.start_awaited(self._clock(), self._policy)
            return
        try:
            self._daemon.start(visible)
        except MpsError as err:
            delay_s = self._delays.next_s()
            self._state = self._state.start_failed(str(err), self._clock(), delay_s, self._policy)
            log.warning("Failed to start MPS", extra={"reason": str(err)})
            return
        self._state = self._state.started(self._clock(), self._policy)

    def _release(self, demand: Demand) -> None:
        """Stop the agent's own daemon, as no container needs MPS: after `release_s`, and only without clients."""
        early_s = demand.unneeded_since + self._policy.release_s - self._clock()
        if early_s > 0:
            self._state = self._state.not_needed(early_s, self._policy)
            return
        self._state = self._state.not_needed(self._policy.every_s, self._policy)
        try:
            runs = self._daemon.started_one and not self._daemon.quit()
        except MpsError as err:
            log.warning("Failed to end the MPS control daemon", extra={"error": str(err)})
            return
        self._state = self._state.released(runs=runs)

    def _report_change(self, need: Need) -> None:
        """Report the layer if it has changed."""
        layer = self._layer_now(need)
        if layer == self._layer or self._stopping.is_set():
            return
        self._layer = layer
        self._report(layer)

    def _layer_now(self, need: Need) -> Layer:
        return Layer(
            driver=self.name,
            installed=self._daemon.program is not None,
            isolates=frozenset({Isolates.MEMORY, Isolates.COMPUTE}),
            modes=frozenset({Mode.CGPU, Mode.MPS, Mode.CORE_MEM}),
            problem=self._state.problem,
            standby=self._state.on_standby,
            left_out={**left_out(need.gpus), **self._exclusive.failed},
            max_sharers=MAX_SHARERS,
            untrusted=self._daemon.untrusted,
            caveats=(*CAVEATS, ONE_USER) if self._daemon.one_user else CAVEATS,
        )
