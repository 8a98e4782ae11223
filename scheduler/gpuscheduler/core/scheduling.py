"""The scheduler's decisions: events and kube-scheduler's calls in, answers and actions out."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from gpuscheduler.core.calls import Action, BindRefused, BindWait, BindWrite, FilterAnswer, Nudge
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.decision_text import decision_annotations
from gpuscheduler.core.fit import Choice, fit
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.policy.fleet import Policy
from gpuscheduler.core.ranking import Ranking
from gpuscheduler.core.reasons import reasons
from gpuscheduler.core.victims import victims

RESERVED_S = 30.0
"""How long GPUs stay reserved for a pod that kube-scheduler does not bind."""
CONFIRMED_S = 60.0
"""How long GPUs stay reserved for a pod that was bound, until the watch shows it."""
REST_FIRST_S, REST_LIMIT_S = 30.0, 600.0
"""How long the scheduler passes over a node that refused a pod, for pods of its owner. Each refusal doubles it."""
MOST_CANDIDATES = 5
"""Nodes in an answer for a pod that states preferences among nodes."""
CLOSE = 0.01
"""Nodes within this part of the least cost are equally good for such a pod."""


class BindOutcome(Enum):
    """The result of a Binding."""

    BOUND = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    """No answer came: the API server may have bound the pod."""


@dataclass(slots=True)
class Reservation:
    """GPUs that are kept for a pod until the watch shows it bound.

    Attributes:
        pod: as kube-scheduler sent it.
        choices: node name to its GPUs there. kube-scheduler takes one of the nodes.
        until: monotonic seconds when it ends.
    """

    pod: PodFacts
    choices: dict[str, Choice]
    until: float


@dataclass(slots=True)
class _Rest:
    """A node that a pod's owner passes over."""

    until: float
    length_s: float
    ended: bool = False


