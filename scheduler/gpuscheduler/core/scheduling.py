"""The scheduler's decisions: events and kube-scheduler's calls in, answers and actions out."""

from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from gpuscheduler.core.calls import Action, BindRefused, BindWait, BindWrite, FilterAnswer, Report
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.decision_text import decision_annotations
from gpuscheduler.core.fit import CALL_TRIES, Choice, Tries, fit, still_fits
from gpuscheduler.core.fragmentation import Fragmentation
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.jobs.job import JobKey
from gpuscheduler.core.jobs.jobs import Jobs
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.pod_facts import PodFacts, shared
from gpuscheduler.core.policy.fleet import CostPolicy
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.ranking import Ranking
from gpuscheduler.core.reasons import reasons
from gpuscheduler.core.reservations import Reservation, Reservations
from gpuscheduler.core.victims import victims
from gpuscheduler.core.waiting.cool_downs import CoolDowns
from gpuscheduler.core.waiting.hidden_reasons import HiddenReasons
from gpuscheduler.core.waiting.wake_ups import WakeUps

RESERVED_S = 30.0
"""How long GPUs stay reserved for a pod that kube-scheduler does not bind."""
CONFIRMED_S = 60.0
"""How long GPUs stay reserved for a pod that was bound, until the watch shows it."""
EVICTED_S = 30.0
"""How long no more pods are evicted for a pod whose victims were not seen to end."""
PREEMPT_TRIES = 2000
"""Tries of one preempt call. kube-scheduler proposes a hundred nodes or more; the first that help are enough."""
MOST_CANDIDATES = 5
"""Nodes in an answer for a pod that states preferences among nodes."""
MOST_WARMED = 16
"""Different requests whose nodes are rated at the start."""
CLOSE = 0.01
"""Nodes within this part of the least cost are equally good for such a pod."""
TOLD_A_TICK = 8
"""Pods that waited at the start whose reason one tick works out."""


class BindOutcome(Enum):
    """The result of a Binding."""

    BOUND = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    """No answer came: the API server may have bound the pod."""


