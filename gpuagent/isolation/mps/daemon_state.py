"""What the mps driver knows of its control daemon, as values, and what each event makes of them.

`MpsIsolation` owns the process, the thread and the clock, and puts the next value in the place of the former one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from gpuagent.isolation.interface import Need

NOT_LOOKED = "the MPS control daemon has not been looked for yet"
NOT_WANTED = "the MPS control daemon is not needed: it is started when a mode in force asks for isolation with MPS"
NOT_OURS = (
    "no MPS control daemon answers, and the agent must start none (--mps-start false): run one at {pipe_dirs}; "
    "the chart's DaemonSet mps-control does"
)
STARTS_SOON = "the MPS control daemon is about to be started"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPolicy:
    """When the driver looks after the daemon, starts it and stops it.

    Attributes:
        starts: start a daemon where none is found; otherwise wait for another program's daemon.
        every_s: seconds between two round trips to the daemon. The agent detects the daemon's end at once.
        first_retry_s: first pause before a restart; doubles up to `most_retry_s` unless the daemon ran for `steady_s`.
        most_retry_s: the longest such pause.
        steady_s: how long a daemon must run to count as stable.
        owner_s: how long the owner of an adopted daemon has to restart it before the agent starts its own.
        release_s: how long MPS must be unneeded before the agent stops its own daemon.
    """

    starts: bool = True
    every_s: float = 5.0
    first_retry_s: float = 0.5
    most_retry_s: float = 30.0
    steady_s: float = 60.0
    owner_s: float = 60.0
    release_s: float = 30.0


DEFAULT_POLICY = MpsPolicy()


@dataclass(frozen=True, slots=True)
class Demand:
    """The node's need for MPS.

    Attributes:
        need: the latest one.
        unneeded_since: when MPS was last needed; has no meaning while it is needed.
        unused_since: when containers last held a GPU under MPS; has no meaning while they do.
    """

    need: Need
    unneeded_since: float
    unused_since: float = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether a daemon has to run."""
        return self.need.serves or self.need.in_use

    def changed(self, need: Need, at: float) -> "Demand":
        """The demand after a new need."""
        later = replace(self, need=need)
        if self.is_wanted and not later.is_wanted:
            later = replace(later, unneeded_since=at)
        if self.need.in_use and not need.in_use:
            later = replace(later, unused_since=at)
        return later


