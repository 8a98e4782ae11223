"""The course of one plan: a value, and what each event makes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto

from gpuscheduler.core.defragment.move_plan import Move, MovePlan

MOST_S = 120.0
"""How long a plan may take. Pods that take longer than a minute to end are not moved."""


class Phase(Enum):
    """What a plan waits for."""

    ASKING = auto()
    """The Eviction API says whether it would evict each pod. None has been evicted yet."""
    EVICTING = auto()
    """The pods are evicted one after another."""
    MOVING = auto()
    """All were evicted. They end, their controllers make new pods, and all of these and the waiting pod start."""


class Outcome(StrEnum):
    """How a plan ended."""

    DONE = "done"
    REFUSED = "refused"
    """The Eviction API refused a pod, for example for its PodDisruptionBudget."""
    CHANGED = "changed"
    """The cluster changed, so that the plan no longer held."""
    LATE = "late"
    """The waiting pod, or a pod in place of an evicted one, did not start in time."""


@dataclass(frozen=True, slots=True)
class Course:
    """A plan under way.

    Attributes:
        plan: that is carried out.
        until: monotonic seconds when it is given up.
        phase: what it waits for.
        answered: for how many of the moves the Eviction API has answered in this phase.
        evicted: how many pods were evicted.
        gone: UIDs of evicted pods that are gone.
        made_again: UID of each pod that was seen in place of an evicted one, and whether it has a node.
        has_started: the waiting pod has a node.
    """

    plan: MovePlan
    until: float
    phase: Phase = Phase.ASKING
    answered: int = 0
    evicted: int = 0
    gone: frozenset[str] = frozenset()
    made_again: Mapping[str, bool] = field(default_factory=dict)
    has_started: bool = False

    @property
    def next_move(self) -> Move | None:
        """The move about which the Eviction API is asked next; None if it has answered about all."""
        moves = self.plan.moves
        is_complete = self.phase is Phase.MOVING or self.answered >= len(moves)
        return None if is_complete else moves[self.answered]

    @property
    def are_gone(self) -> bool:
        """Whether all evicted pods are gone, so that the waiting pod has room."""
        return self.phase is Phase.MOVING and len(self.gone) == len(self.plan.moves)

    @property
    def is_done(self) -> bool:
        """Whether the waiting pod and all pods in place of evicted ones have nodes."""
        placed = sum(self.made_again.values())
        return self.phase is Phase.MOVING and self.has_started and placed >= len(self.plan.moves)

    def accepted(self) -> "Course":
        """After the Eviction API accepted the next move."""
        is_evicting = self.phase is Phase.EVICTING
        after = replace(self, answered=self.answered + 1, evicted=self.evicted + is_evicting)
        if after.answered < len(self.plan.moves):
            return after
        following = Phase.MOVING if is_evicting else Phase.EVICTING
        return replace(after, phase=following, answered=0)

    def pod_gone(self, uid: str) -> "Course":
        """After a pod has ended or was deleted."""
        if any(pod.uid == uid for pod in self.plan.evicted):
            return replace(self, gone=self.gone | {uid})
        if uid in self.made_again:
            others = {other: has_node for other, has_node in self.made_again.items() if other != uid}
            return replace(self, made_again=others)
        return self

    def pod_made(self, uid: str, *, has_node: bool) -> "Course":
        """After a pod was seen in place of an evicted one."""
        return replace(self, made_again={**self.made_again, uid: has_node})

    def started(self) -> "Course":
        """After the waiting pod was seen on a node."""
        return replace(self, has_started=True)

    def missing(self) -> str:
        """What has not started, for people."""
        if not self.has_started:
            return f"pod {self.plan.pod.name} has not started"
        placed = sum(self.made_again.values())
        return f"{len(self.plan.moves) - placed} of {len(self.plan.moves)} moved pods have not started elsewhere"
