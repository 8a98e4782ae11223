"""One job: its pods, the stage of its plan, and what it waits for.

A job has pods first (`members`), and is complete once as many are there as have to start together. kube-scheduler comes
to its pods in turn (`turns`), and rejects nodes for some of them (`rejected`). Those to which it has come are planned:
there is room for them (`plan`), or there is not (`searched`). In that case, the job waits. Its state follows from these
alone. The times at which something is tried again are beside them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.gangs.gang import GangKey, GangSource
from gpuscheduler.core.jobs.attached import attached
from gpuscheduler.core.jobs.losses import NO_LOSSES, Losses
from gpuscheduler.core.jobs.places.plan import Passed
from gpuscheduler.core.jobs.pods.members import Members
from gpuscheduler.core.jobs.pods.start import MOST_PODS
from gpuscheduler.core.jobs.priority.joint_attempt import JointAttempt
from gpuscheduler.core.jobs.rejected_nodes import RejectedNodes
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.jobs.turns import Turns
from gpuscheduler.core.pod_facts import PodFacts

RETRY_FIRST_S = 1.0
"""Delay before a job is planned again after its plan broke. Each failure doubles it."""
RETRY_LIMIT_S = 30.0
"""The longest delay."""
NAMED_NUMBERS = 2
"""Numbers in the reason of a job whose labels disagree."""

JobKey = GangKey
"""What tells jobs apart."""


class JobState(Enum):
    """What a job does."""

    FORMING = "forming"
    """It waits for more pods."""
    WAITING = "waiting"
    """Its pods are there and have no GPUs."""
    PLANNED = "planned"
    """GPUs are reserved for its pods, which start."""
    RUNNING = "running"
    """As many of its pods are bound as have to run together, or more."""
    BROKEN = "broken"
    """It has started, and fewer of its pods are left than have to run together."""
    INVALID = "invalid"
    """Its labels or requests cannot be served."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search for places, for the reason why the job waits.

    Attributes:
        fitting: how many of its pods fit.
        gave_up: it took too many tries, so that more pods may fit.
        shortage: what the pods without a place need, and what keeps them off nodes.
    """

    fitting: int = 0
    gave_up: bool = False
    shortage: str = ""


NOT_SEARCHED = Searched()


@dataclass(slots=True)
class RoomWait:
    """How a job waits for room: which nodes are kept for it, and where pods may be evicted for it, follows from this.

    Attributes:
        since: when it began; infinite while the job does not wait.
        is_overdue: it takes so long that nodes are kept from later pods of its own priority.
        nodes_tried: what the last choice of nodes to keep was made of.
        nodes_again_at: when nodes are chosen again although that has not changed.
        evictable: the nodes where pods may be evicted, after what these were worked out from.
    """

    since: float = float("inf")
    is_overdue: bool = False
    nodes_tried: object = None
    nodes_again_at: float = float("-inf")
    evictable: tuple[object, frozenset[str]] = (None, frozenset())


@dataclass(slots=True)
class Job:
    """A job.

    Attributes:
        key: tells it from other jobs.
        members: its pods.
        plan: for the pods that are not bound; None if there is none.
        rejected: the nodes that kube-scheduler does not accept for its pods.
        ask_at: when a pod that waits for lack of named nodes has kube-scheduler ask again.
        retry_at: when the job may be planned again after its plan broke.
        delay_s: the next delay.
        is_paused: it is not planned before `retry_at`, because plans of its namespace lapsed.
        is_postponed: it is planned with one of the next ticks, because calls of others wait meanwhile.
        starts_in_order: kube-scheduler has to place the pods of the next plan in its order, see `StartPlan.in_order`.
        searched: the result of the last search for places.
        turns: which of its pods kube-scheduler has come to. Only those are planned.
        call_at: when kube-scheduler is woken for those that it has not come to; infinite if it need not be.
        nominated: UIDs of the pods that were nominated for nodes of its plan.
        attempt: to have kube-scheduler evict pods for it where each of its pods fits alone; None if there is none.
        attempt_at: when the next one begins; infinite if none is to.
        next_attempt_at: when one may begin at the earliest.
        alone_at: when pods that come again no longer wait for members that failed; infinite if they do not wait.
        alone: they no longer do.
        room_wait: how it waits for room.
        losses: what is known of the pods that it has lost.
        let_in: all of its pods are there, so that they have lost our scheduling gate.
        tried: what the last plan that failed was made of. Another one is made when that has changed.
        reason: why a pod of the job waits, and what it was worked out from.
    """

    key: JobKey
    members: Members = field(default_factory=Members)
    plan: StartPlan | None = None
    rejected: RejectedNodes = field(default_factory=RejectedNodes)
    ask_at: float = float("inf")
    retry_at: float = float("-inf")
    delay_s: float = RETRY_FIRST_S
    is_paused: bool = False
    is_postponed: bool = False
    starts_in_order: bool = False
    searched: Searched = NOT_SEARCHED
    turns: Turns = field(default_factory=Turns)
    call_at: float = float("inf")
    nominated: set[str] = field(default_factory=set)
    attempt: JointAttempt | None = None
    attempt_at: float = float("inf")
    next_attempt_at: float = float("-inf")
    alone_at: float = float("inf")
    alone: bool = False
    room_wait: RoomWait = field(default_factory=RoomWait)
    losses: Losses = NO_LOSSES
    let_in: bool = False
    tried: object = None
    reason: tuple[object, str] = (None, "")

    @property
    def title(self) -> str:
        """The job as people know it, without the namespace."""
        return self.key.title

    @property
    def is_gone(self) -> bool:
        """Whether it has no pods any more."""
        return not (len(self.members) or self.members.ended)

    @property
    def is_complete(self) -> bool:
        """Whether no pod needs to wait for more pods to come."""
        if self.members.any_bound:
            # It has started. Pods that come now replace members, or are added.
            return True
        wanted = next(iter(self.members.replicas), None)
        return wanted is not None and self.there >= wanted

    @property
    def has_started(self) -> bool:
        """Whether pods count that run or have ended. Those that come now replace members, or are added."""
        members = self.members
        return members.any_bound or members.ended_before(failed=self.alone) > 0

    @property
    def there(self) -> int:
        """How many pods are there. If some come again, those that have ended are there, too."""
        members = self.members
        if members.present >= members.wanted or not members.present:
            return members.present
        return members.present + members.ended_before(failed=self.alone)

    @property
    def state(self) -> JobState:
        """What it does."""
        if self.problem():
            return JobState.INVALID
        if self.plan:
            return JobState.PLANNED
        if not self.is_complete:
            return JobState.FORMING
        if self.lost:
            return JobState.BROKEN
        return JobState.WAITING if self.members.to_place() else JobState.RUNNING

    @property
    def lost(self) -> int:
        """How many pods a job that has started lacks of those that have to run together. Those that wait do not run."""
        members = self.members
        if not members.any_bound:
            return 0
        missing = self._missing
        if members.start.size:
            # An object's number may have been raised since. Pods that were never there are not lost.
            gone = members.start.size - self._elsewhere
            missing = min(missing, gone)
        return max(missing - members.done_and_gone, 0)

    def breaks_without(self, evicted: int) -> bool:
        """Whether the job runs, and lacks pods once so many of those that run are evicted."""
        return self.members.any_bound and self._missing + evicted > 0

    @property
    def waits(self) -> bool:
        """Whether the job is to be planned as soon as there is room."""
        return self.plan is None and bool(self.to_plan())

    @property
    def needed(self) -> int:
        """How many of the pods that wait have to start together. More may, and follow when there is room."""
        waiting = self.members.to_place()
        return min(max(self._missing, 1), len(waiting))

    @property
    def _missing(self) -> int:
        """How many pods have to start besides those that run or have ended; negative if more of them are there."""
        return self.members.wanted - self._elsewhere

    @property
    def _elsewhere(self) -> int:
        """How many pods run, or have ended."""
        return self.there - len(self.members.pending)

    @property
    def age(self) -> tuple[int, str]:
        """Jobs are planned in the order of this."""
        pods = self.members.living.values()
        # One pod that is urgent or old makes the whole job so.
        highest = max(pod.priority for pod in pods)
        oldest = min(pod.created for pod in pods)
        return -highest, oldest

    def place_of(self, uid: str) -> tuple[str, Choice] | None:
        """Node and GPUs of a pod in the plan; None if it is not in there."""
        return self.plan.places.get(uid) if self.plan else None

    def may_start(self) -> list[PodFacts]:
        """The pods that wait for room only."""
        if self.problem() or not self.is_complete:
            return []
        return self.members.to_place()

    def to_plan(self) -> list[PodFacts]:
        """The pods that may be planned now; empty until kube-scheduler has come to enough of them."""
        asked = [pod for pod in self.may_start() if self._is_asked(pod)]
        return self._if_enough(asked + self._attached_to(asked))

    def wants_nodes(self) -> list[PodFacts]:
        """The pods for which nodes may be kept; empty if there are not enough.

        kube-scheduler has come to them, or would if other pods ended.
        """
        hopeful = [pod for pod in self.may_start() if self._is_hopeful(pod)]
        return self._if_enough(hopeful + self._attached_to(hopeful))

    def _attached_to(self, pods: Collection[PodFacts]) -> list[PodFacts]:
        """The pods to which kube-scheduler comes once these are bound."""
        unasked = self.turns.unasked
        if not unasked or not pods:
            return []
        waiting = unasked.difference(pod.uid for pod in pods)
        refused = [pod for pod in self.may_start() if pod.uid in waiting and pod.is_kept_from_others]
        return attached(refused, pods) if refused else []

    def _is_hopeful(self, pod: PodFacts) -> bool:
        """Whether kube-scheduler has come to a pod, or says that it lacks what others use."""
        # kube-scheduler calls before it writes that.
        is_short = pod.is_short or pod.uid in self.turns.short
        return is_short or self._is_asked(pod)

    def _if_enough(self, pods: list[PodFacts]) -> list[PodFacts]:
        """The pods, if the job can start with them."""
        # Those that go on with a start need no others.
        if not pods or not self.is_complete:
            return pods
        return pods if len(pods) >= self.needed else []

    def _is_asked(self, pod: PodFacts) -> bool:
        return pod.uid not in self.turns.unasked

    def unasked(self, uids: Iterable[str]) -> frozenset[str]:
        """Those of the pods that kube-scheduler has not come to yet."""
        return frozenset(self.turns.unasked.intersection(uids))

    def to_come(self) -> list[PodFacts]:
        """The pods that kube-scheduler has not come to yet, although the job is complete."""
        if not self.is_complete:
            return []
        return [pod for pod in self.members.to_place() if not self._is_asked(pod)]

    def is_part(self, plan: StartPlan) -> bool:
        """Whether the plan would start a part of the job: it was made beside running pods, which are gone by now."""
        members = self.members
        if plan.is_written or members.any_bound or not self.is_complete:
            return False
        has_started_before = plan.places.keys() <= members.start.uids
        if has_started_before:
            return False
        left_out = [pod for pod in members.to_place() if pod.uid not in plan.places]
        planned = self.there - len(members.surplus) - len(left_out)
        return planned < members.wanted

    def unsuitable(self) -> dict[str, Passed]:
        """UID of each pod to the nodes that kube-scheduler did not accept for it."""
        refused = self.plan.refused if self.plan else {}
        return {**self.rejected.nodes(), **refused}

    def wait_for_failed(self) -> None:
        """Have the pods that come again wait for members that failed, from now on: they may come one after another."""
        self.alone = False
        self.alone_at = float("inf")

    def delay(self, now: float) -> None:
        """Plan the job again after a while, which is longer each time."""
        self.retry_at = now + self.delay_s
        self.delay_s = min(self.delay_s * 2, RETRY_LIMIT_S)

    def missing(self, pod: PodFacts, of_others: str = "") -> str:
        """How many pods are there, after the title; empty if the pod need not wait for others.

        `of_others` says how many wait for another scheduler; empty if none do.
        """
        members = self.members
        if pod.uid in members.surplus:
            return f"all of its {members.wanted} pods are there; a second job in the namespace needs its own name"
        # The pods of a written plan start even if others of the job have gone. After the plan, the job waits for all.
        is_being_bound = self.plan is not None and self.plan.is_written and pod.uid in self.plan.places
        if self.is_complete or is_being_bound:
            return ""
        wanted = next(iter(members.replicas), None)
        if wanted is None and members.unknown:
            return members.unknown
        parts = [f"{self.there} of {wanted} pods are there"]
        if members.held_back:
            first = next(iter(members.held_back.values()))
            parts.append(f"{len(members.held_back)} have scheduling gate {first.foreign_gate}")
        if of_others:
            parts.append(of_others)
        return ", and ".join(parts)

    def problem(self) -> str:
        """Why the job can never start, after its title; empty if it can."""
        members = self.members
        if None in members.replicas:
            return f"{self.key.source.number_in} is no number of pods"
        disagree = len(members.replicas) > 1
        # A job that runs may be scaled, so that its newer pods have another number.
        if disagree and not members.any_bound:
            numbers = _few_of(members.labels.ascending)
            return f"its pods disagree on {self.key.source.number_in} ({numbers})"
        pods = max(members.present, members.wanted)
        if pods > MOST_PODS:
            return f"it has {pods} pods; at most {MOST_PODS} can start together"
        bad = members.bad()
        if bad:
            return f"pod {bad.name} {bad.request.problem}"
        return ""


def key_of(pod: PodFacts) -> JobKey:
    """The job of a pod."""
    namespace = pod.name.namespace
    if pod.job is None:
        return GangKey(namespace, GangSource.LABELS, "")
    return pod.job.key_in(namespace)


def _few_of(numbers: Sequence[int]) -> str:
    """The smallest numbers of a job's labels. Each of thousands of pods may name another one."""
    if len(numbers) <= NAMED_NUMBERS:
        return " and ".join(map(str, numbers))
    named = ", ".join(map(str, numbers[:NAMED_NUMBERS]))
    return f"{named} and {len(numbers) - NAMED_NUMBERS} more"