class Phase(Enum):
    """What the driver saw of the daemon when it last looked."""

    NOT_LOOKED = "not looked"
    """The driver has just begun."""
    NOT_NEEDED = "not needed"
    """No mode in force needs a daemon, and no container has MPS."""
    UNABLE = "unable"
    """The node lacks something that MPS needs, or the driver failed."""
    MISSING = "missing"
    """No daemon answers, and another program has to start it."""
    LOST = "lost"
    """The daemon has ended. It comes back by itself, or the agent starts one after a pause."""
    NOT_STARTED = "not started"
    """The last start failed. The next one comes after a pause."""
    SILENT = "silent"
    """The daemon runs, and did not answer."""
    SERVING = "serving"
    """The daemon answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsState:
    """What is known of the daemon at one moment. Each method returns the state after an event.

    Attributes:
        phase: what the driver saw last.
        problem: why MPS does not work now, and what to do; None while it works.
        pause_s: seconds until the driver should look again.
        has_daemon: a daemon has answered once, and has not ended since.
        steady_since: since when the daemon has answered each time.
        start_after: the earliest time of the next start.
    """

    phase: Phase = Phase.NOT_LOOKED
    problem: str | None = NOT_LOOKED
    pause_s: float = 0.0
    has_daemon: bool = False
    steady_since: float
    start_after: float

    @classmethod
    def begun(cls, at: float) -> "MpsState":
        """The state before the first look."""
        return cls(steady_since=at, start_after=at)

    @property
    def on_standby(self) -> bool:
        """Whether `problem` only says that no daemon is needed, or that none was looked for yet."""
        return self.phase in {Phase.NOT_LOOKED, Phase.NOT_NEEDED}

    def is_steady(self, at: float, policy: MpsPolicy) -> bool:
        """Whether the daemon counts as stable, so that the pause before its next restart is a short one."""
        return at - self.steady_since >= policy.steady_s

    def start_in_s(self, at: float) -> float:
        """Seconds until a daemon may be started; 0 or less: now."""
        return self.start_after - at

    def unable(self, problem: str, policy: MpsPolicy) -> "MpsState":
        """MPS cannot work here for now. What is known of the daemon stays known."""
        return replace(self, phase=Phase.UNABLE, problem=problem, pause_s=policy.every_s)

    def with_daemon(self) -> "MpsState":
        """There is a daemon; whether it answers now is asked next."""
        return replace(self, has_daemon=True)

    def missing(self, pipe_dirs: Iterable[Path], policy: MpsPolicy) -> "MpsState":
        """There is no daemon, and the agent must not start one."""
        problem = NOT_OURS.format(pipe_dirs=" or ".join(map(str, pipe_dirs)))
        return replace(self, phase=Phase.MISSING, problem=problem, pause_s=policy.every_s)

    def start_awaited(self, at: float, policy: MpsPolicy) -> "MpsState":
        """The time of the next start has not come. What is reported of the daemon's end stays reported until then."""
        pause_s = min(self.start_in_s(at), policy.every_s)
        return replace(self, problem=self.problem or STARTS_SOON, pause_s=pause_s)

    def started(self, at: float, policy: MpsPolicy) -> "MpsState":
        """The agent has started a daemon, and it answers."""
        return replace(self.with_daemon(), steady_since=at).serving(policy)

    def start_failed(self, reason: str, at: float, delay_s: float, policy: MpsPolicy) -> "MpsState":
        """A start failed; the next one comes after `delay_s`."""
        return replace(
            self,
            phase=Phase.NOT_STARTED,
            problem=f"MPS cannot be started: {reason}",
            pause_s=min(delay_s, policy.every_s),
            start_after=at + delay_s,
        )

    def serving(self, policy: MpsPolicy) -> "MpsState":
        """The daemon has answered."""
        return replace(self, phase=Phase.SERVING, problem=None, pause_s=policy.every_s)

    def silent(self, reason: str, pid: int | None, at: float, policy: MpsPolicy) -> "MpsState":
        """The daemon runs, and does not answer. It is not killed: containers still compute, and it may answer again."""
        process = pid or "of the daemon"
        return replace(
            self,
            phase=Phase.SILENT,
            problem=f"{reason}; if this stays, look at its log and end process {process}",
            pause_s=policy.every_s,
            steady_since=at,
        )

    def lost(self, reason: str, at: float, delay_s: float, policy: MpsPolicy, *, adopted: bool) -> "MpsState":
        """The daemon has ended.

        Args:
            reason: how that was seen.
            at: now.
            delay_s: the pause before a restart.
            policy: of the driver.
            adopted: another program had started it, and may start it again.
        """
        start_after = self.start_after
        if not policy.starts:
            outlook = "who runs it has to bring it back"
        elif adopted:
            # A second daemon would come in the way of the one that its owner starts again.
            start_after = at + policy.owner_s
            outlook = f"its owner has {policy.owner_s:g} s to bring it back, then the agent starts its own"
        else:
            start_after = at + delay_s
            outlook = "it is started again"
        return replace(
            self,
            phase=Phase.LOST,
            problem=f"{reason}; {outlook}",
            pause_s=min(delay_s, policy.every_s),
            has_daemon=False,
            start_after=start_after,
        )

    def not_needed(self, pause_s: float, policy: MpsPolicy) -> "MpsState":
        """No container needs MPS."""
        return replace(self, phase=Phase.NOT_NEEDED, problem=NOT_WANTED, pause_s=min(pause_s, policy.every_s))

    def released(self, *, runs: bool) -> "MpsState":
        """The agent has tried to stop its daemon.

        Args:
            runs: clients still use it. Another program's daemon is left alone, and counts as not found.
        """
        return replace(self, has_daemon=runs)
