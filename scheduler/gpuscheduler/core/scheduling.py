"""The scheduler's decisions: events and kube-scheduler's calls in, answers and actions out.

The watch shows nodes, pods, and the objects that say which pods belong together. kube-scheduler calls about one pod at
a time. Its filter call is answered with the node on which GPUs are reserved for the pod, its bind call with a Binding
that names them, and its preempt call with the pods to evict. `tick` does what is due. What has to be written besides is
kept as actions, which the caller takes and carries out.

A pod either starts alone (`single_pods`) or with the others of its job (`jobs`). Most methods here find out which, and
tell the parts in the right order. The parts decide, and keep what they need for that.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Container, Mapping, Sequence
from heapq import nsmallest

from gpuagent.domain.fleet.node_summary import NodeReading
from gpuscheduler.core.bindings import Bindings
from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.calls import (
    Action,
    BindOutcome,
    BindRefused,
    BindWait,
    BindWrite,
    EvictOutcome,
    FilterAnswer,
    Nominate,
    Ungate,
)
from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES, ClusterUsage
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.defragment.budgets import Budgets
from gpuscheduler.core.defragment.defragmentation import Defragmentation, DefragmentLimits
from gpuscheduler.core.defragment.surroundings import Surroundings
from gpuscheduler.core.gangs.gang_object import GangObject, ObjectKey
from gpuscheduler.core.gangs.gang_objects import GangObjects
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.jobs.job import JobKey
from gpuscheduler.core.jobs.jobs import NO_LIMITS, JobLimits, Jobs
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.pod_facts import PodEnd, PodFacts
from gpuscheduler.core.policy.fleet import CostPolicy
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.ranking import Ranking
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.single_pods.ahead import AheadLimits
from gpuscheduler.core.single_pods.placeholders import Look, Placeholders
from gpuscheduler.core.single_pods.preemption import Preemption
from gpuscheduler.core.single_pods.scores import scores
from gpuscheduler.core.single_pods.single_pods import SinglePods
from gpuscheduler.core.waiting.cool_downs import CoolDowns
from gpuscheduler.core.waiting.group_cycles import GroupCycles
from gpuscheduler.core.waiting.hidden_reasons import HiddenReasons
from gpuscheduler.core.waiting.other_schedulers import OtherSchedulers
from gpuscheduler.core.waiting.pod_changes import has_changed, is_elsewhere
from gpuscheduler.core.waiting.scheduler_names import SchedulerNames

MOST_FOR_A_MEMBER = 16
"""Nodes that are answered where pods may be evicted for a pod of a job. In the end, pods are evicted on all nodes of
the job, so that there is little to choose."""
MOST_RESOLVED = 50
"""Pods of a tick that are taken again because an object has changed, which may have thousands."""
MEMBERS_A_POD = 50
"""Members of a job that are looked through in the time of one such pod."""


class Scheduling:
    """The cluster as the API server shows it, and the reservations.

    Times are monotonic seconds. Nothing here raises for the content of a pod or a node: a request that cannot be served
    gets a reason.

    Args:
        policy: rates nodes and GPUs for a pod.
        mix: of the pods that come, by which `policy` rates; learned from the pods that are seen.
        schedulers: `spec.schedulerName` of the pods to place; empty for any. Pods of others count once they are bound.
        ahead: when and how far ahead pods are decided before kube-scheduler asks about them.
        job_limits: what the operator sets for jobs.
        defragment: whether pods may be moved so that others start, and how many.
        min_feasible: of kube-scheduler, see `MIN_FEASIBLE_NODES`.

    Attributes:
        usage: units in use on each node, reservations included.
        readings: by name, what the Node objects say to people, also of nodes that offer no GPUs.
        pods: by UID, the living pods that ask for GPUs.
        scheduler_names: which pods are placed here.
        others: pods that wait for another scheduler.
        reservations: GPUs that are kept for pods that are not bound.
        jobs: of several pods.
        gang_objects: which say what pods belong together.
        links: between the GPUs of nodes.
        refusals: how many pods agents refused, by node.
        ahead: pods that are decided before kube-scheduler asks about them.
        budgets: PodDisruptionBudgets.
        defragmentation: moves pods so that others start.
    """

    def __init__(  # noqa: PLR0913 (by name)
        self,
        policy: CostPolicy,
        mix: Mix | None = None,
        schedulers: Collection[str] = (),
        ahead: AheadLimits | None = None,
        job_limits: JobLimits = NO_LIMITS,
        defragment: DefragmentLimits | None = None,
        min_feasible: int = MIN_FEASIBLE_NODES,
    ) -> None:
        self.usage = ClusterUsage(min_feasible)
        self.readings: dict[str, NodeReading] = {}
        self.pods: dict[str, PodFacts] = {}
        self.links = Links()
        self.scheduler_names = SchedulerNames(schedulers)
        self.others = OtherSchedulers(self.scheduler_names)
        self.gang_objects = GangObjects(ChainMap(self.pods, self.others.kept))
        self.reservations = Reservations(self.usage, self.pods)
        self.jobs = Jobs(self.usage, self.reservations, self.links, self.pods, job_limits, self.others)
        self.refusals: Counter[str] = Counter()
        self._actions = self.jobs.actions
        self._ranking = Ranking(self.usage, policy, mix or Mix())
        self._cool_downs = CoolDowns()
        self._single_pods = SinglePods(
            self.usage,
            self.reservations,
            self.links,
            self.pods,
            self._ranking,
            self._cool_downs,
            self.jobs.precedence,
            self._actions,
            ahead or AheadLimits(),
        )
        self.ahead = self._single_pods.ahead
        self.jobs.plan_over(self.ahead)
        self._wake_ups = self._single_pods.wake_ups
        self._hidden_reasons = HiddenReasons(
            self.usage.nodes, self.jobs.why, self._single_pods.fitting, self._single_pods.passed_over
        )
        self._preemption = Preemption(
            self.usage,
            self.reservations,
            self.pods,
            self.jobs.ending,
            self._single_pods.choice,
        )
        self._bound_pods = BoundPods(self.usage, self.reservations, self.pods)
        self._bindings = Bindings(self.usage, self.reservations, self.jobs, self._single_pods, self._bound_pods)
        self.budgets = Budgets()
        surroundings = Surroundings(
            self.usage,
            self.links,
            self._ranking,
            self.pods,
            self.budgets,
            self._single_pods.passed_over,
            self._why_not_moved,
        )
        self.defragmentation = Defragmentation(
            defragment or DefragmentLimits(),
            surroundings,
            self.reservations,
            self._actions,
        )
        self._placeholders = Placeholders(self.usage.nodes, self.pods, self._waits_alone)
        self._group_cycles = GroupCycles()
        self._ended_members: list[PodFacts] = []
        self._ready = False

    # -- nodes -----------------------------------------------------------------------------------------------------

    def node_seen(self, node: NodeFacts) -> None:
        """Take a node as it is now."""
        former = self.usage.nodes.get(node.name)
        if former and former.facts == node:
            return
        if former:
            # The reason of a refusal may be gone.
            self._cool_downs.node_changed(node.name)
        self.usage.node_seen(node)
        for uid in node.held or ():
            pod = self.pods.get(uid)
            if pod and pod.node == node.name:
                self._bound_pods.count(self._bound_pods.as_decided(pod))

    def site_seen(self, site: NodeSite) -> None:
        """Take a node without GPUs as it is now, because pods are spread over these, too."""
        self.usage.site_seen(site)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self.usage.node_gone(name)

    # -- pods, and what says which of them belong together ---------------------------------------------------------

    def pod_seen(self, pod: PodFacts, now: float) -> None:
        """Take a pod as it is now, and for what was decided before: as it was then."""
        pod = self._bound_pods.as_decided(pod)
        self._forget_if_served_by_claim(pod, now)
        self.gang_objects.seen_beside(pod)
        pod = self.gang_objects.resolved(pod)
        self._bound_pods.count_requests(pod)
        if pod.ended:
            self._pod_ended(pod, now)
            return
        self._show_of_another(pod, now)
        is_member = self.jobs.is_member(pod)
        self._leave_job(pod, now)
        self._let_in(pod)
        asks_for_nothing = pod.request.kind is RequestKind.NONE and not self._counts_without_gpus(pod)
        if asks_for_nothing or self.scheduler_names.leave_out(pod):
            return
        former = self.pods.get(pod.uid)
        self.gang_objects.keep(pod, former)
        if self._ready and former is None:
            self._ranking.learn(pod.request, pod.cpu, pod.models)
        self._end_wait(pod)
        self._bound_pods.count(pod)
        self.jobs.precedence.endings.seen(pod, now)
        is_new_there = bool(pod.node) and (former is None or not former.node)
        if is_new_there:
            self.jobs.precedence.taken(pod)
        if former is None:
            self._wake_ups.came(pod.uid)
        self.defragmentation.pod_seen(pod, now, is_new=former is None)
        if is_member:
            # An object may say later than its pods that these start together.
            self.ahead.withdraw(pod)
            self.jobs.pod_seen(pod, now)
        elif self._ready:
            self.ahead.seen(pod, former, now)
        if self._ready:
            self._actions += self._hidden_reasons.seen(pod, now)

    def _forget_if_served_by_claim(self, pod: PodFacts, now: float) -> None:
        """Forget a pod that waited for GPUs in its limits, if kube-scheduler has made a claim for them meanwhile."""
        former = self.pods.get(pod.uid)
        if former is None:
            return
        wanted_gpus = former.request.kind is not RequestKind.NONE
        if wanted_gpus and pod.request.kind is RequestKind.NONE:
            self._forget(pod.uid, now)

    def _let_in(self, pod: PodFacts) -> None:
        """Take our scheduling gate off a pod that waits for no others. Its author may not know that it is alone."""
        if not self._is_kept_in_vain(pod):
            return
        former = self.pods.get(pod.uid)
        if former is None or not self._is_kept_in_vain(former):
            self._actions.append(Ungate(pod.name, pod.uid))

    def _is_kept_in_vain(self, pod: PodFacts) -> bool:
        """Whether our gate alone keeps a pod back, and no other pod that comes takes it off."""
        return pod.has_our_gate_only and not self.jobs.is_member(pod) and not self.scheduler_names.leave_out(pod)

    def _pod_ended(self, pod: PodFacts, now: float) -> None:
        """Count a pod no longer that succeeded or failed."""
        if pod.end is PodEnd.REFUSED and pod.uid in self.pods:
            self.refusals[pod.node] += 1
            self._single_pods.node_refused(pod, now)
        if pod.node and self.jobs.is_member(pod):
            if not self._ready:
                self._ended_members.append(pod)
            self.jobs.pod_ended(pod, now)
        self._forget(pod.uid, now)

    def gang_seen(self, found: GangObject) -> None:
        """Take an object that says which pods belong together. `tick` takes these pods again."""
        self.gang_objects.seen(found)

    def gang_gone(self, key: ObjectKey, uid: str) -> None:
        """Forget such an object."""
        self.gang_objects.gone(key, uid)

    def gangs_readable(self, kind: ObjectKind, problem: str) -> None:
        """Take why no objects of a kind can be seen; empty if they can."""
        self.gang_objects.readable(kind, problem)

    def pod_gone(self, uid: str, now: float) -> None:
        """Forget a pod that was deleted."""
        self.jobs.ended_gone(uid, now)
        self._forget(uid, now)

    def _forget(self, uid: str, now: float) -> None:
        """Count a pod no longer, which was deleted or has ended."""
        self._bound_pods.forget_requests(uid)
        self.gang_objects.gone_beside(uid)
        self.ahead.forget(uid)
        pod = self.pods.pop(uid, None)
        self._forget_of_another(uid)
        self._no_longer_waits(uid)
        self.reservations.end([uid])
        self._bindings.forget(uid)
        self.jobs.precedence.endings.forget(uid)
        self._preemption.keep_freed(uid, now)
        self.defragmentation.pod_gone(uid, now)
        if pod:
            self.gang_objects.forget(pod)
        if pod and self.jobs.is_member(pod):
            self.jobs.pod_gone(pod, now)

    def _end_wait(self, pod: PodFacts) -> None:
        """Take that a pod is on a node, or will not be on one."""
        if pod.node:
            self._no_longer_waits(pod.uid)
        elif pod.deleting:
            # The API server binds no such pod, which may stay for long: until others have removed its finalizers.
            self.reservations.give_back([pod.uid])

    def _no_longer_waits(self, uid: str) -> None:
        """Take that a pod is on a node, or gone."""
        self._group_cycles.forget(uid)
        self._wake_ups.forget(uid)
        self._hidden_reasons.forget(uid)

    # -- the beginning, and what is due ----------------------------------------------------------------------------

    def synced(self, now: float) -> None:
        """Answer calls from now on, as all nodes and pods were seen.

        Jobs that a former run bound in part keep their planned GPUs.
        """
        self._ready = True
        pods = list(self.pods.values())
        members = [pod for pod in pods if self.jobs.is_member(pod)]
        self.jobs.recover([*members, *self._ended_members], now)
        self._ended_members.clear()
        self._ranking.begin(pods)
        self._single_pods.begin([pod for pod in pods if not self.jobs.is_member(pod)], now)
        self._hidden_reasons.begin([*pods, *self.others.pods.values()])
        for node in self.usage.nodes.values():
            # Otherwise the first pod that fits nowhere would wait for it.
            _ = node.room
        self.usage.frees += 1

    def caught_up(self, now: float) -> None:
        """Go on where a former leader ended: jobs that it bound in part keep their planned GPUs."""
        self.ahead.give_all_back()
        self.jobs.recover(filter(self.jobs.is_member, self.pods.values()), now)

    def tick(self, now: float) -> None:
        """End reservations that lapsed. Have pods try again that fit by now."""
        self._take_outdated(now)
        self.ahead.tick(now)
        self.reservations.lapse(now)
        self.usage.frees += self._cool_downs.end(now)
        waiting = ChainMap(self.pods, self.others.pods)
        self._actions += self._hidden_reasons.explain_some(waiting, now)
        self._actions += self._wake_ups.wake(now)
        self.jobs.tick(now)
        self.defragmentation.tick(now)

    def _take_outdated(self, now: float) -> None:
        """Take some of the pods again of which the object has changed."""
        remaining = MOST_RESOLVED
        while remaining > 0:
            pod = self.gang_objects.take_outdated()
            if pod is None:
                return
            self.pod_seen(pod, now)
            # With each pod, the others of its job are looked through.
            remaining -= 1 + self.jobs.size_of(self.pods.get(pod.uid, pod)) // MEMBERS_A_POD

    def next_due(self, now: float) -> float | None:
        """When `tick` has work next, in monotonic seconds; None if nothing is due."""
        if self._hidden_reasons.unexplained or self.gang_objects.are_outdated:
            return now
        times = [
            *self.jobs.next_due(now),
            self._cool_downs.next_end(),
            self.reservations.next_end(),
            self.ahead.next_due(now),
            self._wake_ups.next_due(),
            self.defragmentation.next_due(),
        ]
        return min((at for at in times if at is not None), default=None)

    def actions(self) -> list[Action]:
        """The actions since the last call of this, in order. Call it after every other call."""
        actions = list(self._actions)
        self._actions.clear()
        return actions

    # -- kube-scheduler's calls ------------------------------------------------------------------------------------

    def filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """Choose the node for a pod among `names`, and reserve its GPUs there."""
        if not self._ready:
            return FilterAnswer(error="the scheduler's extender has not read all nodes and pods yet")
        pod = self.gang_objects.resolved(pod)
        if pod.request.kind is RequestKind.NONE:
            return FilterAnswer(nodes=tuple(names))
        why = self._why_not_placed(pod)
        if why:
            return FilterAnswer(error=why)
        if pod.uid not in self.pods:
            # The watch has not shown it yet.
            self.defragmentation.pod_came(pod)
        self.ahead.called(pod, now)
        is_member = self.jobs.is_member(pod)
        part = self.jobs if is_member else self._single_pods
        answer = part.filter(pod, names, now)
        if not answer.nodes:
            self.defragmentation.refused(pod)
        if not pod.in_native_group or pod.uid not in self.pods:
            return answer
        starts_whole = is_member and not self.jobs.is_running(pod)
        return self._group_cycles.paced(pod, answer, now, starts_whole=starts_whole)

    def scores(self, pod: PodFacts, names: Collection[str], with_devices: Container[str] = ()) -> dict[str, int]:
        """How well nodes suit a pod without GPUs, 0 to 10; nothing of other pods, whose nodes `filter` chooses.

        `with_devices` are nodes whose GPUs are devices of claims.
        """
        if not self._ready or pod.request.kind is not RequestKind.NONE:
            return {}
        costs = self._ranking.without_gpus(pod.cpu, names)
        return scores(costs, names, with_devices)

    def bind(
        self,
        uid: str,
        node: str,
        now: float,
        wall_ns: int,
    ) -> BindWrite | BindWait | BindRefused:
        """The Binding of a pod to a node, with the GPUs that are reserved for it there, or others of that node.

        `wall_ns` is Unix nanoseconds, for the annotations. On BindWait, call this again after every other call.
        """
        if not self._ready:
            return BindRefused("the scheduler's extender has not read all nodes and pods yet")
        self.ahead.forget(uid)
        reservation = self.reservations.get(uid)
        pod = self.pods.get(uid) or (reservation.pod if reservation else None)
        if pod is None:
            return BindRefused("the scheduler has not seen this pod yet; kube-scheduler tries it again")
        if pod.node:
            # The API server answers whether it is bound there.
            return BindWrite(pod.name, uid, node, {})
        return self._bindings.bind(pod, node, now, wall_ns)

    def bound(self, uid: str, outcome: BindOutcome) -> None:
        """Take the result of a Binding. A reservation for a pod that may be bound stays until the watch decides."""
        self._bindings.answered(uid, self.pods.get(uid), outcome)

    def committed(self, job: JobKey, now: float, *, written: bool) -> None:
        """Take the result of a CommitJob."""
        self.jobs.committed(job, now, written=written)

    def preempt(
        self,
        pod: PodFacts,
        proposed: Mapping[str, Sequence[str]],
        now: float,
        violations: Mapping[str, int] | None = None,
    ) -> dict[str, list[str]]:
        """Choose the pods to evict for a pod, by node, see `Preemption.victims`."""
        if self.defragmentation.serves(pod.uid):
            return {}
        pod = self.gang_objects.resolved(pod)
        if self.jobs.is_member(pod):
            # One by one, they might evict pods for a job that does not start.
            allowed = self.jobs.preemptable(pod, proposed.keys(), now)
            cheapest = _fewest_victims(allowed, proposed, violations or {})
            proposed = {name: proposed[name] for name in cheapest}
        victims = self._preemption.victims(pod, proposed, violations or {}, now)
        if victims:
            self._wake_ups.waits_for_evictions(pod.uid)
        return victims

    def fragmented_bytes(self, now: float) -> int:
        """Free bytes of memory on GPUs where no pod fits that asks for as much as one of the last hour."""
        return self._single_pods.fragmented_bytes(now)

    def eviction_answered(self, uid: str, outcome: EvictOutcome, why: str, now: float) -> None:
        """Take the result of a MoveAway."""
        self.defragmentation.answered(uid, outcome, why, now)

    def look_for_placeholders(self, now: float) -> Look:
        """Pods that are to be there, so that a cluster autoscaler adds nodes, see `Placeholders.look`."""
        if not self._ready:
            return []
        wanted = yield from self._placeholders.look(now)
        return wanted

    def needs_placeholder(self, uid: str) -> bool:
        """Whether a pod still waits, so that its placeholder may be of use."""
        pod = self.pods.get(uid)
        return pod is not None and self._placeholders.may_need(pod)

    def _waits_alone(self, pod: PodFacts) -> bool:
        """Whether a pod in no job has no GPUs reserved for it."""
        return not self.jobs.is_member(pod) and self.reservations.get(pod.uid) is None

    def wants(self, nomination: Nominate) -> bool:
        """Whether a nomination that is not written yet is still of use."""
        return self.ahead.wants(nomination)

    def _why_not_placed(self, pod: PodFacts) -> str:
        """Why a pod of a call is not placed now, whatever room there is; empty if it is."""
        if self.scheduler_names.leave_out(pod):
            return f"pod {pod.name} is of scheduler {pod.scheduler}, which --scheduler-name leaves out"
        if pod.gated:
            return f"pod {pod.name} has scheduling gates, so it cannot be bound"
        if has_changed(pod, self.pods.get(pod.uid)):
            return f"pod {pod.name} has changed; kube-scheduler tries it again"
        return ""

    def _show_of_another(self, pod: PodFacts, now: float) -> None:
        """Keep a pod that waits for another scheduler, for the pages and the reason of its job, and say why it waits.

        The stock scheduler says only that a node lacks units, and no other component knows the GPUs of all nodes.
        """
        asks_for_gpus = pod.request.kind is not RequestKind.NONE
        counts = asks_for_gpus or self._counts_without_gpus(pod)
        if not self.scheduler_names.is_anothers(pod) or not counts:
            self._forget_of_another(pod.uid)
            return
        self.gang_objects.keep(pod, self.others.kept.get(pod.uid))
        changed = self.others.wait(pod)
        self.jobs.say_again(changed)
        # Without GPUs of ours, the pod waits for those of others.
        if asks_for_gpus and self._ready and self.usage.nodes:
            self._actions += self._hidden_reasons.seen(pod, now)

    def _counts_without_gpus(self, pod: PodFacts) -> bool:
        """Whether a pod without GPUs counts among pods that start together."""
        return self.jobs.is_member(pod) and self.scheduler_names.count_without_gpus(pod)

    def _forget_of_another(self, uid: str) -> None:
        """Take that a pod no longer waits for another scheduler, if it did."""
        former = self.others.kept.get(uid)
        if former is None:
            return
        self.gang_objects.forget(former)
        self._hidden_reasons.forget(uid)
        changed = self.others.forget(uid)
        self.jobs.say_again(changed)

    def _why_not_moved(self, pod: PodFacts, now: float) -> str:
        """Why a pod must not be moved for a reason that it does not say itself, after "it "; empty if it may."""
        if not self.scheduler_names.include(pod.scheduler):
            return f"is placed by scheduler {pod.scheduler}"
        return self.defragmentation.why_kept(pod, now)

    def _leave_job(self, pod: PodFacts, now: float) -> None:
        """Forget what a pod was to its job, and what is reserved for it, if its labels were changed."""
        former = self.pods.get(pod.uid)
        if former is None:
            return
        asks_for_others = not pod.node and former.request != pod.request
        if is_elsewhere(former.job, pod.job) or asks_for_others:
            self.ahead.withdraw(former)
            self.jobs.pod_gone(former, now)
            self.reservations.give_back([pod.uid])
            starts_alone = not self.jobs.is_member(pod)
            if starts_alone and not pod.node and not pod.gated:
                # kube-scheduler was refused a node for it, and does not know that it waits for nothing now.
                self._wake_ups.refused(pod.uid, now, again=True)


def _fewest_victims(
    names: Collection[str],
    proposed: Mapping[str, Sequence[str]],
    violations: Mapping[str, int],
) -> list[str]:
    """The nodes of `names` with the fewest pods to evict, those first where no PodDisruptionBudget forbids it."""
    return nsmallest(
        MOST_FOR_A_MEMBER,
        proposed.keys() & names,
        key=lambda name: (violations.get(name, 0), len(proposed[name]), name),
    )
