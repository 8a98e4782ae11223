"""Isolation with NVIDIA MPS: memory and compute limits on any NVIDIA GPU from Volta on.

The driver starts the control daemon when a mode needs it, and starts it again when it ends.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY, MpsError, NoDaemonError, UntrustedError, daemon_pid
from gpuagent.isolation.interface import Isolation, IsolationError, Need, Options, Report
from gpuagent.isolation.mps_daemon import NOT_FOUND, MpsDaemon
from gpuagent.isolation.mps_exclusive import ExclusiveModes
from gpuagent.isolation.mps_record import MpsRecord
from gpuagent.isolation.mps_share import CAVEATS, MAX_SHARERS, ONE_USER, PIPE_VARIABLE, left_out, share, why_not
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

PREFERENCE = 20
STOP_S = 1.0
VERIFY_S = 1.0

NOT_LOOKED = "the MPS control daemon has not been looked for yet"
NOT_WANTED = "the MPS control daemon is not needed: it is started when a mode in force asks for isolation with MPS"
NOT_OURS = (
    "no MPS control daemon answers, and the agent must start none (--mps-start false): run one at {places}; "
    "the chart's DaemonSet mps-control does"
)
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
        starts: start a daemon where none is found; otherwise wait for another program's daemon.
        shm: a directory to mount at /dev/shm of every container, for drivers that need it shared; None: theirs stays.
        every_s: seconds between two round trips to the daemon. The agent detects the daemon's end at once.
        first_retry_s: first pause before a restart; doubles up to `most_retry_s` unless the daemon ran for `steady_s`.
        most_retry_s: the longest such pause.
        steady_s: how long a daemon must run to count as stable.
        owner_s: how long the owner of an adopted daemon has to restart it before the agent starts its own.
        release_s: how long MPS must be unneeded before the agent stops its own daemon.
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
        starts: bool = True,
        every_s: float = 5.0,
        first_retry_s: float = 0.5,
        most_retry_s: float = 30.0,
        steady_s: float = 60.0,
        owner_s: float = 60.0,
        release_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon = daemon
        self._exclusive = exclusive
        self._unit = unit
        self._shm = shm
        self._starts = starts
        self._every_s = every_s
        self._steady_s = steady_s
        self._owner_s = owner_s
        self._release_s = release_s
        self._delays = Backoff(first_retry_s, most_retry_s)
        self._clock = clock
        self._need = Need()
        self._unneeded_since = clock()
        self._known = False  # a daemon answered, and has not failed since
        self._well_since = clock()
        self._not_before = clock()
        self._ended: int | None = None  # PID of a daemon that has ended
        self._stuck: Mapping[str, str] = {}
        self._layer: Layer | None = None
        self._report: Report = lambda _: None
        self._stopping = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
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
        return cls(daemon, ExclusiveModes(record) if exclusive else None, unit=unit, shm=shm, starts=starts)

    def start(self, report: Report) -> None:
        self._report = report
        self._thread.start()

    def desire(self, need: Need) -> None:
        if need != self._need:
            if not _wanted(need) and _wanted(self._need):
                self._unneeded_since = self._clock()
            self._need = need
            self._ring()

    def stop(self) -> None:
        self._stopping.set()
        self._ring()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                log.warning("Left a thread that still waits for MPS")

    def prepare(self, grant: Grant) -> Grant:
        return share(grant, unit=self._unit, pipe_dir=self._here(grant).pipe_dir, shm=self._shm)

    def verify(self, grant: Grant, owner: ContainerRef | None) -> None:
        whose = str(owner) if owner else "the container"
        daemon = self._here(grant)
        pipe_dir = str(daemon.pipe_dir)
        given = grant.env.get(PIPE_VARIABLE, pipe_dir)
        if given != pipe_dir:
            raise IsolationError(f"{whose} was given MPS at {given}, but it is at {pipe_dir} now: delete the pod")
        try:
            daemon.control.alive(deadline_s=VERIFY_S)
        except MpsError as err:
            self._ring()
            raise IsolationError(f"{whose} has to wait for MPS: {err}; the agent brings it back") from err
        if self._exclusive and daemon.is_ours:
            try:
                # Not earlier: until a GPU is allocated under this mode, containers of another mode may compute on it.
                self._exclusive.hold(gpu.uuid for gpu in grant.gpus)
            except MpsError as err:
                problem = f"it cannot be made exclusive to MPS: {err}"
                self._stuck = {**self._stuck, **dict.fromkeys((gpu.uuid for gpu in grant.gpus), problem)}
                self._ring()
                gpus = ", ".join(f"GPU {gpu.index}" for gpu in grant.gpus)
                raise IsolationError(f"{whose} has to wait: {gpus}: {problem}") from err
            held = {gpu.uuid for gpu in grant.gpus}
            self._stuck = {uuid: why for uuid, why in self._stuck.items() if uuid not in held}

    def _here(self, grant: Grant) -> MpsDaemon:
        """The daemon, if there can be one for this share."""
        reason = next((reason for gpu in grant.gpus if (reason := why_not(gpu))), None)
        if reason:
            raise IsolationError(reason)
        if self._daemon.program is None:
            raise IsolationError(NOT_FOUND)
        return self._daemon

    def _run(self) -> None:
        self._report_change(self._need, NOT_LOOKED)
        while not self._stopping.is_set():
            need = self._need
            pause_s = self._every_s
            problem: str | None = NOT_FOUND
            try:
                if self._daemon.program is not None:
                    problem, pause_s = self._look(self._daemon, need)
            except Exception as err:
                log.exception("Failed to look after MPS")
                problem = f"looking after MPS failed: {err!r}"
            self._report_change(need, problem)
            self._wait(pause_s)

    def _look(self, daemon: MpsDaemon, need: Need) -> tuple[str | None, float]:
        """One turn: returns the present problem, if any, and the seconds until the next turn."""
        problem, pause_s = self._keep(daemon, need) if _wanted(need) else self._release(daemon)
        if self._exclusive:
            self._set_modes(self._exclusive, need)
        return problem, pause_s

    def _set_modes(self, exclusive: ExclusiveModes, need: Need) -> None:
        """Retry the GPUs that could not be made exclusive; restore the mode of GPUs that no container of MPS holds."""
        if need.serves:
            for uuid in self._stuck:
                with suppress(MpsError):
                    exclusive.hold((uuid,))
                    self._stuck = {other: why for other, why in self._stuck.items() if other != uuid}
            return
        self._stuck = {}
        if need.in_use and not need.held:
            return  # the agent has not read kubelet's allocations yet
        try:
            exclusive.give_back(keep=need.held)
        except MpsError as err:
            log.warning("Kept compute modes for now", extra={"error": str(err)})

    def _keep(self, daemon: MpsDaemon, need: Need) -> tuple[str | None, float]:
        """Find or start a daemon that answers."""
        able = tuple(gpu.uuid for gpu in need.gpus if why_not(gpu) is None)
        if not able:
            return NO_GPU, self._every_s
        try:
            self._known = self._known or daemon.find()
            if not self._known and not self._starts:
                return NOT_OURS.format(places=" or ".join(map(str, daemon.places))), self._every_s
            if not self._known:
                return self._start(daemon, () if len(able) == len(need.gpus) else able)
            daemon.control.alive()
        except NoDaemonError as err:
            return self._lost(daemon, str(err) if isinstance(err, UntrustedError) else f"{err}: it died")
        except MpsError as err:
            # The daemon is not killed: containers still compute, and it may answer again.
            self._well_since = self._clock()
            pid = daemon_pid(daemon.pipe_dir)
            return f"{err}; if this stays, look at its log and end process {pid or 'of the daemon'}", self._every_s
        if self._clock() - self._well_since >= self._steady_s:
            self._delays.reset()
        return None, self._every_s

    def _lost(self, daemon: MpsDaemon, reason: str) -> tuple[str | None, float]:
        """Report the daemon's end, look for another daemon in the next turns, and start one after a pause."""
        log.error("Lost the MPS control daemon", extra={"reason": reason, "started_here": daemon.is_ours})
        self._known = False
        delay_s = self._delays.next_s()
        if not self._starts:
            return f"{reason}; who runs it has to bring it back", min(delay_s, self._every_s)
        if daemon.in_own_place:
            self._not_before = self._clock() + delay_s
            then = "it is started again"
        else:
            self._not_before = self._clock() + self._owner_s
            then = f"its owner has {self._owner_s:g} s to bring it back, then the agent starts its own"
        return f"{reason}; {then}", min(delay_s, self._every_s)

    def _start(self, daemon: MpsDaemon, visible: tuple[str, ...]) -> tuple[str | None, float]:
        early_s = self._not_before - self._clock()
        if early_s > 0:
            problem = self._layer.problem if self._layer else None
            return problem or "the MPS control daemon is about to be started", min(early_s, self._every_s)
        try:
            daemon.start(visible)
        except MpsError as err:
            delay_s = self._delays.next_s()
            self._not_before = self._clock() + delay_s
            log.warning("Failed to start MPS", extra={"reason": str(err)})
            return f"MPS cannot be started: {err}", min(delay_s, self._every_s)
        self._known = True
        self._well_since = self._clock()
        return None, self._every_s

    def _release(self, daemon: MpsDaemon) -> tuple[str | None, float]:
        """Stop the agent's own daemon, as no container needs MPS: after `release_s`, and only without clients."""
        early_s = self._unneeded_since + self._release_s - self._clock()
        if early_s > 0:
            return NOT_WANTED, min(early_s, self._every_s)
        try:
            self._known = daemon.started_one and not daemon.quit()
        except MpsError as err:
            log.warning("Failed to end the MPS control daemon", extra={"error": str(err)})
        return NOT_WANTED, self._every_s

    def _report_change(self, need: Need, problem: str | None) -> None:
        layer = Layer(
            driver=self.name,
            installed=self._daemon.program is not None,
            isolates=frozenset({Isolates.MEMORY, Isolates.COMPUTE}),
            modes=frozenset({Mode.CGPU, Mode.MPS, Mode.CORE_MEM}),
            problem=problem,
            standby=problem in {NOT_WANTED, NOT_LOOKED},
            left_out={**left_out(need.gpus), **self._stuck},
            max_sharers=MAX_SHARERS,
            untrusted=self._daemon.untrusted,
            caveats=(*CAVEATS, ONE_USER) if self._daemon.one_user else CAVEATS,
        )
        if layer != self._layer and not self._stopping.is_set():
            self._layer = layer
            self._report(layer)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # the bell has rung already
            os.eventfd_write(self._bell, 1)

    def _wait(self, pause_s: float) -> None:
        """Wait until the bell rings, the daemon ends, or the time is over."""
        bells = select.poll()
        bells.register(self._bell, select.POLLIN)
        pid = daemon_pid(self._daemon.pipe_dir) if self._known else None
        life = None
        if pid is not None and pid != self._ended:  # an old PID file would end every wait at once
            with suppress(OSError):  # it has ended, or the kernel is before 5.3: the next round trip shows which
                life = os.pidfd_open(pid)
                bells.register(life, select.POLLIN)
        try:
            rung = bells.poll(pause_s * 1000)
            if any(bell == life for bell, _ in rung):
                self._ended = pid
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        finally:
            if life is not None:
                os.close(life)


def _wanted(need: Need) -> bool:
    return need.serves or need.in_use
