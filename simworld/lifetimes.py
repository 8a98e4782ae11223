"""The lives of pods by a whole recording, and what they say of two containers that have units in common.

`recorded` reads it in advance, because watches are late. Only what is certain may fail a run, so this module decides
whether two containers that lived side by side certainly broke a promise. Kubelet gives units away when it takes a pod
for gone, and in some cases the pod's containers still run then, which no device plugin is told.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

Line = dict[str, Any]
"""One thing that was recorded: `at` in seconds, `kind`, and what belongs to the kind."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
_DECISIONS = (ALLOCATION, CORE_ALLOCATION)
_ENDED = frozenset({"Succeeded", "Failed"})
_KILL_S = 60.0
"""Seconds, beside its grace period, that kubelet may need to end the containers of a pod: it may restart meanwhile."""
_GRACE_S = 30.0
"""What the API server writes into a pod that names no grace period."""


class Excuse(Enum):
    """Why a container may run beside another one that has the same units. Only the first one is known to be right."""

    FORCED = "was deleted by force"
    LATE = "was deleted by force and runs on for longer than kubelet should need"
    UNSEEN = "was deleted while no watch was open"
    UNENDED = "has failed or succeeded, and nobody has reported that its containers had ended"
    ENDED = "runs, and kubelet had reported that its containers had ended"


@dataclass(frozen=True, slots=True)
class Release:
    """Kubelet may take a pod for gone, without a report that its containers have ended.

    Attributes:
        line: number of the line that says so. The API server tells all pods in order, and this order counts, because
            what is recorded of the node may come earlier or later.
        at: when this line was recorded, in seconds.
        grace_s: seconds that kubelet gives the pod's containers to end.
        excuse: how it came to that.
    """

    line: int
    at: float
    grace_s: float
    excuse: Excuse


@dataclass(slots=True)
class Lifetimes:
    """What a whole recording says of the lives of pods, by UID. An empty one has no excuse for anything.

    Attributes:
        released: how kubelet may have come to give the units of a pod away while its containers ran.
        ended: when the end of the pod's containers was reported, in seconds.
        admitted: the first line after which kubelet had admitted or refused the pod.
        edited: pods whose decision was changed after the binding, before kubelet had admitted them. The
            agent may have read either one.
    """

    released: dict[str, Release] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Self:
        lifetimes = cls()
        bound: dict[str, Mapping[str, str]] = {}
        for number, line in enumerate(lines):
            if line["kind"] == "pod":
                lifetimes._see_decision(line, bound)
                lifetimes._see_life(line, number)
        return lifetimes

    def excuse(self, old: str, new: str, at: float) -> Excuse | None:
        """Why containers of two pods may have units in common, which kubelet took from the old one for the new one.

        Args:
            old: UID of the pod that had the units first.
            new: UID of the other one.
            at: when both were seen to run, in seconds.
        """
        ended_at = self.ended.get(old)
        if ended_at is not None and ended_at < at:
            return Excuse.ENDED
        release = self.released.get(old)
        if release is None:
            return None
        # Kubelet has seen the release before it admits the next pod, and says that it runs after that.
        is_before = release.line < self.admitted.get(new, release.line + 1)
        if not is_before:
            return None
        is_late = at > release.at + release.grace_s + _KILL_S
        return Excuse.LATE if is_late and release.excuse is Excuse.FORCED else release.excuse

    def _see_decision(self, line: Line, bound: dict[str, Mapping[str, str]]) -> None:
        """Compare the decision of a pod with that of its binding."""
        uid = line["uid"]
        if not line["node"]:
            return
        decision = {key: line["annotations"].get(key, "") for key in _DECISIONS}
        is_edited = bound.setdefault(uid, decision) != decision
        if is_edited and uid not in self.admitted:
            self.edited.add(uid)

    def _see_life(self, line: Line, number: int) -> None:
        uid = line["uid"]
        gone = line["gone"]
        phase = line["phase"]
        is_waiting = phase in ("", "Pending") and not gone
        if not is_waiting:
            self.admitted.setdefault(uid, number)
        is_over = phase in _ENDED
        # Former recordings do not say whether its containers have ended.
        if is_over and line.get("ended", True):
            self.ended.setdefault(uid, line["at"])
            return
        if not is_over and not gone:
            return
        excuse = Excuse.UNENDED if is_over else Excuse.FORCED
        if gone and line["listed"]:
            excuse = Excuse.UNSEEN
        release = Release(number, line["at"], line.get("grace_s", _GRACE_S), excuse)
        self.released.setdefault(uid, release)
