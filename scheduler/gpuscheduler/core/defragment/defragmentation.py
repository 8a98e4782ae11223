"""Moves pods so that others start: one plan at a time, and never more evictions than the operator allows."""

from collections import Counter
from dataclasses import dataclass

from gpuscheduler.core.calls import Action, EvictOutcome, MoveAway, Nominate, Nudge
from gpuscheduler.core.defragment import words
from gpuscheduler.core.defragment.check import obstacle
from gpuscheduler.core.defragment.course import MOST_S, Course, Outcome, Phase
from gpuscheduler.core.defragment.held_places import HeldPlaces
from gpuscheduler.core.defragment.move_plan import Move, MovePlan
from gpuscheduler.core.defragment.planner import Steps, search_steps
from gpuscheduler.core.defragment.surroundings import Surroundings
from gpuscheduler.core.defragment.waits import Owner, Waits, owner_of
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations

STEPS_A_TICK = 4
"""Steps of a search in one tick, each of a few milliseconds."""
STEP_GAP_S = 0.05
"""Pause between such ticks, in which calls are answered."""
LOOK_S = 2.0
"""Pause between two searches, and between two looks at a plan under way."""
NO_PLAN_S = 60.0
"""How long pods of an owner are passed over after no plan was found for one of them."""
SERVED_S = 300.0
"""The same after a plan for one of them, so that one owner does not have all others moved."""
MOVED_S = 600.0
"""How long pods of an owner stay after one of them was moved."""
NUDGE_S = 5.0
"""Pause until the waiting pod is woken again. kube-scheduler may not have seen yet that it has room."""
LONGEST_PAUSE_S = 3600.0
"""Between two plans, however many failed, unless the operator asks for more."""
MOST_MOVED_OWNERS = 4096


@dataclass(frozen=True, slots=True)
class DefragmentLimits:
    """What the operator allows.

    Attributes:
        moves: the most evictions of a plan; 0 for none at all.
        after_s: how long a pod waits until others are moved for it.
        pause_s: between two plans. Each plan that fails doubles it, up to an hour.
    """

    moves: int = 0
    after_s: float = 30.0
    pause_s: float = 60.0


