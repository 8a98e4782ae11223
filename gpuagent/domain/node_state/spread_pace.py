"""How many claims each GPU of a node takes under placement `spread` until the agent has published again.

The agent learns of a claim when kubelet prepares it. Until then, the scheduler would give the first GPU to every claim
of a burst. So a GPU takes one claim at a time. But the scheduler may need more from a GPU that has already taken one:
for a claim of several GPUs, or of a certain one, or for a pod with several claims. Time gives them room.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpuagent.domain.sharing.claim import PreparedClaim

REST_S = 3.0
"""How often every GPU takes one more claim. A node prepares a claim on each of 8 GPUs in less."""

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
    """

    shares: Mapping[str, int] = field(default_factory=dict)
    rested: Mapping[str, int] = field(default_factory=dict)
    rest_at: float = math.inf
    lifted: bool = False
    lift_at: float | None = None

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
        )
        return after.at(at)

    def at(self, at: float) -> Self:
        """After the changes that time brings."""
        after = self
        if at >= self.rest_at:
            after = replace(after, rested=self.shares, rest_at=math.inf)
        if self.lift_at is None:
            return replace(after, lift_at=at + LIFT_AFTER_CHANGE_S)
        if at < self.lift_at:
            return after
        pause_s = LIFT_EVERY_S if self.lifted else LIFT_S
        return replace(after, lifted=not self.lifted, lift_at=at + pause_s)

    @property
    def next(self) -> float:
        """When something changes without an event."""
        return min(self.rest_at, self.lift_at or math.inf)
