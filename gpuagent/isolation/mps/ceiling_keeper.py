"""Has the servers of one GPU's daemon limit every program to the largest share of a container there."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuagent.domain.sharing.gpu_share import NO_SHARE, GpuShare
from gpuagent.host.mps_client import MpsError, ServerLimit, daemon_mark
from gpuagent.isolation.mps.ceiling import Held, LimitInForce, RecentStarts, ceiling
from gpuagent.isolation.mps.daemon import MpsDaemon

log = logging.getLogger(__name__)

START_S = 1.0
"""How long an answer of the daemon may take before a container starts."""

_SLACK = {ServerLimit.MEMORY: 1023, ServerLimit.PERCENTAGE: 1}
"""A daemon may show whole GiB, and whole percent."""
_AMOUNTS = {ServerLimit.MEMORY: "MiB of the GPU's memory", ServerLimit.PERCENTAGE: "percent of its compute"}


class CeilingKeeper:
    """The ceiling of one GPU. May be used from any thread.

    Each command runs a program. So what was set is noted, and a start with an unchanged ceiling costs none.

    Args:
        daemon: of the GPU.
        clock: monotonic seconds.
    """

    def __init__(self, daemon: MpsDaemon, clock: Callable[[], float]) -> None:
        self._daemon = daemon
        self._clock = clock
        self._held = Held()
        self._starts = RecentStarts()
        # What tells the daemon that has the limits below from one that was started since.
        self._mark: tuple[int, int] | None = None
        self._limits: dict[ServerLimit, LimitInForce] = {}
        self._changing = threading.Lock()

    @property
    def is_missing(self) -> bool:
        """Whether the daemon has no ceiling although it was asked for one."""
        return any(limit.is_missing for limit in list(self._limits.values()))

    def start(self, share: GpuShare, whole: GpuShare) -> None:
        """Before a container starts: programs of the GPU may have as much as its share.

        Args:
            share: of the container.
            whole: all of the GPU.

        Raises:
            MpsError: the daemon does not let them, or does not answer.
        """
        try:
            with self._alone(START_S):
                self._starts = self._starts.started(share, self._clock())
                self._follow(Held(whole, self._held.largest), START_S)
                limits = self._limits.copy()
        except MpsError as err:
            raise MpsError(f"MPS did not set a limit for all programs of the GPU: {err}") from err
        self._check(ServerLimit.MEMORY, limits[ServerLimit.MEMORY], share.memory_mib)
        self._check(ServerLimit.PERCENTAGE, limits[ServerLimit.PERCENTAGE], share.percent)

    def look(self, held: Held) -> None:
        """Follow what containers have, as far as the daemon does. It may be another daemon than before."""
        if held.whole == NO_SHARE:
            return  # the GPU is not known yet
        try:
            with self._alone():
                self._held = held
                self._follow(held)
        except MpsError as err:
            log.debug("Failed to set the ceiling of MPS", extra={"error": str(err)})

    def cover(self, servers: tuple[int, ...]) -> None:
        """Set the ceiling for those of the daemon's servers that have begun since."""
        try:
            with self._alone():
                for limit in self._limits:
                    self._set_servers(limit, servers)
        except MpsError as err:
            log.debug("Failed to set the ceiling of an MPS server", extra={"error": str(err)})

    def _follow(self, held: Held, deadline_s: float | None = None) -> None:
        mark = daemon_mark(self._daemon.pipe_dir)
        if mark is None or mark != self._mark:
            self._read(held.whole, deadline_s)
            self._mark = mark
        in_force = GpuShare(
            self._limits[ServerLimit.MEMORY].highest,
            self._limits[ServerLimit.PERCENTAGE].highest,
        )
        wanted = ceiling(held, self._starts.at(self._clock()), in_force)
        self._set(ServerLimit.MEMORY, wanted.memory_mib, deadline_s)
        self._set(ServerLimit.PERCENTAGE, wanted.percent, deadline_s)

    def _read(self, whole: GpuShare, deadline_s: float | None) -> None:
        """Read what the daemon has from before, as from an agent before this one."""
        all_of_gpu = {ServerLimit.MEMORY: whole.memory_mib, ServerLimit.PERCENTAGE: whole.percent}
        limits = {}
        for limit, amount in all_of_gpu.items():
            default = self._daemon.control.limit(limit, deadline_s=deadline_s)
            limits[limit] = LimitInForce(amount, _SLACK[limit], amount if default is None else default)
        self._limits = limits

    def _set(self, limit: ServerLimit, wanted: int, deadline_s: float | None) -> None:
        if not self._limits[limit].needs(wanted):
            return
        control = self._daemon.control
        # First for servers to come: one that begins now is either in the list below, or takes this.
        control.set_limit(limit, wanted, deadline_s=deadline_s)
        default = control.limit(limit, deadline_s=deadline_s)
        self._limits[limit] = self._limits[limit].asked_for(wanted, default)
        self._set_servers(limit, control.servers(deadline_s=deadline_s), deadline_s)

    def _set_servers(self, limit: ServerLimit, servers: tuple[int, ...], deadline_s: float | None = None) -> None:
        """Set a limit for those servers that do not have it yet."""
        in_force = self._limits[limit].without_ended(servers)
        wanted = in_force.asked
        if wanted is None or in_force.is_missing:
            return
        control = self._daemon.control
        for server in servers:
            if server in in_force.servers:
                continue
            control.set_limit(limit, wanted, server, deadline_s=deadline_s)
            amount = control.limit(limit, server, deadline_s=deadline_s)
            # One without an answer has ended. If not, the next look asks it again.
            if amount is not None:
                in_force = in_force.with_server(server, amount)
        self._limits[limit] = in_force

    def _check(self, limit: ServerLimit, in_force: LimitInForce, amount: int) -> None:
        """Raise MpsError if programs get less than that."""
        if in_force.is_below(amount):
            raise MpsError(
                f"MPS lets a program have {in_force.lowest} {_AMOUNTS[limit]} and does not raise that to {amount}: "
                f"if this stays, end the daemon at {self._daemon.pipe_dir}, so that another is started"
            )

    @contextmanager
    def _alone(self, timeout_s: float = -1) -> Iterator[None]:
        """Keep other threads out. Raises MpsError: one of them waits for the daemon for longer than `timeout_s`."""
        if not self._changing.acquire(timeout=timeout_s):
            raise MpsError(f"the MPS control daemon at {self._daemon.pipe_dir} is slow")
        try:
            yield
        except MpsError:
            # What the daemon has now is not known: it is read again.
            self._mark = None
            raise
        finally:
            self._changing.release()