class Defragmentation:
    """The plan under way, or the search for one.

    Args:
        limits: of the operator.
        cluster: as it is.
        reservations: of all pods.
        actions: to carry out; evictions are added.

    Attributes:
        limits: of the operator.
        cluster: as it is.
        waits: pods that wait.
        course: the plan under way, if there is one.
        last: how the last plan ended, for people; empty before.
        ended: how many plans ended in which way.
        may_begin: this process leads, and knows the cluster as it is.
    """

    def __init__(
        self,
        limits: DefragmentLimits,
        cluster: Surroundings,
        reservations: Reservations,
        actions: list[Action],
    ) -> None:
        self.limits = limits
        self.cluster = cluster
        self.waits = Waits(cluster.pods)
        self.course: Course | None = None
        self.last = ""
        self.ended = Counter[Outcome]()
        self.may_begin = False
        self._held = HeldPlaces(reservations, cluster.pods)
        self._actions = actions
        self._search: Steps | None = None
        self._searched: PodFacts | None = None
        self._look_at = 0.0
        self._pause_until = 0.0
        self._pause_s = limits.pause_s
        self._nudge_at = 0.0
        self._moved: dict[Owner, float] = {}
        self._asked: tuple[Move, MovePlan] | None = None
        """The pod that the API server is to evict, and for which plan. It may do so although the plan has ended."""

    @property
    def is_on(self) -> bool:
        """Whether pods may be moved at all."""
        return self.limits.moves > 0

    def pod_came(self, pod: PodFacts) -> None:
        """Take a pod that was not seen before: it may come in place of an evicted one, and then gets its place."""
        if self.course is not None and pod.uid in self.course.made_again:
            # kube-scheduler asked about it before the watch showed it.
            return
        if self._held.take(pod) and self.course is not None:
            self.course = self.course.pod_made(pod.uid, has_node=bool(pod.node))

    def pod_seen(self, pod: PodFacts, now: float, *, is_new: bool) -> None:
        """Take a pod as it is now."""
        if is_new:
            self.pod_came(pod)
        self.waits.seen(pod, now)
        course = self.course
        if course is None or not pod.node:
            return
        if pod.uid == course.plan.pod.uid:
            course = course.started()
        elif pod.uid in course.made_again:
            course = course.pod_made(pod.uid, has_node=True)
        self.course = course
        if course.is_done:
            self._end(Outcome.DONE, "", now)

    def pod_gone(self, uid: str, now: float) -> None:
        """Take that a pod was deleted or has ended."""
        self.waits.forget(uid)
        if self.course is None:
            return
        if uid == self.course.plan.pod.uid and not self.course.has_started:
            self._end(Outcome.CHANGED, "the waiting pod is gone", now)
            return
        were_there = not self.course.are_gone
        self.course = self.course.pod_gone(uid)
        if were_there and self.course.are_gone:
            self._wake(self.course, now)

    def answered(self, uid: str, outcome: EvictOutcome, why: str, now: float) -> None:
        """Take what the Eviction API says about the next pod of the plan."""
        self._take_asked(uid, outcome, now)
        course = self.course
        move = course.next_move if course else None
        if course is None or move is None or move.pod.uid != uid:
            return
        is_accepted = outcome in (EvictOutcome.EVICTED, EvictOutcome.GONE)
        if not is_accepted:
            self._end(Outcome.REFUSED, f"pod {move.pod.name}: {why}", now)
            return
        was_asking = course.phase is Phase.ASKING
        self.course = course = course.accepted()
        if was_asking and course.phase is Phase.EVICTING:
            self._begin_evicting(course, now)
        elif course.phase is Phase.EVICTING:
            self._go_on_evicting(course, now)
        else:
            self._ask(course)

    def _take_asked(self, uid: str, outcome: EvictOutcome, now: float) -> None:
        """Say of a pod that it was evicted, also if its plan has ended before the answer came."""
        if self._asked is None or self._asked[0].pod.uid != uid:
            return
        move, plan = self._asked
        self._asked = None
        if outcome is not EvictOutcome.EVICTED:
            return
        self._actions.append(words.evicted(move, plan))
        if self.course is None or self.course.plan is not plan:
            self._rest_moved(move.pod, now)

    def is_wanted(self, uid: str) -> bool:
        """Whether a pod is still to be evicted for the plan."""
        move = self.course.next_move if self.course else None
        return move is not None and move.pod.uid == uid

    def refused(self, pod: PodFacts) -> None:
        """Take that a pod got no node. If pods are moved for it, its place is kept again."""
        if self.course and self.course.plan.pod.uid == pod.uid:
            self._held.keep_for_waiting(self.course.plan, self.course.until)

    def serves(self, uid: str) -> bool:
        """Whether pods are moved for a pod, so that no others need to be evicted for it."""
        return self.course is not None and self.course.plan.pod.uid == uid

    def why_kept(self, pod: PodFacts, now: float) -> str:
        """Why a pod must not be moved again, after "it "; empty if it may."""
        is_recent = self._moved.get(owner_of(pod), now) > now
        return "is of a controller of which a pod was moved a short time ago" if is_recent else ""

    def next_due(self) -> float | None:
        """When `tick` has work next; None if nothing is ever moved."""
        if not self.is_on:
            return None
        if self._search is not None or self.course is not None:
            return self._look_at
        return max(self._look_at, self._pause_until)

    def tick(self, now: float) -> None:
        """Look at the plan under way, go on with a search, or begin one."""
        if not self.is_on or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self.course is not None:
            self._watch(self.course, now)
        elif self._search is not None and self._searched is not None:
            self._go_on(self._search, self._searched, now)
        elif self.may_begin and now >= self._pause_until:
            self._begin_search(now)

    def _begin_search(self, now: float) -> None:
        if not self.cluster.budgets.are_read:
            return
        for pod in self.waits.first(self.limits.after_s, now):
            if self.cluster.ranking.has_in_all(pod.request):
                self._searched = pod
                self._search = search_steps(pod, self.cluster, self.limits.moves, now)
                self._look_at = now
                return

    def _go_on(self, search: Steps, pod: PodFacts, now: float) -> None:
        try:
            for _ in range(STEPS_A_TICK):
                next(search)
        except StopIteration as end:
            self._search = None
            if isinstance(end.value, MovePlan) and self.may_begin:
                self._begin(end.value, now)
            else:
                self.waits.rest(pod, now + NO_PLAN_S, now)
        else:
            self._look_at = now + STEP_GAP_S

    def _begin(self, plan: MovePlan, now: float) -> None:
        """Keep the places of a plan, and ask the Eviction API about its pods."""
        if obstacle(plan, self.cluster, now):
            # It was found in the cluster of a moment ago. The next search looks again.
            return
        self.waits.rest(plan.pod, now + SERVED_S, now)
        self.course = course = Course(plan, now + MOST_S)
        self._ask(course)

    def _begin_evicting(self, course: Course, now: float) -> None:
        """The API server would evict all of the pods. Check once more that this is of use, and begin."""
        why = obstacle(course.plan, self.cluster, now)
        if not self.may_begin:
            why = "another process leads now"
        if why:
            self._end(Outcome.CHANGED, why, now)
            return
        self._held.keep(course.plan, course.until)
        pod = course.plan.pod
        self._actions.append(words.begun(course.plan))
        self._actions.append(Nominate(pod.name, pod.uid, course.plan.node))
        self._ask(course)

    def _go_on_evicting(self, course: Course, now: float) -> None:
        """Evict the next pod, unless that is of no use by now: for example, the waiting pod has a node."""
        why = obstacle(course.plan, self.cluster, now, course.evicted)
        if why:
            self._end(Outcome.CHANGED, why, now)
        else:
            self._ask(course)

    def _ask(self, course: Course) -> None:
        move = course.next_move
        if move is not None:
            is_trial = course.phase is Phase.ASKING
            self._asked = None if is_trial else (move, course.plan)
            self._actions.append(MoveAway(move.pod.name, move.pod.uid, is_trial))

    def _watch(self, course: Course, now: float) -> None:
        plan = course.plan
        if now >= course.until:
            self._end(Outcome.LATE, course.missing(), now)
        elif plan.node not in self.cluster.usage.nodes and not course.has_started:
            self._end(Outcome.CHANGED, f"node {plan.node} is gone", now)
        elif course.phase is not Phase.ASKING and not course.has_started:
            # A decision ahead may have reserved another place, and given it back.
            self._held.keep_for_waiting(plan, course.until)
            if course.are_gone and now >= self._nudge_at:
                self._wake(course, now)

    def _wake(self, course: Course, now: float) -> None:
        """Have kube-scheduler try the waiting pod, which has room now."""
        pod = self.cluster.pods.get(course.plan.pod.uid)
        if pod is None or pod.node:
            return
        self._nudge_at = now + NUDGE_S
        if pod.nominated != course.plan.node:
            # kube-scheduler took the nomination back when it tried the pod without success.
            self._actions.append(Nominate(pod.name, pod.uid, course.plan.node))
        self._actions.append(Nudge(pod.name, pod.uid))

    def _end(self, outcome: Outcome, why: str, now: float) -> None:
        course = self.course
        if course is None:
            return
        self.course = None
        self.ended[outcome] += 1
        for moved in course.plan.evicted[: course.evicted]:
            self._rest_moved(moved, now)
        self.last = _last_words(course, outcome, why)
        is_done = outcome is Outcome.DONE
        longest_s = max(LONGEST_PAUSE_S, self.limits.pause_s)
        self._pause_s = self.limits.pause_s if is_done else min(self._pause_s * 2, longest_s)
        self._pause_until = now + self._pause_s
        if is_done:
            return
        evicted = course.evicted
        # Pods in place of those that were evicted still get their places.
        self._held.end_moves(course.plan.moves[evicted:])
        pod = self.cluster.pods.get(course.plan.pod.uid)
        if pod is None or pod.node:
            return
        if course.phase is not Phase.ASKING:
            self._held.end(course.plan)
            self._actions.append(Nominate(pod.name, pod.uid, ""))
        self._actions.append(words.gave_up(course, outcome))

    def _rest_moved(self, pod: PodFacts, now: float) -> None:
        if len(self._moved) >= MOST_MOVED_OWNERS:
            self._moved = {owner: until for owner, until in self._moved.items() if until > now}
        self._moved[owner_of(pod)] = now + MOVED_S


def _last_words(course: Course, outcome: Outcome, why: str) -> str:
    plan = course.plan
    done = f"{course.evicted} of {len(plan.moves)} pods were evicted for pod {plan.pod.name}"
    return f"{outcome}: {done}: {why}" if why else f"{outcome}: {done}"
