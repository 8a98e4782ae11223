"""The health of one GPU: what stands against it, and when it is sound again.

A GPU falls ill at once and gets well slowly. When nothing stands against it any more, that has to hold for a settle
time; a GPU that falls ill again soon after it recovered has to hold out twice as long.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes on a sound GPU (NVIDIA's Xid catalog)."""
PASSING_XIDS = frozenset({32, 63, 69, 92, 94, 121})
"""XIDs after which the GPU goes on without a reset by that catalogue: contained or corrected memory errors, engine
errors that end with the program. All others are taken to need one."""
RELAPSE_S = 3600.0
"""A GPU that falls ill sooner than this after it recovered has relapsed."""
LEAST_RELAPSE_S, MOST_SETTLE_S = 0.5, 1800.0
FIRST_ANSWER_S = 3.0
"""A GPU that does not say how it is when it is first seen is not offered until it does, or for so long."""
MOST_TOLD = 4
"""So many different XIDs are told of one illness."""
NOTE_S = 600.0
"""A note that comes and goes is over when it has not come back for so long."""
ACTION, REST = "its recovery action", "its memory errors and why its clocks are slow"
"""What a driver may be silent on, in words."""

_HARMLESS_ACTIONS = {None, 0, 5}
"""No recovery action known, none needed, and one about the IMEX domain, which is no matter of this GPU's."""
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
    """What the driver says of a GPU that answers.

    Attributes:
        action: the recovery action that it asks for; None where it knows none (before r570).
        remap_failed: a broken row of memory could not be replaced.
        remap_pending: rows or pages of memory are replaced at the next reset.
        memory_errors: uncorrectable ones since the last reset.
        hot: the hardware slows the GPU down for its temperature.
        power_brake: something outside, such as the power supply, slows it down.
        silent_on: what the driver was asked for and did not say, though it knows it: of `ACTION` and `REST`.
        partial: `REST` was not answered yet since this GPU is asked. That is no news.
    """

    action: int | None = None
    remap_failed: bool = False
    remap_pending: bool = False
    memory_errors: int = 0
    hot: bool = False
    power_brake: bool = False
    silent_on: frozenset[str] = frozenset()
    partial: bool = field(default=False, compare=False)

    @property
    def decides(self) -> bool:
        """The driver has said whether the GPU needs a recovery: no XID's class has to be asked."""
        return self.action is not None and ACTION not in self.silent_on

    @property
    def well(self) -> bool:
        """Nothing here costs the GPU."""
        return not any(self.against)

    @property
    def unremarkable(self) -> bool:
        """Nothing here is worth a word."""
        return self.well and not any((*self.notes, *self.passing_notes))

    @property
    def against(self) -> Iterator[str]:
        """What makes the GPU sick."""
        if self.action not in _HARMLESS_ACTIONS:
            advice = _ADVICE.get(self.action or 0)
            yield f"the driver asks to {advice}" if advice else f"the driver asks for recovery action {self.action}"
        if self.remap_failed:
            yield "a broken row of its memory could not be replaced; have the GPU replaced"

    @property
    def notes(self) -> Iterator[str]:
        """What is wrong, costs nothing, and lasts until the next reset."""
        if self.remap_pending:
            yield "broken memory is replaced at the next reset; reset the GPU when its pods have ended"
        if self.memory_errors:
            yield "uncorrectable memory errors since the last reset"  # no number: each would be another Event

    @property
    def passing_notes(self) -> Iterator[str]:
        """What is wrong, costs nothing, and may come and go."""
        if self.hot:
            yield "slowed down by its temperature; check fans and air flow"
        if self.power_brake:
            yield "slowed down by the power brake; check the power supply"
        if self.silent_on:
            yield f"the driver does not report {' and '.join(sorted(self.silent_on))}; the agent's log has its words"

    def after(self, former: "HealthReading") -> "HealthReading":
        """With what was known before in place of what the driver has not said."""
        known = replace(self, partial=False)
        if ACTION in self.silent_on:
            known = replace(known, action=former.action)
        if REST in self.silent_on or self.partial:
            was = {name: getattr(former, name) for name in _REST}
            known = replace(known, **was)
        return known