class Scheduling:
    """The cluster as the API server shows it, and the reservations.

    Times are monotonic seconds. Nothing here raises for the content of a pod or a node: a request that cannot be served
    gets a reason.

    Attributes:
        usage: units in use on each node, reservations included.
        pods: by UID, the living pods that ask for GPUs.
        reservations: by UID.
        refusals: how many pods agents refused, by node.
    """

    def __init__(self, policy: Policy) -> None:
        self.usage = ClusterUsage()
        self.pods: dict[str, PodFacts] = {}
        self.reservations: dict[str, Reservation] = {}
        self.refusals: Counter[str] = Counter()
        self._ranking = Ranking(self.usage, policy)
        self._cpu: dict[str, tuple[str, float]] = {}
        self._rests: dict[tuple[str, str], _Rest] = {}

    def node_seen(self, node: NodeFacts) -> None:
        """Take a node as it is now."""
        former = self.usage.nodes.get(node.name)
        if former and former.facts != node:  # the reason of a refusal may be gone
            self._rests = {key: rest for key, rest in self._rests.items() if key[1] != node.name}
        self.usage.node_seen(node)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self.usage.node_gone(name)

    def pod_seen(self, pod: PodFacts, now: float) -> list[Action]:
        """Take a pod as it is now."""
        self._count_cpu(pod)
        if pod.request.kind is RequestKind.NONE:
            return []
        if pod.ended:
            if pod.refused and pod.uid in self.pods:
                self._rest(pod, now)
            return self.pod_gone(pod.uid, now)
        self.pods[pod.uid] = pod
        if pod.node:
            self.reservations.pop(pod.uid, None)
            for name in set(self.usage.nodes_of(pod.uid)) - {pod.node}:
                self.usage.release(pod.uid, name)
            self.usage.use(pod.uid, pod.node, pod.request if pod.used is None else pod.used)
        return []

    def pod_gone(self, uid: str, now: float) -> list[Action]:  # noqa: ARG002 (jobs need the time)
        """Forget a pod that was deleted or has ended."""
        if (cpu := self._cpu.pop(uid, None)) is not None:
            self.usage.use_cpu(cpu[0], -cpu[1])
        self.pods.pop(uid, None)
        self._forget(uid)
        return []

    def tick(self, now: float) -> list[Action]:
        """End reservations that lapsed. Have pods try again whose owners may use another node again."""
        for uid in [uid for uid, one in self.reservations.items() if one.until <= now]:
            self._forget(uid)
        owners = set()
        for (owner, _), rest in self._rests.items():
            if rest.until <= now and not rest.ended:
                rest.ended = True
                owners.add(owner)
        self._rests = {key: rest for key, rest in self._rests.items() if now < rest.until + REST_LIMIT_S}
        waiting = (pod for pod in self.pods.values() if not pod.node and pod.owner in owners)
        return [Nudge(pod.name, pod.uid) for pod in waiting]

    def next_due(self) -> float | None:
        """When `tick` has work next, in monotonic seconds; None if nothing lapses."""
        reserved = [one.until for one in self.reservations.values()]
        return min([*reserved, *[rest.until for rest in self._rests.values() if not rest.ended]], default=None)

    def filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """Choose the node for a pod among `names`, and reserve its GPUs there."""
        self._forget(pod.uid)
        request = pod.request
        if request.kind is RequestKind.NONE:
            return FilterAnswer(nodes=tuple(names))
        if request.problem:
            return FilterAnswer(unresolvable=dict.fromkeys(names, f"the pod {request.problem}"))
        choices: dict[str, Choice] = {}
        resting: dict[str, str] = {}
        limit = float("inf")
        for name, position, cost in self._ranking.nodes(request, pod.cpu, names):
            if cost > limit:
                break
            if rest := self._resting(pod, name, now):
                resting[name] = rest
            elif (choice := self._choice(pod, name, [position])) is not None:
                choices[name] = choice
                limit = min(limit, cost + CLOSE * abs(cost))
                if len(choices) == (MOST_CANDIDATES if pod.wishes else 1):
                    break
        if not choices:
            found = reasons(request, names, self.usage.nodes, resting)
            return FilterAnswer(failed=found.failed, unresolvable=found.unresolvable)
        self._reserve(Reservation(pod, choices, now + RESERVED_S))
        return FilterAnswer(nodes=tuple(choices))

    def bind(self, uid: str, node: str, now: float, wall_ns: int) -> BindWrite | BindWait | BindRefused:
        """The Binding of a pod to a node, with the GPUs that are reserved for it there, or others of that node.

        `wall_ns` is Unix nanoseconds, for the annotations.
        """
        reservation = self.reservations.get(uid)
        pod = reservation.pod if reservation else self.pods.get(uid)
        if pod is None:
            return BindRefused("the scheduler has not seen this pod yet; kube-scheduler tries it again")
        choice = reservation.choices.get(node) if reservation else None
        if choice is None:
            self._forget(uid)
            choice = self._choice(pod, node, ())
        if choice is None:
            return BindRefused(f"the GPUs of node {node} are taken by now; kube-scheduler tries the pod again")
        self._reserve(Reservation(pod, {node: choice}, now + CONFIRMED_S))
        annotations = decision_annotations(uid, choice, self.usage.nodes[node].facts.gpus, wall_ns)
        return BindWrite(pod.name, uid, node, annotations)

    def bound(self, uid: str, outcome: BindOutcome, now: float) -> list[Action]:  # noqa: ARG002 (jobs need the time)
        """Take the result of a Binding. A reservation for a pod that may be bound stays until the watch decides."""
        if outcome is BindOutcome.REFUSED:
            self._forget(uid)
        return []

    def preempt(self, pod: PodFacts, proposed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Choose victims by GPU. A node where evictions do not help is left out.

        Args:
            pod: the pod that waits.
            proposed: node name to the UIDs that kube-scheduler would evict there.
        """
        found: dict[str, list[str]] = {}
        for name, uids in proposed.items():
            node = self.usage.nodes.get(name)
            chosen = victims(pod.request, pod.priority, node, self.pods, uids) if node else None
            if node and chosen is not None:
                others = [uid for uid in uids if uid not in node.users]  # they have to go for CPU or memory
                found[name] = [*others, *sorted(chosen.difference(others))]
        return found

    def _choice(self, pod: PodFacts, name: str, preferred: Sequence[int]) -> Choice | None:
        node = self.usage.nodes.get(name)
        return fit(pod.request, node, preferred) if node else None

    def _reserve(self, reservation: Reservation) -> None:
        uid = reservation.pod.uid
        self._forget(uid)
        self.reservations[uid] = reservation
        for name, choice in reservation.choices.items():
            self.usage.use(uid, name, choice.used)

    def _forget(self, uid: str) -> None:
        """End the pod's reservation, if it has one; units of a pod that is bound stay counted."""
        self.reservations.pop(uid, None)
        pod = self.pods.get(uid)
        for name in list(self.usage.nodes_of(uid)):
            if pod is None or pod.node != name:
                self.usage.release(uid, name)

    def _count_cpu(self, pod: PodFacts) -> None:
        new = (pod.node, pod.cpu) if pod.node and pod.cpu and not pod.ended else None
        old = self._cpu.get(pod.uid)
        if new == old:
            return
        if old:
            self.usage.use_cpu(old[0], -old[1])
            del self._cpu[pod.uid]
        if new:
            self.usage.use_cpu(*new)
            self._cpu[pod.uid] = new

    def _rest(self, pod: PodFacts, now: float) -> None:
        self.refusals[pod.node] += 1
        former = self._rests.get((pod.owner, pod.node))
        length_s = min(former.length_s * 2, REST_LIMIT_S) if former else REST_FIRST_S
        self._rests[pod.owner, pod.node] = _Rest(now + length_s, length_s)

    def _resting(self, pod: PodFacts, name: str, now: float) -> str:
        rest = self._rests.get((pod.owner, name))
        return "it refused a pod of the same owner a moment ago" if rest and now < rest.until else ""