class Scheduling:
    """The cluster as the API server shows it, and the reservations.

    Times are monotonic seconds. Nothing here raises for the content of a pod or a node: a request that cannot be served
    gets a reason.

    Args:
        policy: rates nodes and GPUs for a pod.
        mix: of the pods that come, by which `policy` rates; learned from the pods that are seen.
        schedulers: `spec.schedulerName` of the pods to place; empty for any. Pods of others count once they are bound.

    Attributes:
        usage: units in use on each node, reservations included.
        pods: by UID, the living pods that ask for GPUs.
        reservations: GPUs that are kept for pods that are not bound.
        jobs: of several pods.
        links: between the GPUs of nodes.
        refusals: how many pods agents refused, by node.
    """

    def __init__(self, policy: CostPolicy, mix: Mix | None = None, schedulers: Collection[str] = ()) -> None:
        self.usage = ClusterUsage()
        self.pods: dict[str, PodFacts] = {}
        self.links = Links()
        self.reservations = Reservations(self.usage, self.pods)
        self.jobs = Jobs(self.usage, self.reservations, self.links, self.pods)
        self.refusals: Counter[str] = Counter()
        self._ranking = Ranking(self.usage, policy, mix or Mix())
        self._schedulers = schedulers
        self._cool_downs = CoolDowns()
        self._wake_ups = WakeUps(self.usage, self.pods, self._fitting, self._cool_downs.of)
        self._fragmentation = Fragmentation()
        self._hidden_reasons = HiddenReasons(self.usage.nodes, self.jobs.why, self._fitting, self._cool_downs.of)
        self._cpu: dict[str, tuple[str, float]] = {}
        self._ended_members: list[PodFacts] = []
        self._unanswered: dict[str, Reservation] = {}
        self._evictions: dict[str, tuple[dict[str, list[str]], float]] = {}
        self._untold: list[str] = []
        self._ready = False

    def node_seen(self, node: NodeFacts) -> None:
        """Take a node as it is now."""
        former = self.usage.nodes.get(node.name)
        if former and former.facts == node:
            return
        if former:  # the reason of a refusal may be gone
            self._cool_downs.node_changed(node.name)
        self.usage.node_seen(node)
        for uid in node.held or ():
            pod = self.pods.get(uid)
            if pod and pod.node == node.name:
                self._count(self._as_decided(pod))

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self.usage.node_gone(name)

    def pod_seen(self, pod: PodFacts, now: float) -> None:
        """Take a pod as it is now, and for what was decided before: as it was then."""
        pod = self._as_decided(pod)
        self._count_cpu(pod)
        if pod.ended:
            if pod.refused and pod.uid in self.pods:
                self._rest(pod, now)
            member = bool(pod.node) and self.jobs.is_member(pod)
            if member and not self._ready:
                self._ended_members.append(pod)
            if member:
                self.jobs.pod_ended(pod, now)
            self._forget(pod.uid, now)
            return
        member = self.jobs.is_member(pod)
        self._leave_job(pod, now)
        if (pod.request.kind is RequestKind.NONE and not member) or self._is_of_another(pod):
            return
        if self._ready and pod.uid not in self.pods:
            self._learn(pod)
        if pod.node:
            self._wake_ups.forget(pod.uid)
            self._hidden_reasons.forget(pod.uid)
        self._count(pod)
        if member:
            self.jobs.pod_seen(pod, now)
        if self._ready:
            self.jobs.actions += self._hidden_reasons.seen(pod, now)

    def pod_gone(self, uid: str, now: float) -> None:
        """Forget a pod that was deleted."""
        self.jobs.ended_gone(uid)
        self._forget(uid, now)

    def _forget(self, uid: str, now: float) -> None:
        """Count a pod no longer, which was deleted or has ended."""
        if (cpu := self._cpu.pop(uid, None)) is not None:
            self.usage.use_cpu(cpu[0], -cpu[1])
        pod = self.pods.pop(uid, None)
        self._wake_ups.forget(uid)
        self._hidden_reasons.forget(uid)
        self.reservations.end([uid])
        self._unanswered.pop(uid, None)
        self._keep_freed(uid, now)
        if pod and self.jobs.is_member(pod):
            self.jobs.pod_gone(pod, now)

    def synced(self, now: float) -> None:
        """Answer calls from now on, as all nodes and pods were seen.

        Jobs that a former run bound in part keep their planned GPUs.
        """
        self._ready = True
        members = filter(self.jobs.is_member, self.pods.values())
        self.jobs.recover([*members, *self._ended_members], now)
        self._ended_members.clear()
        for pod in sorted(self.pods.values(), key=lambda pod: (pod.created, pod.uid)):
            self._learn(pod)
        asked = (pod for pod in self.pods.values() if pod.request.kind is not RequestKind.NONE)
        common = Counter((pod.request, pod.cpu) for pod in asked if not pod.request.problem)
        self._ranking.warm(one for one, _ in common.most_common(MOST_WARMED))
        for pod in self.pods.values():  # a former run may have refused them for GPUs that it reserved
            if not (pod.node or pod.gated or self.jobs.is_member(pod)):
                self._wake_ups.refused(pod.uid, now)
        self._untold = [uid for uid, pod in self.pods.items() if self._hidden_reasons.hides(pod)]
        for node in self.usage.nodes.values():
            _ = node.room  # or the first pod that fits nowhere waits for it
        self.usage.frees += 1

    def caught_up(self, now: float) -> None:
        """Go on where a former leader ended: jobs that it bound in part keep their planned GPUs."""
        self.jobs.recover(filter(self.jobs.is_member, self.pods.values()), now)

    def tick(self, now: float) -> None:
        """End reservations that lapsed. Have pods try again that fit by now."""
        self.reservations.lapse(now)
        self.usage.frees += self._cool_downs.end(now)
        self._tell_some(now)
        self.jobs.actions += self._wake_ups.wake(now)
        self.jobs.tick(now)

    def _tell_some(self, now: float) -> None:
        """Say why pods wait that were there at the start. Each may take a look at all nodes, and calls come between."""
        some = self._untold[:TOLD_A_TICK]
        self._untold = self._untold[TOLD_A_TICK:]
        for uid in some:
            if pod := self.pods.get(uid):
                self.jobs.actions += self._hidden_reasons.seen(pod, now)

    def next_due(self, now: float) -> float | None:
        """When `tick` has work next, in monotonic seconds; None if nothing is due."""
        if self._untold:
            return now
        parts = (self._cool_downs.next_end(), self.reservations.next_end(), self._wake_ups.next_due())
        others = [due for due in parts if due is not None]
        return min([*self.jobs.next_due(now), *others], default=None)

    def actions(self) -> list[Action]:
        """The actions since the last call of this, in order. Call it after every other call."""
        actions = list(self.jobs.actions)
        self.jobs.actions.clear()
        return actions

    def filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """Choose the node for a pod among `names`, and reserve its GPUs there."""
        if not self._ready:
            return FilterAnswer(error="the scheduler's extender has not read all nodes and pods yet")
        if pod.request.kind is RequestKind.NONE:
            return FilterAnswer(nodes=tuple(names))
        if self._is_of_another(pod):
            why = f"pod {pod.name} is of scheduler {pod.scheduler}, which --scheduler-name leaves out"
            return FilterAnswer(error=why)
        seen = self.pods.get(pod.uid)
        # One of the two may not have seen it yet.
        if pod.deleting or (seen and (seen.node or seen.deleting or _has_changed(seen, pod))):
            return FilterAnswer(error=f"pod {pod.name} has changed; kube-scheduler tries it again")
        if self.jobs.is_member(pod):
            return self.jobs.filter(pod, names, now)
        return self._filter(pod, names, now)

    def bind(self, uid: str, node: str, now: float, wall_ns: int) -> BindWrite | BindWait | BindRefused:
        """The Binding of a pod to a node, with the GPUs that are reserved for it there, or others of that node.

        `wall_ns` is Unix nanoseconds, for the annotations. On BindWait, call this again after every other call.
        """
        if not self._ready:
            return BindRefused("the scheduler's extender has not read all nodes and pods yet")
        reservation = self.reservations.get(uid)
        pod = self.pods.get(uid) or (reservation.pod if reservation else None)
        if pod is None:
            return BindRefused("the scheduler has not seen this pod yet; kube-scheduler tries it again")
        if pod.node:  # the API server answers whether it is bound there
            return BindWrite(pod.name, uid, node, {})
        if node not in self.usage.nodes:
            return BindRefused(f"node {node} has no GPUs any more; kube-scheduler tries the pod again")
        member = self.jobs.is_member(pod)
        choice = self.jobs.bind(pod, node, now) if member else self._reserved(pod, node)
        if not isinstance(choice, Choice):
            return choice
        visible = self.jobs.visible(pod, node) if member else ()
        self._unanswered[uid] = self.reservations.keep(pod, {node: choice}, now + CONFIRMED_S, sent=True)
        annotations = decision_annotations(uid, choice, self.usage.nodes[node].facts.gpus, wall_ns, visible)
        return BindWrite(pod.name, uid, node, annotations)

    def bound(self, uid: str, outcome: BindOutcome) -> None:
        """Take the result of a Binding. A reservation for a pod that may be bound stays until the watch decides."""
        pod = self.pods.get(uid)
        sent = self._unanswered.pop(uid, None)
        if outcome is BindOutcome.REFUSED and not (pod and self.jobs.is_member(pod)):
            self.reservations.end([uid])
        if outcome is not BindOutcome.BOUND:
            return
        self.reservations.bound(uid)
        if sent and pod and pod.node in sent.choices:  # the watch was faster than the answer
            self._count(self._with_held(_as_bound(pod, sent)))

    def committed(self, job: JobKey, now: float, *, written: bool) -> None:
        """Take the result of a CommitJob."""
        self.jobs.committed(job, now, written=written)

    def preempt(self, pod: PodFacts, proposed: Mapping[str, Sequence[str]], now: float) -> dict[str, list[str]]:
        """Choose victims by GPU. A node where evictions do not help is left out.

        Args:
            pod: the pod that waits.
            proposed: node name to the UIDs that kube-scheduler would evict there.
            now: monotonic seconds.
        """
        if pod.request.problem:
            return {}
        self._evictions = {uid: one for uid, one in self._evictions.items() if now < one[1]}
        former, _ = self._evictions.get(pod.uid, ({}, now))
        if (ending := former.get(pod.nominated)) and (
            self._choice(pod, pod.nominated) or not self.pods.keys().isdisjoint(ending)
        ):
            return {}  # kube-scheduler saw sooner that they are gone
        found: dict[str, list[str]] = {}
        tries = Tries(PREEMPT_TRIES)
        for name, uids in proposed.items():
            if tries.gave_up:  # the nodes so far are enough
                break
            node = self.usage.nodes.get(name)
            chosen = victims(pod, node, self.pods, uids, self.jobs.size, tries) if node else None
            if node and chosen is not None:
                free = node.facts.cpu - node.cpu_used + sum(self.pods[uid].cpu for uid in chosen if uid in self.pods)
                # Others have to go for CPU or memory; those with GPUs may have been proposed for the sum of GPUs alone.
                others = [uid for uid in uids if uid not in node.users or (node.facts.cpu and free < pod.cpu)]
                found[name] = [*others, *sorted(chosen.difference(others))]
        self._evictions[pod.uid] = found, now + EVICTED_S
        return found

    def fragmented_bytes(self, now: float) -> int:
        """Free bytes of memory on GPUs where no pod fits that asks for as much as one of the last hour."""
        return self._ranking.memory_without(self._fragmentation.demands(now))

    def _keep_freed(self, victim: str, now: float) -> None:
        """Reserve what a victim freed for the pod that it went for, until kube-scheduler tries that pod again."""
        for uid, (found, until) in self._evictions.items():
            pod = self.pods.get(uid)
            if pod is None or pod.node or until <= now or victim not in found.get(pod.nominated, ()):
                continue
            if choice := self._choice(pod, pod.nominated):
                self.reservations.keep(pod, {pod.nominated: choice}, now + RESERVED_S)

    def _is_of_another(self, pod: PodFacts) -> bool:
        """Whether another scheduler places the pod, which has not done so yet."""
        return bool(self._schedulers) and not pod.node and pod.scheduler not in self._schedulers

    def _filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """The answer for a pod that is no member of a job."""
        request = pod.request
        if doubt := self._in_doubt(pod.uid):
            return FilterAnswer(nodes=(doubt,)) if doubt in names else FilterAnswer(error=_may_be_on(doubt))
        self.reservations.end([pod.uid])
        if request.problem:
            return FilterAnswer(unresolvable=dict.fromkeys(names, f"the pod {request.problem}"))
        self._fragmentation.asked(request, now)
        resting = self._resting(pod, now)
        tries = Tries()
        if choices := self._choices(pod, names, resting, tries):
            self.reservations.keep(pod, choices, now + RESERVED_S)
            self._wake_ups.forget(pod.uid)
            return FilterAnswer(nodes=tuple(choices))
        self._wake_ups.refused(pod.uid, now, again=tries.gave_up)
        found = reasons(request, names, self.usage.nodes, resting)
        if tries.gave_up:
            text = _gave_up(request)
            found.failed = {name: resting.get(name, text) for name in found.failed}
        short = [self.usage.nodes[name] for name in found.failed if name not in resting]
        if warning := self._fragmentation.advise(pod, short, self.pods, now):
            self.jobs.actions.append(warning)
        cause = "fragmented" if found.failed and self._ranking.has_in_all(request) else ""
        return FilterAnswer(failed=found.failed, unresolvable=found.unresolvable, cause=cause)

    def _reserved(self, pod: PodFacts, node: str) -> Choice | BindRefused:
        """The GPUs that are reserved for a pod on a node, or others that are free there."""
        reservation = self.reservations.get(pod.uid)
        choice = reservation.choices.get(node) if reservation else None
        if choice and still_fits(pod.request, self.usage.nodes[node], choice):
            return choice
        if doubt := self._in_doubt(pod.uid):
            return BindRefused(_may_be_on(doubt))
        self.reservations.end([pod.uid])
        refused = BindRefused(f"the GPUs of node {node} are taken by now; kube-scheduler tries the pod again")
        return self._choice(pod, node) or refused

    def _in_doubt(self, uid: str) -> str:
        """The node to which the API server may have bound the pod, although the watch does not show it; or empty.

        The pod's GPUs there must stay reserved, so it cannot have others.
        """
        reservation = self.reservations.get(uid)
        return next(iter(reservation.choices)) if reservation and reservation.sent else ""

    def _choices(
        self, pod: PodFacts, names: Collection[str], resting: Container[str], tries: Tries
    ) -> dict[str, Choice]:
        """The best node with the pod's GPUs there; up to `MOST_CANDIDATES` for a pod that states preferences."""
        found: dict[str, Choice] = {}
        limit = float("inf")
        too_full: list[str] = []
        alike_full: set[Hashable] = set()
        for name, position, cost in self._ranking.nodes(pod.request, pod.cpu, names):
            if cost > limit or len(found) == (MOST_CANDIDATES if pod.wishes else 1):
                break
            if name in resting:
                continue
            alike = self.usage.nodes[name].alike()
            choice = None
            if alike not in alike_full:
                choice = self._choice(pod, name, [position], tries)
            if choice is not None:
                found[name] = choice
                limit = min(limit, cost + CLOSE * abs(cost))
            elif tries.spend():
                too_full.append(name)
                alike_full.add(alike)
            else:
                break
        self._ranking.no_room(pod.request, pod.cpu, too_full)
        return found

    def _fitting(self, pod: PodFacts, now: float) -> Iterator[str]:
        """Names of the nodes where a pod may fit, best first."""
        resting = self._cool_downs.of(pod, now)
        for name, _, _ in self._ranking.nodes(pod.request, pod.cpu, self.usage.nodes):
            if name not in resting:
                yield name

    def _choice(
        self, pod: PodFacts, name: str, preferred: Sequence[int] = (), tries: Tries | None = None
    ) -> Choice | None:
        node = self.usage.nodes.get(name)
        return fit(pod.request, node, preferred, links=self.links, tries=tries) if node else None

    def _as_decided(self, pod: PodFacts) -> PodFacts:
        """A bound pod with what was decided for it, which stands until the pod is gone.

        Its author may edit annotations and labels while it runs. None of that changes the devices that it has, so it
        must not change what others get. The agent's word on the Node comes first, because no tenant can write Nodes.
        Then comes what the API server has bound for this scheduler, then the first decision that was seen on the bound
        pod. A Binding that was sent is not enough: that of a former leader, or of another scheduler, may have been
        faster, and the agent follows that one.
        """
        # Nothing was decided for a pod that asks for no GPUs. It counts for the job that its label names now.
        if not pod.node or pod.request.kind is RequestKind.NONE:
            return pod
        former = self.pods.get(pod.uid)
        if former and former.node:
            later = pod
            pod = replace(pod, request=former.request, job=former.job, used=former.used)
            node = self.usage.nodes.get(pod.node)
            if pod.used is None and not (node and node.facts.held is not None):
                # No agent of this node publishes what pods hold. So another plugin may name the GPUs afterwards.
                pod = replace(pod, used=later.used if later.request == pod.request else None)
        elif (reservation := self.reservations.get(pod.uid)) and reservation.bound and pod.node in reservation.choices:
            pod = _as_bound(pod, reservation)
        return self._with_held(pod)

    def _with_held(self, pod: PodFacts) -> PodFacts:
        """The bound pod with what it holds according to the agent of its node, where the agent says it."""
        node = self.usage.nodes.get(pod.node)
        held = node.facts.held.get(pod.uid) if node and node.facts.held else None
        return pod if held is None else replace(pod, used=held)

    def _count(self, pod: PodFacts) -> None:
        """Keep the pod, and count what it uses if it is bound."""
        self.pods[pod.uid] = pod
        if not pod.node:
            return
        self.reservations.end([pod.uid])
        if pod.used is not None:
            self.usage.use(pod.uid, pod.node, pod.used)
        elif pod.request.kind.gives_gpus:  # else it would keep whole GPUs, and places on shared ones, from others
            self.usage.use(pod.uid, pod.node, pod.request)

    def _learn(self, pod: PodFacts) -> None:
        """Count a pod in the mix of pods, by which policies rate nodes."""
        if pod.request.kind is not RequestKind.NONE and not pod.request.problem:
            self._ranking.learn(pod.request, pod.cpu)

    def _leave_job(self, pod: PodFacts, now: float) -> None:
        """Forget what a pod was to its job, and what is reserved for it, if its labels were changed."""
        former = self.pods.get(pod.uid)
        if former is None:
            return
        asks_for_others = not pod.node and former.request != pod.request
        if former.job != pod.job or asks_for_others:
            self.jobs.pod_gone(former, now)
            self.reservations.give_back([pod.uid])

    def _count_cpu(self, pod: PodFacts) -> None:
        new = shared((pod.node, pod.cpu)) if pod.node and pod.cpu and not pod.ended else None
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
        length_s = self._cool_downs.refused(pod, now)
        text = f"Node {pod.node} refused the pod. Pods of its owner avoid the node for {length_s:.0f} s."
        self.jobs.actions.append(Report(pod.name, pod.uid, "NodeAvoided", text))

    def _resting(self, pod: PodFacts, now: float) -> dict[str, str]:
        """Names of the nodes that the pod's owner passes over, and why."""
        return dict.fromkeys(self._cool_downs.of(pod, now), "it refused a pod of the same owner a moment ago")


def _as_bound(pod: PodFacts, reservation: Reservation) -> PodFacts:
    """The pod with what the API server has bound it with."""
    return replace(pod, request=reservation.pod.request, used=reservation.choices[pod.node].used)


def _gave_up(request: GpuRequest) -> str:
    containers = sum(len(group.containers) for group in request.groups)
    return f"no room was found in {CALL_TRIES} tries for {containers} containers that need several GPUs"


def _has_changed(pod: PodFacts, other: PodFacts) -> bool:
    """Whether the labels of a pod, which its author may edit while it waits, ask for something else."""
    return (pod.job, pod.request) != (other.job, other.request)


def _may_be_on(node: str) -> str:
    return f"the API server may have bound the pod to node {node}; kube-scheduler tries the pod again"