_REST = ("remap_failed", "remap_pending", "memory_errors", "hot", "power_brake")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """What is known of one GPU's health. Times are monotonic seconds.

    Attributes:
        vitals: as they were last told.
        lost: why it does not answer; None while it does.
        unlisted: the driver lists other GPUs, and not this one any more.
        unread: the driver lists it, and it could not be read, and why.
        asked: it has said at least once how it is.
        awaited_until: until when that is waited for, at most; None while it is not.
        xids: those that cost the GPU in this illness.
        stuck: one of them needs a reset, of which nothing was seen yet.
        shaken: one of them came after the last verdict.
        cause: why the GPU is sick; None while it is not. It stays until the settle time has ended.
        causes: all that was against it in this illness, in words.
        passing: each note that comes and goes, and since when it does not stand any more; None while it does.
        well_since: since when nothing stands against a sick GPU.
        settle_s: how long that has to hold in this illness; of a healthy GPU, in its last.
        recovered_at: when it last got well.
        last_xid: the last that was heard of it, whatever it cost, and when.
        counts: how often each XID was heard of it in this run.
    """

    vitals: HealthReading = HealthReading()
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
    well_since: float | None = None
    settle_s: float = 0.0
    recovered_at: float = float("-inf")
    last_xid: tuple[int, float] | None = None
    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def due(self) -> float | None:
        """When a sick GPU is healthy again if nothing happens; None where something has to."""
        return None if self.well_since is None else self.well_since + self.settle_s

    @property
    def next(self) -> float | None:
        """When the verdict changes if nothing happens: a sick GPU is healthy again, a note or a wait is over."""
        over = (since + NOTE_S for since in self.passing.values() if since is not None)
        return min((*over, *(at for at in (self.due, self.awaited_until) if at is not None)), default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong and costs nothing."""
        return (*self.vitals.notes, *self.passing)

    @property
    def against(self) -> tuple[str, ...]:
        """What stands against the GPU now, in words."""
        stuck = [_words(self.xids)] if self.stuck else []
        lost = [self.lost] if self.lost else []
        unlisted = ["the driver does not list it any more"] if self.unlisted and not self.unread else []
        unread = [f"it cannot be read: {self.unread}"] if self.unread else []
        return (*stuck, *lost, *unlisted, *unread, *self.vitals.against)

    def xid(self, xid: int, vitals: HealthReading | None, harmless: frozenset[int], at: float) -> "GpuHealth":
        """The driver reported an XID; `vitals` are those right after it, None if they could not be read at once.

        Where the driver knows recovery actions, it decides; where it does not, or does not answer, the XID's class.
        An application's XID is not blamed for what stood before it.
        """
        counts = {**self.counts, xid: self.counts.get(xid, 0) + 1}
        now = self.vitals if vitals is None else vitals.after(self.vitals)
        case = replace(self, vitals=now, last_xid=(xid, at), counts=counts)
        if vitals is not None and vitals.decides:
            stood = set(self.vitals.against) if xid in harmless else set()
            blamed = not stood.issuperset(now.against)
            stuck = False
        else:
            blamed = xid not in harmless
            stuck = self.stuck or (blamed and xid not in APPLICATION_XIDS | PASSING_XIDS)
        if not blamed:
            return replace(case, stuck=stuck)
        known = xid in self.xids or len(self.xids) == MOST_TOLD
        return replace(case, stuck=stuck, shaken=True, xids=self.xids if known else (*self.xids, xid))

    def answers(self, vitals: HealthReading, *, anew: bool) -> "GpuHealth":
        """The GPU was asked. `anew`: it, or the whole driver, was away before, which is as good as a reset."""
        known = vitals.after(self.vitals)
        if anew and ACTION in vitals.silent_on:  # what was asked for before a reset is not asked for after it
            known = replace(known, action=None)
        stuck = self.stuck and not (anew or vitals.decides)
        asked, until = self.asked or not vitals.partial, self.awaited_until if vitals.partial else None
        return replace(self, vitals=known, lost=None, stuck=stuck, asked=asked, awaited_until=until)

    def awaited(self, at: float) -> "GpuHealth":
        """The GPU was seen for the first time, and it has not said how it is when it was asked."""
        return self if self.asked else replace(self, awaited_until=at + FIRST_ANSWER_S)

    def goes(self, reason: str) -> "GpuHealth":
        """The GPU does not answer any more."""
        return replace(self, lost=self.lost or reason)

    def listed(self, there: bool, unread: str | None = None) -> "GpuHealth":
        """The driver told which GPUs it has; `unread`: why it could not read this one, which is no sign of a reset."""
        if unread is not None:
            return replace(self, unread=unread)
        back = there and self.unlisted
        return replace(self, unlisted=not there, unread=None, stuck=self.stuck and not back)

    def judged(self, at: float, settle_s: float, *, known: bool) -> "GpuHealth":
        """The case with the verdict of this moment; `known`: the GPU can be asked now, else it does not get well."""
        case, passing = self._weighed(at, settle_s, known=known), self._passing(at)
        if case.awaited_until is not None and at >= case.awaited_until:
            case = replace(case, awaited_until=None)
        return case if passing == case.passing else replace(case, passing=passing)

    def _passing(self, at: float) -> dict[str, float | None]:
        """The notes that stand, and those that stood a while ago."""
        ended = {note: at if since is None else since for note, since in self.passing.items()}
        still = {note: since for note, since in ended.items() if at < since + NOTE_S}
        return {**still, **dict.fromkeys(self.vitals.passing_notes)}

    def _weighed(self, at: float, settle_s: float, *, known: bool) -> "GpuHealth":
        against = self.against
        if against or self.shaken:
            settle_s = self.settle_s if self.cause is not None else self._settles(at, settle_s)
            since = at if known and not against else None
            words = [_words(self.xids)] if self.xids and not self.stuck else []
            now = (*words, *against)
            causes = self.causes.union(now)
            return replace(self, cause="; ".join(now), causes=causes, shaken=False, settle_s=settle_s, well_since=since)
        if self.cause is None:
            return self
        if not known:
            return replace(self, well_since=None)
        if self.well_since is None:
            return replace(self, well_since=at)
        if at < self.well_since + self.settle_s:
            return self
        return replace(self, cause=None, causes=frozenset(), well_since=None, recovered_at=at, xids=())

    def _settles(self, at: float, settle_s: float) -> float:
        """How long a GPU that falls ill now has to hold out."""
        if at - self.recovered_at >= RELAPSE_S:
            return settle_s
        return max(settle_s, min(max(2 * self.settle_s, LEAST_RELAPSE_S), MOST_SETTLE_S))


def _words(xids: tuple[int, ...]) -> str:
    return ", ".join(f"XID {xid}" for xid in xids)
