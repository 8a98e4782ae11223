"""Decides on single pods before kube-scheduler asks about them.

kube-scheduler tries the node first for which a pod is nominated. If it accepts that node, it looks at no other, which
saves it most of its work in a large cluster. So while pods wait in its queue, the next ones in line are decided,
reserved and nominated beside it. Its filter call then confirms the decision.

A decision holds GPUs for a pod that kube-scheduler has not asked about yet, so it is short and gives way: at most
`most` pods have one, for `held_s` seconds, and it is taken back if a pod that kube-scheduler asks about needs the
GPUs. A pod gets at most one in its life. What was not confirmed counts against its namespace, because its tenant may
have written a pod that fits on no node.

kube-scheduler takes pods by priority, then in the order in which its watch showed them, which is also that of this
watch. Only of pods that were there before it or this process started is the order unknown. While such pods wait,
nothing is decided.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from gpuscheduler.core.calls import Action, Nominate
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.single_pods.pauses import Pauses

DECIDED_A_TICK = 4
"""Decisions of one tick, between which no call is answered."""
MOST_SURPRISES = 4.0
"""Calls about pods further back in line, less those about the next ones, until the order counts as unknown."""
REFUSALS = 3
"""Nominations of one kind that kube-scheduler refuses in a row until pods of that kind pause."""
LEAD_STEP = 1.0
"""Pods that are added to the lead when kube-scheduler asks about a pod before it sees the nomination."""
LEAD_FALL = 0.125
"""Pods that are taken off the lead when it has seen the nomination in time."""

Place = tuple[str, Choice]
"""Node and GPUs."""


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """When and how far ahead pods are decided.

    Attributes:
        nodes: with at most as many nodes nothing is decided. kube-scheduler looks at few then, which costs no more
            processor time than a nomination does (measured).
        least_lead: pods in front of the first that is decided, at least. kube-scheduler asks about the first ones
            before it could see a nomination.
        most_lead: the same, at most, so that there is always a pod that is decided.
        most: pods in line that are looked at, and may have a decision, at one time.
        held_s: how long GPUs are kept for a pod that kube-scheduler does not ask about.
    """

    nodes: int = 500
    least_lead: int = 4
    most_lead: int = 32
    most: int = 64
    held_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Near:
    """A pod about which kube-scheduler asks soon.

    Attributes:
        until: monotonic seconds when this ends, at the latest.
        unscheduled: what kube-scheduler said about it before.
        node: that was decided; empty if nothing was.
    """

    until: float
    unscheduled: str
    node: str = ""


class Ahead:
    """The pods in line.

    Args:
        limits: when and how far ahead pods are decided.
        usage: nodes and their users.
        reservations: of all pods.
        pods: by UID, as the watch shows them.
        best: node and GPUs for a pod at a time; None if there are none.
        actions: to carry out; nominations are added.
    """

    def __init__(  # noqa: PLR0913 (what a decision is made of)
        self,
        limits: AheadLimits,
        usage: ClusterUsage,
        reservations: Reservations,
        pods: Mapping[str, PodFacts],
        best: Callable[[PodFacts, float], Place | None],
        actions: list[Action],
    ) -> None:
        self._limits = limits
        self._usage = usage
        self._reservations = reservations
        self._pods = pods
        self._best = best
        self._actions = actions
        self._line: list[tuple[int, int, str]] = []
        self._in_line: set[str] = set()
        self._numbers = count()
        self._near: dict[str, _Near] = {}
        self._decided = 0
        self._unordered: set[str] = set()
        self._unordered_until = float("-inf")
        self._surprises = 0.0
        self._lead = float(limits.least_lead)
        self._schedulers: set[str] = set()
        self._called_at = float("-inf")
        self._pauses = Pauses()

    # -- what the watch shows --------------------------------------------------------------------------------------

    def seen(self, pod: PodFacts, former: PodFacts | None, now: float) -> None:
        """Take a pod as it is now; `former` is as it was seen before, None if it is new."""
        was_ungated = former is not None and former.gated and not pod.gated
        if pod.node:
            self.forget(pod.uid)
        elif former is None or was_ungated:
            self._came(pod)
        else:
            self._changed(pod, now)

    def _came(self, pod: PodFacts) -> None:
        """Take a pod that waits from now on, in the order in which kube-scheduler sees it, too."""
        is_small = len(self._usage.nodes) <= self._limits.nodes
        if is_small or not _may_wait(pod):
            return
        # kube-scheduler takes the highest priority first, then the pod that it has known for longest.
        heapq.heappush(self._line, (-pod.priority, next(self._numbers), pod.uid))
        self._in_line.add(pod.uid)
        is_mostly_old = len(self._line) > 2 * len(self._in_line) + self._limits.most
        if is_mostly_old:
            self._line = [entry for entry in self._line if entry[-1] in self._in_line]
            heapq.heapify(self._line)

    def was_there(self, pod: PodFacts) -> None:
        """Take a pod that waited before this process began, about which kube-scheduler asks in an unknown order."""
        self._unordered.add(pod.uid)

    def _changed(self, pod: PodFacts, now: float) -> None:
        """Take a pod in line as it is now, and end its decision if kube-scheduler will not ask about it."""
        if pod.unscheduled or not _may_wait(pod):
            self._unordered.discard(pod.uid)
        near = self._near.get(pod.uid)
        if near is None:
            return
        # It says so if its own checks find no node, or none that the extender takes.
        is_tried = pod.unscheduled != near.unscheduled
        if is_tried:
            self._unconfirmed(pod, now)
        elif not _may_wait(pod):
            self.withdraw(pod)

    def withdraw(self, pod: PodFacts) -> None:
        """End what was decided for a pod, and its nomination: kube-scheduler counts nominated pods on their nodes."""
        was_decided = self.has(pod.uid)
        self.forget(pod.uid)
        if not was_decided:
            return
        self._reservations.give_back([pod.uid])
        if not pod.deleting:
            self._actions.append(Nominate(pod.name, pod.uid, ""))

    def forget(self, uid: str) -> None:
        """Take that a pod is bound or gone, or changed what it asks for."""
        self._in_line.discard(uid)
        self._unordered.discard(uid)
        near = self._near.pop(uid, None)
        self._decided -= bool(near and near.node)

    def give_all_back(self) -> None:
        """End all decisions, as another scheduler has led since."""
        for uid in list(self._near):
            self.withdraw(self._pods[uid])

    # -- calls -----------------------------------------------------------------------------------------------------

    def called(self, pod: PodFacts, now: float) -> None:
        """Take that kube-scheduler asks about a pod. Its calls tell which schedulers' pods it places, and the order."""
        self._schedulers.add(pod.scheduler)
        self._called_at = now
        if pod.uid in self._near or self._is_first(pod.uid):
            self._surprises = max(self._surprises - 1, 0.0)
        elif pod.uid in self._in_line:
            self._surprises += 1
        elif pod.uid in self._unordered:
            self._unordered_until = now + self._limits.held_s
        if self._surprises >= MOST_SURPRISES:
            # kube-scheduler started again, and reads all pods in an order of its own.
            self._lose_order(now)

    def confirmed(self, pod: PodFacts, names: Collection[str], now: float) -> str:
        """The node that was decided for a pod, if it is one of `names`; otherwise empty. The decision ends."""
        near = self._near.get(pod.uid)
        self.forget(pod.uid)
        if near is None or not near.node:
            return ""
        if near.node in names:
            self._pauses.end(_kind(pod))
            self._lead = max(self._lead - LEAD_FALL, self._limits.least_lead)
            return near.node
        if pod.nominated == near.node:
            # kube-scheduler knows a reason against the node, such as a taint, which pods of the same kind share.
            self._pauses.count(_kind(pod), now, most=REFUSALS)
        else:
            # The nomination came too late.
            self._lead = min(self._lead + LEAD_STEP, self._limits.most_lead)
        return ""

    def behind(self, pod: PodFacts) -> Iterator[tuple[str, list[str]]]:
        """Nodes with the UIDs of pods that are decided for them and behind this one in line, the last in line first."""
        nodes: dict[str, list[str]] = {}
        for uid, near in reversed(self._near.items()):
            other = self._pods.get(uid)
            if near.node and other and other.priority <= pod.priority:
                nodes.setdefault(near.node, []).append(uid)
        yield from nodes.items()

    def take_back(self, uids: Collection[str]) -> None:
        """End the decisions for these pods."""
        for uid in uids:
            self.withdraw(self._pods[uid])

    def wants(self, nomination: Nominate) -> bool:
        """Whether a nomination is still of use; those of others are."""
        near = self._near.get(nomination.uid)
        return not nomination.ahead or (near is not None and near.node == nomination.node)

    def has(self, uid: str) -> bool:
        """Whether a pod has a decision."""
        near = self._near.get(uid)
        return near is not None and bool(near.node)

    def __len__(self) -> int:
        """How many pods have a decision."""
        return self._decided

    # -- what is due -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End decisions that were not confirmed in time. Decide on the next pods in line."""
        over = [uid for uid, near in self._near.items() if near.until <= now]
        for uid in over:
            self._unconfirmed(self._pods[uid], now)
        decided = 0
        while self._may_decide(now) and decided < DECIDED_A_TICK:
            _, _, uid = heapq.heappop(self._line)
            if uid in self._in_line:
                self._in_line.discard(uid)
                decided += self._decide(self._pods[uid], now)

    def next_due(self, now: float) -> float | None:
        """When `tick` has work, in monotonic seconds; None if nothing is due."""
        if self._may_decide(now):
            return now
        # Each is kept for as long as the others, so that the first one ends first.
        return next((near.until for near in self._near.values()), None)

    def _is_first(self, uid: str) -> bool:
        """Whether a pod is the first in line: kube-scheduler may ask about many before a tick looks at the line."""
        while self._line and self._line[0][-1] not in self._in_line:
            heapq.heappop(self._line)
        return bool(self._line) and self._line[0][-1] == uid

    def _may_decide(self, now: float) -> bool:
        # While no calls come, another scheduler leads, or kube-scheduler has nothing to ask about.
        is_asked = now - self._called_at < self._limits.held_s
        # Some of them may never be asked about. So they count only while others of them are.
        is_ordered = len(self._unordered) <= self._lead or now >= self._unordered_until
        has_room = len(self._near) < self._limits.most
        return bool(self._line) and is_asked and is_ordered and has_room

    def _decide(self, pod: PodFacts, now: float) -> bool:
        """Decide on the next pod in line, if it may be; whether its place was searched."""
        if pod.scheduler not in self._schedulers or not _may_wait(pod):
            return False
        until = now + self._limits.held_s
        # kube-scheduler would ask about the first ones before it sees the nomination.
        is_first = len(self._near) + len(self._unordered) < self._lead
        has_place = self._reservations.get(pod.uid) is not None
        # What is not decided counts in line as well.
        self._near[pod.uid] = _Near(until, pod.unscheduled)
        if is_first or has_place or not _may_be_decided(pod) or self._pauses.any(_kinds(pod), now):
            return False
        place = self._best(pod, now)
        if place is None:
            return True
        node, choice = place
        self._reservations.keep(pod, {node: choice}, until)
        self._near[pod.uid] = _Near(until, pod.unscheduled, node)
        self._decided += 1
        self._actions.append(Nominate(pod.name, pod.uid, node, ahead=True))
        return True

    def _unconfirmed(self, pod: PodFacts, now: float) -> None:
        """End a decision for a pod about which kube-scheduler has not asked."""
        if self._near[pod.uid].node:
            self._pauses.count((pod.name.namespace, ""), now, most=1)
        self.withdraw(pod)

    def _lose_order(self, now: float) -> None:
        """Decide nothing until kube-scheduler has asked about the pods that are in line now."""
        self._surprises = 0.0
        in_line = {*self._in_line, *self._near}
        self.give_all_back()
        self._in_line.clear()
        self._line.clear()
        self._unordered |= in_line
        self._unordered_until = now + self._limits.held_s


def _kind(pod: PodFacts) -> tuple[str, str]:
    """Pods of one controller, or all pods of a namespace that have none, which are refused for the same reasons."""
    has_controller = pod.owner != pod.uid
    return pod.name.namespace, pod.owner if has_controller else "-"


def _kinds(pod: PodFacts) -> tuple[tuple[str, str], tuple[str, str]]:
    return (pod.name.namespace, ""), _kind(pod)


def _may_wait(pod: PodFacts) -> bool:
    """Whether kube-scheduler may ask about the pod."""
    return not (pod.node or pod.deleting or pod.gated)


def _may_be_decided(pod: PodFacts) -> bool:
    """Whether kube-scheduler is likely to accept the best node, and to find no other better."""
    if pod.nominated or not _may_wait(pod):
        # A nominated pod may wait for pods that are evicted for it.
        return False
    if len(pod.request.groups) > 1 or pod.request.problem:
        # A search for several containers takes long.
        return False
    rules = pod.rules
    are_simple = rules.are_light and not rules.depend_on_pods and not rules.unread
    return are_simple and not pod.has_preferences and not pod.has_claims
