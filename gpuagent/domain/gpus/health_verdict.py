"""The health of one GPU: its faults, and when it is healthy again.

A fault makes a GPU unhealthy at once. The GPU recovers only after a settle time without faults. If it becomes unhealthy
again soon after it recovered, the settle time doubles.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes on a healthy GPU (NVIDIA's Xid catalog)."""
PASSING_XIDS = frozenset({32, 63, 69, 92, 94, 121})
"""XIDs after which the GPU continues without a reset, by that catalog: contained or corrected memory errors, and engine
errors that end with the program. The agent assumes that all other XIDs need a reset."""
RELAPSE_S = 3600.0
"""A GPU that becomes unhealthy within this time after it recovered has relapsed."""
LEAST_RELAPSE_S = 0.5
MOST_SETTLE_S = 1800.0
FIRST_ANSWER_S = 3.0
"""How long a new GPU is shown unhealthy while it does not report its health."""
MOST_REPORTED = 4
"""Maximum number of different XIDs to report for one unhealthy period."""
NOTE_S = 600.0
"""A passing note ends when it has not recurred for this time."""
ACTION = "its recovery action"
REST = "its memory errors and why its clocks are slow"
"""The two parts of a health reading that a driver may fail to report, in words."""

_HARMLESS_ACTIONS = {None, 0, 5}
"""No recovery action reported, none needed, and one about the IMEX domain, which does not concern this GPU."""
_ADVICE = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end the work of this GPU and of those that it exchanges data with",
    4: "end the GPU's work and reset it",
    6: "reset the GPU's bus",
    7: "reboot the whole system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """The driver's report on a GPU that answers.

    Attributes:
        action: number of the requested recovery action; None for drivers before r570, which do not support it.
        remap_failed: the GPU could not replace a broken row of memory.
        remap_pending: the next reset replaces rows or pages of memory.
        memory_errors: number of uncorrectable memory errors since the last reset.
        hot: the hardware slows the GPU down because of its temperature.
        power_brake: an outside cause, such as the power supply, slows the GPU down.
        silent_on: parts of `ACTION` and `REST` that the driver supports, but did not report when queried.
        partial: the driver has not answered `REST` for this GPU yet. This alone is no change.
        mig: whether MIG mode is enabled; None if the driver did not say. It is no matter of health, so it is no change
            either: the GPUs are read again when it differs.
        memory_mib: the size of the GPU's memory; None if the driver did not say. It is no change either, as for `mig`.
    """

    action: int | None = None
    remap_failed: bool = False
    remap_pending: bool = False
    memory_errors: int = 0
    hot: bool = False
    power_brake: bool = False
    silent_on: frozenset[str] = frozenset()
    partial: bool = field(default=False, compare=False)
    mig: bool | None = field(default=None, compare=False)
    memory_mib: int | None = field(default=None, compare=False)

    @property
    def decides(self) -> bool:
        """Whether the driver reports if the GPU needs a recovery, so that no XID's class counts."""
        return self.action is not None and ACTION not in self.silent_on

    @property
    def well(self) -> bool:
        """Whether the reading has no fault."""
        return not any(self.against)

    @property
    def unremarkable(self) -> bool:
        """Whether the reading has neither a fault nor a note."""
        notes = (*self.notes, *self.passing_notes)
        return self.well and not notes

    @property
    def against(self) -> Iterator[str]:
        """Faults that make the GPU unhealthy."""
        if self.action not in _HARMLESS_ACTIONS:
            advice = _ADVICE.get(self.action or 0)
            # A newer driver may ask for an action that this agent does not know.
            asks = f"asks to {advice}" if advice else f"asks for recovery action {self.action}"
            yield f"the driver {asks}"
        if self.remap_failed:
            yield "a broken row of its memory could not be replaced; have the GPU replaced"

    @property
    def fault(self) -> str:
        """The first of `against` as the value of a label; empty without a fault."""
        if self.action not in _HARMLESS_ACTIONS:
            return f"recovery-action-{self.action}"
        return "row-remap-failed" if self.remap_failed else ""

    @property
    def notes(self) -> Iterator[str]:
        """Minor problems that leave the GPU healthy and last until the next reset."""
        if self.remap_pending:
            yield "broken memory is replaced at the next reset; reset the GPU when its pods have ended"
        if self.memory_errors:
            yield "uncorrectable memory errors since the last reset"  # no number: each would be another Event

    @property
    def passing_notes(self) -> Iterator[str]:
        """Minor problems that leave the GPU healthy and may come and go."""
        if self.hot:
            yield "slowed down by its temperature; check fans and air flow"
        if self.power_brake:
            yield "slowed down by the power brake; check the power supply"
        if self.silent_on:
            parts = sorted(self.silent_on)
            yield f"the driver does not report {' and '.join(parts)}; the agent's log has its words"

    def after(self, former: "HealthReading") -> "HealthReading":
        """This reading, with values of `former` for the parts that the driver did not report."""
        known = replace(self, partial=False)
        if ACTION in self.silent_on:
            known = replace(known, action=former.action)
        if REST in self.silent_on or self.partial:
            former_rest = {name: getattr(former, name) for name in _REST}
            known = replace(known, **former_rest)
        return known


