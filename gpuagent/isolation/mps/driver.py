"""Isolation with NVIDIA MPS: memory and compute limits on any NVIDIA GPU from Volta on.

The driver starts a control daemon for each GPU when a mode needs it, and starts it again when it ends.
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
from gpuagent.host.cuda_probe import CudaProbe
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY, MpsError
from gpuagent.isolation.interface import CannotIsolateError, Isolation, IsolationError, Need, Options, Report, Starting
from gpuagent.isolation.mps.choice import DaemonChoice
from gpuagent.isolation.mps.clients.client_state import DEFAULT_WEDGES, WedgePolicy
from gpuagent.isolation.mps.clients.client_watch import ClientWatch, PodOf
from gpuagent.isolation.mps.clients.unseen_starts import Starts, UnseenStarts, container_starts
from gpuagent.isolation.mps.daemon import NOT_FOUND, MpsDaemon, MpsDaemons
from gpuagent.isolation.mps.daemon_record import NODE, MpsRecord
from gpuagent.isolation.mps.daemon_state import DEFAULT_POLICY, NOT_LOOKED, NOT_WANTED, Demand, MpsPolicy
from gpuagent.isolation.mps.exclusive import ExclusiveModes
from gpuagent.isolation.mps.exclusive_gpus import ExclusiveGpus
from gpuagent.isolation.mps.share import (
    CAVEATS,
    CEILING,
    MAX_SHARERS,
    MEMORY_CAVEATS,
    NO_CEILING,
    NO_PROCESSES,
    NODE_WIDE,
    ONE_DAEMON,
    ONE_USER,
    PIPE_VARIABLE,
    SEVERAL_GPUS,
    UNPROBED,
    left_out,
    share,
    share_of,
    why_not,
)
from gpuagent.isolation.mps.summary import Summary
from gpuagent.isolation.mps.wakeup import Wakeup
from gpuagent.system.process_cgroups import ProcessCgroups, boot_s, sees_every_pid

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
        wedges=WedgePolicy(kill_s=options.mps_wedge_s),
    )


class MpsIsolation:
    """Keeps an MPS control daemon alive for each GPU while it is needed, and gives containers directory and limits.

    Nothing runs before `desire` asks for it. `stop` leaves the daemons to the containers; the next agent finds them.

    Args:
        daemons: of the node.
        exclusive: sets compute modes for daemons of the agent's own; None leaves them alone.
        unit: the node's memory unit.
        shm: a directory to mount at /dev/shm of every container, for drivers that need it shared; None: theirs stays.
        policy: when the driver looks after the daemons, starts them and stops them.
        wedges: when a server is tried, and a daemon that hangs is ended.
        probe: command of the program that tries a server; empty for the agent's own.
        pod_of: UID of the pod of a process; None if the agent does not see the processes of containers.
        starts: reads when the containers of all pods began; None likewise.
        clock: monotonic seconds.
        wall: seconds since 1970.
    """

    name = "mps"

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        daemons: MpsDaemons,
        exclusive: ExclusiveModes | None,
        *,
        unit: MemoryUnit,
        shm: Path | None = None,
        policy: MpsPolicy = DEFAULT_POLICY,
        wedges: WedgePolicy = DEFAULT_WEDGES,
        probe: tuple[str, ...] = (),
        pod_of: PodOf | None = None,
        starts: Starts | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._daemons = daemons
        self._sees_processes = pod_of is not None
        self._choice = DaemonChoice(
            daemons,
            policy,
            clock,
            self._report_change,
            lambda watch: ClientWatch(watch, CudaProbe(probe), pod_of, wedges, clock, wall),
        )
        self._exclusive = ExclusiveGpus(exclusive)
        self._unseen = UnseenStarts(daemons.record, starts)
        self._unit = unit
        self._shm = shm
        self._clock = clock
        self._demand = Demand(Need(), clock())
        # Why MPS works on no GPU, if it is not for the daemons.
        self._general: Summary | None = Summary(NOT_LOOKED, standby=True)
        self._layer: Layer | None = None
        self._report: Report = lambda _: None
        self._reporting = threading.Lock()
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
        wedges: WedgePolicy = DEFAULT_WEDGES,
        shm: Path | None = None,
    ) -> "MpsIsolation":
        """The driver as the agent runs it; its record in `state_dir`, `control` a name or path."""
        record = MpsRecord(state_dir)
        daemons = MpsDaemons(control, record, own=pipe_dir)
        modes = ExclusiveModes(record) if exclusive else None
        policy = MpsPolicy(starts=starts)
        sees = sees_every_pid()
        return cls(
            daemons,
            modes,
            unit=unit,
            shm=shm,
            policy=policy,
            wedges=wedges,
            pod_of=_pod_of if sees else None,
            starts=container_starts if sees else None,
        )

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
        # Threads may wait for a daemon that hangs, and the agent has to end nevertheless.
        until = time.monotonic() + STOP_S
        self._thread.join(STOP_S)
        have_ended = self._choice.stop(until)
        if self._thread.is_alive() or not have_ended:
            log.warning("Left a thread that still waits for MPS")

    def prepare(self, grant: Grant) -> Grant:
        self._check(grant)
        daemon = self._choice.give(grant.gpus[0].uuid)
        return share(grant, unit=self._unit, pipe_dir=daemon.pipe_dir, shm=self._shm)

    def verify(self, grant: Grant, starting: Starting) -> None:
        whose = str(starting.owner) if starting.owner else "the container"
        self._check(grant)
        daemon = self._given_daemon(grant, whose)
        try:
            daemon.control.alive(deadline_s=VERIFY_S)
        except MpsError as err:
            self._wake()
            raise IsolationError(f"{whose} has to wait for MPS: {err}; the agent brings it back") from err
        gpu = grant.gpus[0]
        of_container = starting.shares.get(gpu.uuid) or share_of(grant, self._unit)
        try:
            if daemon.gpu != NODE:
                self._choice.admit(gpu, of_container)
        except MpsError as err:
            raise IsolationError(f"{whose} has to wait: {err}") from err
        if not daemon.is_ours:
            return  # the compute mode is its owner's
        try:
            # Not earlier: until a GPU is allocated under this mode, containers of another mode may compute on it.
            self._exclusive.hold(grant.gpus)
        except MpsError as err:
            self._wake()
            gpus = ", ".join(f"GPU {gpu.index}" for gpu in grant.gpus)
            raise IsolationError(f"{whose} has to wait: {gpus}: {err}") from err

    def _check(self, grant: Grant) -> None:
        """Raise IsolationError if no daemon can serve this share."""
        for gpu in grant.gpus:
            reason = why_not(gpu)
            if reason:
                raise IsolationError(reason)
        if self._daemons.program is None:
            raise IsolationError(NOT_FOUND)
        if len(grant.gpus) > 1 and self._choice.node_wide is None:
            raise CannotIsolateError(SEVERAL_GPUS if grant.kind.is_memory else ONE_DAEMON)

    def _given_daemon(self, grant: Grant, whose: str) -> MpsDaemon:
        """The daemon whose directory the container has."""
        serving = self._choice.serving(grant.gpus[0].uuid)
        given = grant.env.get(PIPE_VARIABLE, str(serving.pipe_dir))
        if given == str(serving.pipe_dir):
            return serving
        # Kubelet keeps the environment for the life of the pod. A container of an earlier release keeps the daemon for
        # all GPUs, as long as that lives.
        former = self._daemons.of_node(self._daemons.own)
        if given == str(former.pipe_dir) and former.is_there():
            return former
        raise IsolationError(f"{whose} was given MPS at {given}, but it is at {serving.pipe_dir} now: delete the pod")

    def _wake(self) -> None:
        """Look after all daemons at once."""
        self._wakeup.wake()
        self._choice.wake()

    def _run(self) -> None:
        self._report_change()
        while not self._stopping.is_set():
            try:
                self._look(self._demand)
            except Exception as err:
                # Without this thread, no daemon would be looked for.
                log.exception("Failed to look after MPS")
                self._general = Summary(f"looking after MPS failed: {err!r}")
            self._report_change()
            self._wakeup.sleep(self._choice.pause_s, self._choice.node_wide_pid)

    def _look(self, demand: Demand) -> None:
        """Look once after the choice of daemons and the compute modes."""
        if self._daemons.program is None:
            self._general = Summary(NOT_FOUND)
            return
        usable = {gpu.uuid for gpu in demand.need.gpus if why_not(gpu) is None}
        self._choice.look(demand, usable)
        if not demand.is_wanted:
            self._general = Summary(NOT_WANTED, standby=True)
        elif not usable:
            self._general = Summary(NO_GPU)
        else:
            self._general = None
        self._exclusive.settle(demand.need)
        if not demand.is_wanted:
            return
        daemons = self._choice.summary(demand.need.gpus, worked=False)
        if daemons.problem is None and demand.need.held.isdisjoint(daemons.left_out):
            self._unseen.look(demand.need, self._choice.serving)
        # After the look: it needs to know until when the former agent was there.
        self._daemons.record.sign_of_life()

    def _report_change(self) -> None:
        """Report the layer if it has changed. May be called from any thread."""
        with self._reporting:
            layer = self._layer_now(self._demand.need)
            if layer == self._layer or self._stopping.is_set():
                return
            self._layer = layer
            self._report(layer)

    def _layer_now(self, need: Need) -> Layer:
        worked = self._layer is not None and self._layer.problem is None
        summary = self._general or self._choice.summary(need.gpus, worked=worked)
        return Layer(
            driver=self.name,
            installed=self._daemons.program is not None,
            isolates=frozenset({Isolates.MEMORY, Isolates.COMPUTE}),
            modes=frozenset({Mode.CGPU, Mode.MPS, Mode.CORE_MEM}),
            problem=summary.problem,
            standby=summary.standby,
            left_out={
                **left_out(need.gpus),
                **summary.left_out,
                **self._exclusive.failed,
                **self._unseen.left_out,
            },
            unlimited=self._unseen.unlimited,
            max_sharers=MAX_SHARERS,
            untrusted=self._daemons.untrusted,
            caveats=tuple(self._caveats()),
            memory_caveats=MEMORY_CAVEATS,
        )

    def _caveats(self) -> list[str]:
        other = CEILING if self._choice.lacks_ceiling else NO_CEILING
        caveats = [caveat for caveat in CAVEATS if caveat != other]
        node_wide = self._choice.node_wide
        if node_wide is not None:
            caveats.append(NODE_WIDE.format(pipe_dir=node_wide.pipe_dir))
        if self._choice.one_user:
            caveats.append(ONE_USER)
        if self._choice.unprobed:
            caveats.append(UNPROBED.format(why=self._choice.unprobed))
        if not self._sees_processes:
            caveats.append(NO_PROCESSES)
        return caveats


def _pod_of(pid: int) -> str | None:
    """UID of the pod of a process."""
    place = ProcessCgroups().of(pid, boot_s())
    return place.pod if place else None
