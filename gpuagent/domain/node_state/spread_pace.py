"""How many claims each GPU of a node takes under placement `spread` until the agent has published again.

The agent learns of a claim when kubelet prepares it. Until then, the scheduler would give the first GPU to every claim
of a burst. So a GPU takes one claim at a time. But the scheduler may need more from a GPU that has already taken one:
for a claim of several GPUs, or of a certain one, or for a pod with several claims. Time gives them room.

Some claims are never prepared: kubelet waits for a volume of their pod, or the agent refuses them. The scheduler counts
them on a GPU that the agent does not know. So every GPU gets room for them, by and by.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpuagent.domain.sharing.claim import PreparedClaim

REST_S = 3.0
"""How often every GPU takes one more claim. A node prepares a claim on each of 8 GPUs in less.

A claim that is not prepared by then may never be.
"""

LIFT_S = 3.0
"""How long the limits are lifted: long enough for a scheduler to try the pods that wait."""

LIFT_AFTER_CHANGE_S = 60.0
"""Longest time to the next lift after a claim came or went."""

LIFT_EVERY_S = 300.0
"""Time between two lifts on a node where nothing happens. Each costs two writes of the slice."""


@dataclass(frozen=True, kw_only=True)
class SpreadPace:
    """Times are monotonic seconds.

    Attributes:
        shares: how many shares of each GPU are prepared, by UUID.
        rested: the same a moment ago: every GPU may take one more than these.
        rest_at: when `shares` become `rested`.
        lifted: whether the limits are lifted, for pods that need several shares of one GPU.
        lift_at: when that changes; None before the first event.
        unprepared: how many claims of the node's pods kubelet has still to have prepared.
        patience: how many of them each GPU has room for, because they were not prepared in time.
        patient_at: when each GPU gets room for one more of them.
    """

    shares: Mapping[str, int] = field(default_factory=dict)
    rested: Mapping[str, int] = field(default_factory=dict)
    rest_at: float = math.inf
    lifted: bool = False
    lift_at: float | None = None
    unprepared: int = 0
    patience: int = 0
    patient_at: float = math.inf

    def prepared(self, claims: Iterable[PreparedClaim], at: float) -> Self:
        """After the prepared claims have become these."""
        shares = Counter[str]()
        for claim in claims:
            shares.update(gpu.uuid for gpu in claim.used)
        if shares == self.shares:
            return self.at(at)
        lift_at = self.lift_at
        if lift_at is not None and not self.lifted:
            lift_at = min(lift_at, at + LIFT_AFTER_CHANGE_S)
        after = replace(
            self,
            shares=dict(shares),
            rest_at=min(self.rest_at, at + REST_S),
            lift_at=lift_at,
            # The node does prepare claims: it may get to the others soon.
            patient_at=_patient_at(self.unprepared - self.patience, at),
        )
        return after.at(at)

    def awaited(self, unprepared: int, at: float) -> Self:
        """After so many claims of the node's pods have become those that are not prepared."""
        if unprepared == self.unprepared:
            return self
        # Room for claims that are gone would let a burst come together on a GPU.
        patience = min(self.patience, unprepared)
        patient_at = _patient_at(unprepared - patience, at)
        if not math.isinf(patient_at):
            # More claims do not make the earlier ones wait longer.
            patient_at = min(self.patient_at, patient_at)
        return replace(
            self,
            unprepared=unprepared,
            patience=patience,
            patient_at=patient_at,
        )

    def at(self, at: float) -> Self:
        """After the changes that time brings."""
        after = self
        if at >= self.rest_at:
            after = replace(after, rested=self.shares, rest_at=math.inf)
        if at >= self.patient_at:
            patience = self.patience + 1
            patient_at = _patient_at(self.unprepared - patience, at)
            after = replace(after, patience=patience, patient_at=patient_at)
        if self.lift_at is None:
            return replace(after, lift_at=at + LIFT_AFTER_CHANGE_S)
        if at < self.lift_at:
            return after
        pause_s = LIFT_EVERY_S if self.lifted else LIFT_S
        return replace(after, lifted=not self.lifted, lift_at=at + pause_s)

    @property
    def next(self) -> float:
        """When something changes without an event."""
        return min(self.rest_at, self.patient_at, self.lift_at or math.inf)


def _patient_at(without_room: int, at: float) -> float:
    """When each GPU gets room for one more claim that is not prepared; never if there is room for all of them."""
    return at + REST_S if without_room > 0 else math.inf
