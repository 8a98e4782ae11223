"""The plan by which a job starts: a node and GPUs for each of its pods, and how far their start has come.

The pods of a plan come into bind one after another, and each waits there for the others. Once all are in bind, the plan
is written on one of them, so that it outlives the scheduler. Only then are the pods bound.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.jobs.places.plan import Passed


class PlanStage(Enum):
    """How far the start of a job has come, in this order."""

    GATHERING = auto()
    """Its pods come into bind, where each waits for the others."""
    WRITING = auto()
    """All are in bind. The plan is being written on one of them."""
    WRITTEN = auto()
    """The plan outlives the scheduler, and its pods are bound now. A job that has begun must not lose its GPUs."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Nodes and GPUs for pods of a job that are not bound yet. Each event makes another value of it.

    Attributes:
        places: by UID.
        until: when it breaks unless its pods are bound.
        stage: of the start.
        in_bind: UIDs of the pods whose bind call waits.
        refused: UID to the nodes that kube-scheduler did not accept for the pod. Other pods of this plan that it has
            placed by then may be why, so this counts no longer than the plan.
        deferred: UIDs of the pods whose place kube-scheduler may accept once others of this plan are on theirs.
        deferrals: how often pods were deferred.
        attached: UIDs of the pods that kube-scheduler accepts only when others of the plan are on nodes. The plan is
            written without waiting for them.
        in_order: each pod waits for those before it in `places`, because kube-scheduler accepts the places in this
            order, and came to the pods in another one before.
    """

    places: Mapping[str, tuple[str, Choice]]
    until: float
    stage: PlanStage = PlanStage.GATHERING
    in_bind: frozenset[str] = frozenset()
    refused: Mapping[str, Passed] = field(default_factory=dict)
    deferred: frozenset[str] = frozenset()
    deferrals: int = 0
    attached: frozenset[str] = frozenset()
    in_order: bool = False

    @property
    def is_written(self) -> bool:
        """Whether its pods are bound now."""
        return self.stage is PlanStage.WRITTEN

    @property
    def is_gathered(self) -> bool:
        """Whether all pods are in bind that can be, so that the plan has to be written."""
        to_come = self.places.keys() - self.attached
        return self.stage is PlanStage.GATHERING and self.in_bind >= to_come

    def entered(self, uid: str) -> "StartPlan":
        """A pod has come into bind. If the plan is written, the pod need not wait."""
        if self.is_written:
            return self
        return replace(self, in_bind=self.in_bind | {uid})

    def left(self, uid: str) -> "StartPlan":
        """A pod's bind call has ended without a Binding."""
        if self.is_written:
            return self
        return replace(self, in_bind=self.in_bind - {uid})

    def defers(self, uid: str) -> "StartPlan":
        """kube-scheduler does not accept the pod's place now, and may do so when others of the plan are on theirs."""
        return replace(self, deferred=self.deferred | {uid}, deferrals=self.deferrals + 1)

    def comes_after_others(self, uid: str) -> bool:
        """Whether pods of the plan are still to come, on which kube-scheduler's answer about this one may depend."""
        to_come = self.places.keys() - self.in_bind - self.deferred - self.attached - {uid}
        return bool(to_come)

    def next_in_order(self) -> str | None:
        """The UID of the first pod in `places` that is not in bind; None if all are that can be."""
        to_come = (uid for uid in self.places if uid not in self.in_bind and uid not in self.attached)
        return next(to_come, None)

    def is_too_early(self, uid: str) -> bool:
        """Whether kube-scheduler has to place others before this pod, so that it accepts all of them."""
        is_gathering_in_order = self.in_order and self.stage is PlanStage.GATHERING
        needs_no_turn = uid in self.attached or uid in self.in_bind
        if not is_gathering_in_order or needs_no_turn:
            return False
        return self.next_in_order() != uid

    def writing(self) -> "StartPlan":
        """The plan is being written from now on."""
        return replace(self, stage=PlanStage.WRITING)

    def written(self, until: float) -> "StartPlan":
        """The plan is written, and its GPUs stay reserved until then."""
        return replace(self, stage=PlanStage.WRITTEN, until=until)

    def moved(self, places: Mapping[str, tuple[str, Choice]], refused: Mapping[str, Passed]) -> "StartPlan":
        """The plan with other places. Pods that keep theirs stay in bind, and it breaks at the same time as before."""
        moved = {uid for uid, place in self.places.items() if places.get(uid) != place}
        in_bind = self.in_bind - moved
        return replace(self, places=places, in_bind=in_bind, refused=refused)

    def without(self, uids: Collection[str]) -> "StartPlan":
        """The plan for the other pods."""
        if self.places.keys().isdisjoint(uids):
            return self
        places = {uid: place for uid, place in self.places.items() if uid not in uids}
        return replace(self, places=places, deferred=self.deferred.difference(uids))