_REST = ("remap_failed", "remap_pending", "memory_errors", "hot", "power_brake")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """The health of one GPU. Times are monotonic seconds.

    Attributes:
        reading: the last reading.
        lost: why the GPU does not answer; None while it does.
        unlisted: the driver lists other GPUs, but no longer this one.
        unread: why the driver lists the GPU but cannot read it; None while it can.
        asked: the GPU has reported its health at least once.
        awaited_until: when the wait for the first report ends at the latest; None without a wait.
        xids: XIDs that made the GPU unhealthy in this unhealthy period.
        stuck: one of these XIDs needs a reset, and the agent has not seen one yet.
        shaken: one of these XIDs came after the last verdict.
        cause: why the GPU is unhealthy; None while it is healthy. It stays until the settle time has ended.
        causes: all faults of this unhealthy period, in words.
        passing: each passing note, and the time when it ended; None while it applies.
        healthy_since: when the last fault of an unhealthy GPU ended; None while one applies.
        settle_s: the settle time of this unhealthy period, or of the last one if the GPU is healthy.
        recovered_at: when the GPU last recovered.
        last_xid: the GPU's last XID of any class, and its time.
        counts: XID to the number of its reports for this GPU in this run.
    """

    reading: HealthReading = HealthReading()
    lost: str | None = None
    unlisted: bool = False
    unread: str | None = None
    asked: bool = False
    awaited_until: float | None = None
    xids: tuple[int, ...] = ()
    stuck: bool = False
    shaken: bool = False
    cause: str | None = None
    causes: frozenset[str] = frozenset()
    passing: Mapping[str, float | None] = field(default_factory=dict)
    healthy_since: float | None = None
    settle_s: float = 0.0
    recovered_at: float = float("-inf")
    last_xid: tuple[int, float] | None = None
    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def due(self) -> float | None:
        """When an unhealthy GPU recovers without an event; None if it cannot."""
        return None if self.healthy_since is None else self.healthy_since + self.settle_s

    @property
    def next(self) -> float | None:
        """When the next change comes without an event: an unhealthy GPU recovers, or a note or a wait ends."""
        times = [ended_at + NOTE_S for ended_at in self.passing.values() if ended_at is not None]
        if self.due is not None:
            times.append(self.due)
        if self.awaited_until is not None:
            times.append(self.awaited_until)
        return min(times, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Minor problems that leave the GPU healthy, in words."""
        return (*self.reading.notes, *self.passing)

    @property
    def against(self) -> tuple[str, ...]:
        """The GPU's current faults, in words."""
        faults = []
        if self.stuck:
            faults.append(_words(self.xids))
        if self.lost:
            faults.append(self.lost)
        if self.unread:
            faults.append(f"it cannot be read: {self.unread}")
        elif self.unlisted:
            faults.append("the driver does not list it any more")
        return (*faults, *self.reading.against)

    @property
    def fault(self) -> str:
        """What made the GPU unhealthy, as the value of a label: ``xid-79``, ``lost``. Empty while it is healthy."""
        if self.cause is None:
            return ""
        if self.xids:
            parts = ("xid", *map(str, self.xids))
            return "-".join(parts)
        if self.lost:
            return "lost"
        if self.unread:
            return "unreadable"
        if self.unlisted:
            return "unlisted"
        return self.reading.fault

    @property
    def is_away(self) -> bool:
        """Whether the driver has lost the GPU, does not list it, or cannot read it."""
        return bool(self.lost or self.unlisted or self.unread)

    @property
    def only_unread(self) -> bool:
        """Whether no more is known against the GPU than that the driver cannot read it."""
        return self.unread is not None and len(self.against) == 1

    def xid(
        self,
        xid: int,
        reading: HealthReading | None,
        harmless: frozenset[int],
        at: float,
    ) -> "GpuHealth":
        """The driver reported an XID; `reading` is the one right after it, None if that failed.

        If the driver supports recovery actions and answers, its action decides; otherwise, the XID's class does.
        An application's XID does not count as the cause of an earlier fault.
        """
        earlier_reports = self.counts.get(xid, 0)
        known = self.reading if reading is None else reading.after(self.reading)
        is_fault = xid not in harmless
        stuck = False
        if reading is not None and reading.decides:
            # Faults that the driver reported before this XID have another cause.
            earlier = set() if is_fault else set(self.reading.against)
            is_fault = not earlier.issuperset(known.against)
        else:
            needs_reset = xid not in APPLICATION_XIDS | PASSING_XIDS
            stuck = self.stuck or (is_fault and needs_reset)
        after = replace(
            self,
            reading=known,
            last_xid=(xid, at),
            counts={**self.counts, xid: earlier_reports + 1},
            stuck=stuck,
        )
        if not is_fault:
            return after
        xids = self.xids
        # The reason names all of them, so that their number has to be bounded.
        if xid not in xids and len(xids) < MOST_REPORTED:
            xids = (*xids, xid)
        return replace(after, shaken=True, xids=xids)

    def answered(self, reading: HealthReading, *, returned: bool) -> "GpuHealth":
        """The GPU answered. With `returned`, it or the whole driver was away before, which is equivalent to a reset."""
        known = reading.after(self.reading)
        if returned and ACTION in reading.silent_on:
            # A reset clears the former recovery action.
            known = replace(known, action=None)
        after = replace(self, reading=known, lost=None)
        if returned or reading.decides:
            after = replace(after, stuck=False)
        if reading.partial:
            return after
        return replace(after, asked=True, awaited_until=None)

    def awaited(self, at: float) -> "GpuHealth":
        """The GPU is new, and did not report its health when queried."""
        if self.asked:
            return self
        return replace(self, awaited_until=at + FIRST_ANSWER_S)

    def went_silent(self, reason: str) -> "GpuHealth":
        """The GPU no longer answers."""
        return replace(self, lost=self.lost or reason)

    def listed(self, there: bool, unread: str | None = None) -> "GpuHealth":
        """The driver listed its GPUs. `unread` says why it could not read this one, which is no sign of a reset."""
        if unread is not None:
            return replace(self, unread=unread)
        # A GPU that comes back has been reset.
        is_back = there and self.unlisted
        return replace(
            self,
            unlisted=not there,
            unread=None,
            stuck=self.stuck and not is_back,
        )

    def judged(self, at: float, settle_s: float, *, known: bool) -> "GpuHealth":
        """The verdict at this moment. `known`: the GPU can be queried now; otherwise, it does not recover."""
        after = self._weighed(at, settle_s, known=known)
        if after.awaited_until is not None and at >= after.awaited_until:
            after = replace(after, awaited_until=None)
        passing = _passing_notes(self, at)
        if passing == after.passing:
            return after
        return replace(after, passing=passing)

    def _weighed(self, at: float, settle_s: float, *, known: bool) -> "GpuHealth":
        against = self.against
        if against or self.shaken:
            return self._unhealthy(against, at, settle_s, known=known)
        if self.cause is None:
            return self
        # It is not known whether it is healthy, so the settle time begins again later.
        if not known:
            return replace(self, healthy_since=None)
        if self.healthy_since is None:
            return replace(self, healthy_since=at)
        has_settled = at >= self.healthy_since + self.settle_s
        if not has_settled:
            return self
        return replace(
            self,
            cause=None,
            causes=frozenset(),
            healthy_since=None,
            recovered_at=at,
            xids=(),
        )

    def _unhealthy(
        self,
        against: tuple[str, ...],
        at: float,
        settle_s: float,
        *,
        known: bool,
    ) -> "GpuHealth":
        """The verdict on a GPU with the faults `against`, or with an XID since the last verdict."""
        is_over = known and not against
        words = against
        if self.xids and not self.stuck:
            # An XID that needs no reset is not a current fault, but it is why the GPU became unhealthy.
            words = (_words(self.xids), *against)
        has_just_begun = self.cause is None
        return replace(
            self,
            cause="; ".join(words),
            causes=self.causes.union(words),
            shaken=False,
            settle_s=_settle_time(self, at, settle_s) if has_just_begun else self.settle_s,
            healthy_since=at if is_over else None,
        )


def _passing_notes(health: GpuHealth, at: float) -> dict[str, float | None]:
    """The current passing notes, and those that ended within `NOTE_S`."""
    notes: dict[str, float | None] = {}
    for note, since in health.passing.items():
        ended_at = at if since is None else since
        if at < ended_at + NOTE_S:
            notes[note] = ended_at
    current = dict.fromkeys(health.reading.passing_notes)
    return notes | current


def _settle_time(health: GpuHealth, at: float, settle_s: float) -> float:
    """The settle time of a GPU that becomes unhealthy now."""
    has_relapsed = at - health.recovered_at < RELAPSE_S
    if not has_relapsed:
        return settle_s
    doubled = max(2 * health.settle_s, LEAST_RELAPSE_S)
    bounded = min(doubled, MOST_SETTLE_S)
    # The operator may have set more than the bound.
    return max(settle_s, bounded)


def _words(xids: tuple[int, ...]) -> str:
    return ", ".join(f"XID {xid}" for xid in xids)
