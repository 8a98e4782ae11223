"""Makes, keeps and breaks the plans of jobs: GPUs are reserved for all pods of a job, or for none."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from gpuscheduler.core.calls import Action, Nominate, Nudge
from gpuscheduler.core.choose_gpus import Choice, serves, still_fits
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.resources import NO_RESOURCES
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import NOTHING, RequestKind
from gpuscheduler.core.jobs.job import RETRY_FIRST_S, Job, LeftOut, PlanStage, StartPlan
from gpuscheduler.core.jobs.lapses import Lapses
from gpuscheduler.core.jobs.places.plan import ALL_NAMED, PLAN_TRIES, OtherThan, Passed, Places, plan
from gpuscheduler.core.jobs.places.shortage import shortage
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations

BARRIER_S = 15.0
"""How long a planned job holds GPUs until all of its pods are in bind."""
COMMITTED_S = 60.0
"""How long the GPUs of a written plan stay reserved."""
UNSUITABLE_S = 60.0
"""How long a waiting job passes over nodes that kube-scheduler did not name. Then kube-scheduler has to ask again."""
MOST_AT_ONCE = 64
"""Pods of the largest job that is planned during a call: any author of pods may label thousands of them alike."""
MOST_COMPARED = 16
"""Nodes that kube-scheduler accepts for a pod whose resources are compared with those that the pod asks for."""

MOST_DEFERRALS = 100
"""How often pods of one plan wait until kube-scheduler has placed others of it."""


class Decisions(Protocol):
    """Decisions on pods that kube-scheduler has not asked about yet. They give way to others."""

    def behind(self, pod: PodFacts) -> Iterator[tuple[str, list[str]]]:
        """Nodes with the UIDs of pods that are decided for them and behind this one."""

    def take_back(self, uids: Collection[str]) -> None:
        """End the decisions for these pods."""


class Planning:
    """The plans of all jobs. What is to be written is added to `actions`.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        precedence: keeps nodes for the first jobs that wait.
        work: of all namespaces.

    Attributes:
        actions: to carry out; others may add to them.
        nodes: by name, with their users.
        ready: whether plans may be made.
        again: whether jobs that wait are to be planned at the next tick, although no units have become free.
        decisions: that give way to plans; None if there are none.
    """

    def __init__(  # noqa: PLR0913 (what plans are made of)
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        links: Links,
        pods: Mapping[str, PodFacts],
        precedence: Precedence,
        work: WorkShares,
    ) -> None:
        self.precedence = precedence
        self.work = work
        self._usage = usage
        self.nodes: Mapping[str, NodeUsage] = usage.nodes
        self._reservations = reservations
        self._links = links
        self._pods = pods
        self._frees = 0
        self.actions: list[Action] = []
        self.ready = False
        self.again = False
        self.decisions: Decisions | None = None
        self._lapses = Lapses()

    @property
    def may_fit(self) -> bool:
        """Whether waiting jobs are to be planned at the next tick, as units may have become free."""
        return self.again or self._frees != self._usage.frees

    def look_begins(self) -> None:
        """A look at all jobs that wait begins. Only units that become free from now on lead to another one."""
        self.again = False
        self._frees = self._usage.frees

    def place(
        self,
        job: Job,
        pod: PodFacts,
        names: Collection[str],
        now: float,
    ) -> tuple[str, Choice] | None:
        """Node and GPUs of a pod in the job's plan, which is made here if there is none that kube-scheduler accepts.

        `names` are of the nodes that kube-scheduler accepts for the pod.
        """
        place = job.place_of(pod.uid)
        if place is None:
            if job.plan is None:
                self._note_accepted(job, pod, names)
                self._first_plan(job, pod, now)
            return job.place_of(pod.uid)
        if job.plan and job.plan.is_too_early(pod.uid):
            # kube-scheduler may name other nodes once it has placed the pods before this one.
            return place
        planned_node, _ = place
        named_all = _are_all(names, pod, self._usage)
        is_rejected = planned_node not in names and _has_seen(planned_node, names, pod, named_all=named_all)
        if is_rejected and job.plan and job.plan.stage is PlanStage.GATHERING:
            # The named nodes are certain to be accepted. There may be others, if kube-scheduler has not named all.
            refused = [_all_but(names, self._usage)]
            if not named_all:
                refused.append(_and_also(job.unsuitable().get(pod.uid), frozenset([planned_node])))
            self._move(job, job.plan, pod, refused, now)
        return job.place_of(pod.uid)

    def _note_accepted(self, job: Job, pod: PodFacts, names: Collection[str]) -> None:
        """Note which nodes kube-scheduler accepts for a pod while it has placed no other pod of the job."""
        if _are_all(names, pod, self._usage):
            job.passes_over(pod.uid, self._left_out(pod, _all_but(names, self._usage)))
        if pod.requests.others:
            job.checks_all_but(pod, self._unchecked(pod, names))

    def _left_out(self, pod: PodFacts, nodes: Passed) -> LeftOut:
        """The nodes that are passed over for a pod, and those of them that have room for it."""
        if isinstance(nodes, OtherThan):
            # They are thousands, and to look at each in a call takes too long.
            return LeftOut(nodes)
        with_room: set[str] = set()
        for name in nodes:
            node = self._usage.nodes.get(name)
            if node and has_in_sum(node, [pod]):
                with_room.add(name)
        return LeftOut(nodes, frozenset(with_room))

    def _unchecked(self, pod: PodFacts, names: Iterable[str]) -> set[str]:
        """The resources of a pod of which a node has none, although kube-scheduler accepts it for the pod."""
        unchecked: set[str] = set()
        for name in islice(names, MOST_COMPARED):
            node = self._usage.nodes.get(name)
            if node:
                unchecked |= pod.requests.absent_from(node.facts.allocatable)
        return unchecked

    def may_plan_now(self, job: Job, now: float) -> bool:
        """Whether a job may be planned in a call or an event, which others wait for. `tick` has the time otherwise."""
        is_small = len(job.members) <= MOST_AT_ONCE
        return is_small and self.work.may_go_ahead(job.key.namespace, now)

    def _first_plan(self, job: Job, pod: PodFacts, now: float) -> None:
        if self.may_plan_now(job, now):
            self.try_plan(job, now, calling=pod.uid)
        elif job.tried != self._made_of(job):
            job.is_postponed = True
            self.again = True

    def _move(
        self,
        job: Job,
        plan: StartPlan,
        pod: PodFacts,
        refused: Sequence[Passed],
        now: float,
    ) -> None:
        """Give a pod another place in the plan, as kube-scheduler has rejected its own. The others stay if possible.

        `refused` has the nodes to pass over for it: the best guess first.
        """
        for passed in refused:
            places = self._moved(job, plan, {**job.unsuitable(), pod.uid: passed})
            if len(places) == len(plan.places):
                break
        else:
            if _may_wait_for_others(pod, plan):
                job.plan = plan.defers(pod.uid)
                self.keep(job, job.plan)
                return
            self.break_plan(job, now)
            if _may_start_in_order(pod, plan):
                # The same plan is made again: nothing speaks against its places yet.
                job.starts_in_order = True
                return
            # Until kube-scheduler asks again: the next plan would be the same one.
            for uid, nodes in {**plan.refused, pod.uid: refused[-1]}.items():
                job.passes_over(uid, self._left_out(job.members[uid], nodes))
            job.ask_at = now + UNSUITABLE_S
            return
        job.plan = plan.moved(places, {**plan.refused, pod.uid: passed})
        self.keep(job, job.plan)
        moved = [uid for uid, place in places.items() if place != plan.places[uid]]
        self._wake(job, places, [job.members[uid] for uid in moved], calling=pod.uid)

    def _moved(
        self,
        job: Job,
        plan: StartPlan,
        unsuitable: Mapping[str, Passed],
    ) -> Places:
        """The places of a plan in which one pod has another one; fewer if there are none."""
        members = [job.members[uid] for uid in plan.places]
        # The pod exchanges its node with the last one that is alike. Those in bind come first, so that they stay.
        in_bind_first = sorted(plan.places, key=lambda uid: uid not in plan.in_bind)
        stay = {uid: plan.places[uid][0] for uid in in_bind_first}
        self._reservations.give_back(plan.places)
        return self._plan(job, members, unsuitable, stay)

    def try_plan(self, job: Job, now: float, calling: str = "") -> None:
        """Plan the job's pending pods and reserve their GPUs; `calling` is the UID of a pod in a filter call."""
        if not self.ready or job.plan or job.retry_at > now:
            return
        # A plan over thousands of nodes takes tens of milliseconds, so the same one is not tried twice.
        if job.tried == self._made_of(job):
            job.retry_at = float("-inf")
            return
        pending = job.to_plan()
        if not pending:
            return
        may_plan_at = self._may_plan_at(job, pending, now)
        if may_plan_at > now:
            job.retry_at = may_plan_at
            return
        job.retry_at = float("-inf")
        job.is_postponed = False
        job.ask_at = float("inf")
        # What they had reserved one by one counts as free for the plan.
        self._reservations.end(pod.uid for pod in pending)
        unsuitable = job.unsuitable()
        needed = job.needed
        places = self._places_to_start(job, pending, unsuitable)
        if len(places) < needed:
            # Nothing is held while a job waits.
            self.precedence.wanted(job, pending, now)
        self.work.count(job.key.namespace, now)
        if len(places) < needed:
            job.tried = self._made_of(job)
            if any(unsuitable.values()):
                job.ask_at = now + UNSUITABLE_S
            if len(pending) > MOST_AT_ONCE or job.gave_up:
                # To plan it takes long, and others wait meanwhile.
                job.delay(now)
            return
        unasked = job.unasked(places)
        job.plan = StartPlan(places, now + BARRIER_S, attached=unasked, in_order=job.starts_in_order)
        job.starts_in_order = False
        self.keep(job, job.plan)
        asked = [pod for pod in pending if pod.uid in places and pod.uid not in unasked]
        self._wake(job, places, asked, calling)

    def _places_to_start(
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
    ) -> Places:
        """Places for all of the pods, or for as many as have to start together; fewer if they are not found."""
        needed = job.needed
        may_start_in_part = needed < len(pending)
        # Why not all of them fit takes as long to find out as a plan, and does not matter if fewer are tried next.
        places = self._plan(job, pending, unsuitable, explains=not may_start_in_part)
        if may_start_in_part and len(places) < needed:
            places = self._plan_minimum(job, pending, unsuitable, fitting=len(places))
        elif may_start_in_part:
            self._explain(job, pending, places, unsuitable)
        if len(places) < needed:
            places = self._plan_on_decided(job, pending, unsuitable, places)
        return places

    def _plan_minimum(
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        *,
        fitting: int,
    ) -> Places:
        """Places for as many of the pods as have to start together; fewer if they are not found.

        Which of them start is open, and too many to try them all. Those that came first are tried, as the first one
        often leads, and then those that ask for the least.

        Args:
            job: of the pods.
            pending: all pods that may be planned, for which no plan was found together.
            unsuitable: UID of each pod to the nodes that kube-scheduler did not accept for it.
            fitting: how many of all of them had a place.
        """
        places = Places()
        # Together they take no longer than one plan.
        tries = Tries(PLAN_TRIES)
        tried: list[list[PodFacts]] = []
        for order in (_by_age, _by_gpus, _by_cpu):
            first = sorted(pending, key=order)[: job.needed]
            if first in tried:
                continue  # pods that are alike have one order
            tried.append(first)
            places = self._plan(job, first, unsuitable, tries=tries)
            if len(places) == len(first):
                break
            fitting = max(fitting, len(places))
        job.fitting = max(fitting, len(places))
        return places

    def _may_plan_at(self, job: Job, pending: Collection[PodFacts], now: float) -> float:
        """When the job may be planned, as far as that is not its own doing."""
        paused_until = self._lapses.until(job.key.namespace)
        job.is_paused = paused_until > now
        # A pod that may be bound needs the GPUs that are reserved for it, until the watch decides.
        certain_at = max(self._reservations.may_be_bound(pod.uid) or now for pod in pending)
        return max(paused_until, certain_at)

    def _plan_on_decided(
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        places: Places,
    ) -> Places:
        """The places if pods give way that are behind the job, and only decided; the former ones if that is no help.

        kube-scheduler has asked about all pods of the job, and about none of those.
        """
        if self.decisions is None or job.gave_up:
            return places
        urgent = max(pending, key=lambda pod: pod.priority)
        behind = dict(self.decisions.behind(urgent))
        without = {name: self._without(name, uids) for name, uids in behind.items() if name in self.nodes}
        if not without:
            return places
        why = job.shortage, job.fitting, job.gave_up
        needed = sorted(pending, key=_by_age)[: job.needed]
        on_decided = self._plan(job, needed, unsuitable, nodes={**self.nodes, **without})
        if len(on_decided) < len(needed):
            job.shortage, job.fitting, job.gave_up = why
            return places
        for name in {node for node, _ in on_decided.values()} & behind.keys():
            self.decisions.take_back(behind[name])
        # With what is in use now, because the trial may have left a decision where it was.
        return self._plan(job, needed, unsuitable)

    def _without(self, name: str, uids: Iterable[str]) -> NodeUsage:
        """The node without some of its users."""
        node = self.nodes[name].copy()
        for uid in uids:
            node.release(uid)
            if uid in self._pods:
                node.used -= self._pods[uid].requests
        return node

    def _plan(  # noqa: PLR0913 (by name)
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        prefer: Mapping[str, str] | None = None,
        nodes: Mapping[str, NodeUsage] | None = None,
        tries: Tries | None = None,
        *,
        explains: bool = True,
    ) -> Places:
        """Nodes and GPUs for the pods; fewer if not all fit.

        `prefer` has the nodes on which pods stay if possible. `nodes` are as they would be; None for as they are.
        `explains` is false if `_explain` is called later, or another plan is made instead.
        """
        nodes = self._usage.nodes if nodes is None else nodes
        tries = Tries(PLAN_TRIES) if tries is None else tries
        pending = job.as_checked(pending)
        left_before = tries.left
        places = plan(
            pending,
            nodes,
            self._links,
            near=_nodes_of(job),
            without=self._with_kept(job, pending, unsuitable),
            tries=tries,
            beside=self._usage.pods,
            prefer=prefer,
        )
        self.work.add(left_before - tries.left)
        if len(places) < len(pending) and any(pod.rules.depend_on_pods for pod in pending):
            # Another pod may make room for it: one that it wants to be near, or one that evens out its spread.
            self._usage.pods_matter = True
        job.fitting = len(places)
        job.gave_up = tries.gave_up
        if explains:
            self._explain(job, pending, places, unsuitable, nodes)
        return places

    def _explain(
        self,
        job: Job,
        pending: Collection[PodFacts],
        places: Places,
        unsuitable: Mapping[str, Passed],
        nodes: Mapping[str, NodeUsage] | None = None,
    ) -> None:
        """Keep what the pods need that have no place in the last plan. The arguments are those of `_plan`."""
        nodes = self._usage.nodes if nodes is None else nodes
        pending = job.as_checked(pending)
        kept = self.precedence.kept_from_job(job)
        if job.gave_up:
            # The rules of its pods may be too large to be looked through once more.
            job.shortage = ""
        elif kept and len(places) < len(pending):
            job.shortage = self.precedence.reason_for_job(job)
        else:
            without = self._with_kept(job, pending, unsuitable)
            tries = Tries(PLAN_TRIES)
            job.shortage = shortage(pending, places, nodes, self._usage.pods, without, tries)
            self.work.add(PLAN_TRIES - tries.left)

    def _with_kept(
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
    ) -> Mapping[str, Passed]:
        """UID of each pod to the nodes that it must not be on: those kept for another job, too."""
        kept = self.precedence.kept_from_job(job)
        if not kept:
            return unsuitable
        return {pod.uid: _and_also(unsuitable.get(pod.uid), kept) for pod in pending}

    def _wake(
        self,
        job: Job,
        places: Mapping[str, tuple[str, Choice]],
        pods: Iterable[PodFacts],
        calling: str = "",
    ) -> None:
        """Have kube-scheduler try pods of a plan, each on its node, but not the one about which it is asking."""
        if job.plan and job.plan.in_order:
            # All others would be refused, and kube-scheduler waits longer each time before it tries a pod again.
            next_uid = job.plan.next_in_order()
            pods = [job.members[next_uid]] if next_uid else []
        pods = [pod for pod in pods if pod.uid != calling]
        # Pods that are nominated already would count where they were nominated.
        if len(self._usage.nodes) > ALL_NAMED or job.nominated:
            for pod in pods:
                node, _ = places[pod.uid]
                self.nominate(job, pod, node)
        self.actions += nudges(pods)

    def wake_deferred(self, job: Job) -> None:
        """Have kube-scheduler try pods again whose places depend on the pods of the plan that it has placed since."""
        plan = job.plan
        if plan is None or not (plan.deferred or plan.in_order):
            return
        pods = [job.members[uid] for uid in sorted(plan.deferred)]
        # They are to come again, so that others may wait for them.
        job.plan = replace(plan, deferred=frozenset())
        self._wake(job, plan.places, pods)

    def call_attached(self, job: Job) -> None:
        """Have kube-scheduler try the pods for which others of the plan had to be placed before.

        It tries them anyway when those are bound. Until then, their nodes are kept for them.
        """
        plan = job.plan
        if plan is None or not plan.attached:
            return
        pods = [job.members[uid] for uid in sorted(plan.attached & plan.places.keys())]
        for pod in pods:
            node, _ = plan.places[pod.uid]
            self.nominate(job, pod, node)
        self.actions += nudges(pods)

    def nominate(self, job: Job, pod: PodFacts, node: str) -> None:
        """Have kube-scheduler try the node first for a pod, and count the pod there, as long as it is planned there."""
        job.nominated.add(pod.uid)
        self.actions.append(Nominate(pod.name, pod.uid, node))

    def end_nominations(self, job: Job) -> None:
        """Take nominations back: kube-scheduler would count the pods on these nodes for as long as they wait."""
        for pod in job.members.pending.values():
            if pod.uid in job.nominated or pod.nominated:
                self.actions.append(Nominate(pod.name, pod.uid, ""))
        job.nominated.clear()

    def review(self, job: Job, now: float) -> None:
        """Note that planned pods are bound, or will not come: the job may not even be complete without one."""
        if job.plan:
            pods = job.members.to_place() if job.plan.is_written else job.may_start()
            coming = {pod.uid for pod in pods}
            not_coming = job.plan.places.keys() - coming
            if not_coming:
                self.note_lapse(job, now)
            self.drop(job, not_coming, now)
        if job.plan and job.is_part(job.plan):
            self.break_plan(job, now)

    def expire(self, job: Job, now: float) -> None:
        """End a plan whose pods were not all in bind or bound in time."""
        self.note_absent(job)
        self.note_lapse(job, now)
        self.break_plan(job, now)

    def note_lapse(self, job: Job, now: float) -> None:
        """Count against the namespace that GPUs were held for pods that do not come into bind."""
        if job.plan and job.plan.stage is PlanStage.GATHERING:
            self._lapses.count(job.key.namespace, job.plan.until - BARRIER_S, now)

    def note_absent(self, job: Job) -> None:
        """Note which pods are not in bind, and have kube-scheduler come to them again, if it can place them."""
        plan = job.plan
        if plan is None or plan.is_written:
            return
        not_in_bind = plan.places.keys() - plan.in_bind
        absent = [pod for pod in job.members.to_place() if pod.uid in not_in_bind]
        job.turns.failed_to_come(pod.uid for pod in absent)
        self.actions += nudges(absent)

    def drop(self, job: Job, uids: Collection[str], now: float) -> None:
        """Take pods out of a plan. A written plan goes on for the others; another one is broken as a whole."""
        if job.plan is None:
            return
        if uids and not job.plan.is_written:
            self.break_plan(job, now)
            return
        self._reservations.give_back(uids)
        job.plan = job.plan.without(uids)
        if not job.plan.places:
            job.plan = None
            # No pod of the plan is left to start, so the next failure is a first one again.
            job.delay_s = RETRY_FIRST_S
            if job.members.pending:
                # The others came after the plan was made, and are planned next.
                self.again = True

    def keep(self, job: Job, plan: StartPlan) -> None:
        """Reserve the GPUs of a plan until it ends."""
        for uid, (name, choice) in plan.places.items():
            self._reservations.keep(job.members[uid], {name: choice}, plan.until)

    def break_plan(self, job: Job, now: float) -> None:
        """Give back all GPUs of a plan, and plan again after a delay."""
        if job.plan is None:
            return
        self._reservations.give_back(job.plan.places)
        job.plan = None
        self.end_nominations(job)
        # kube-scheduler may have asked about a pod that was gone already.
        job.members.keep_only(self._pods.keys())
        job.tried = None
        self.again = True
        job.delay(now)

    def forget_unwritten(self, job: Job) -> None:
        """Give back the GPUs of a plan that was made while another scheduler led."""
        if job.plan and not job.plan.is_written:
            self._reservations.give_back(job.plan.places)
            job.plan = None
            self.end_nominations(job)

    def recover(self, job: Job, plans: Iterable[Places], now: float) -> None:
        """Reserve what written plans have for pods that are not bound yet."""
        if job.plan:
            return
        written: Places = {}
        for places in plans:
            written.update(places)
        pending = {pod.uid: pod for pod in job.members.to_place()}
        until = now + COMMITTED_S
        kept: Places = {}
        for uid, (name, choice) in written.items():
            pod = pending.get(uid)
            # Each is reserved before the next is looked at: the node may have less by now than all of them need.
            if pod and serves(pod.request, choice) and _has_room(self._usage, name, choice):
                kept[uid] = name, choice
                self._reservations.keep(pod, {name: choice}, until)
        if kept:
            job.plan = StartPlan(kept, until).written(until)

    def _made_of(self, job: Job) -> object:
        """What a plan depends on: one that failed fails again as long as this is equal."""
        return self._usage.frees, job.members.version, job.alone


def _all_but(names: Collection[str], usage: ClusterUsage) -> Passed:
    """The nodes that kube-scheduler did not name."""
    named = frozenset(names)
    if len(usage.nodes) > ALL_NAMED:
        return OtherThan(named)
    return frozenset(usage.nodes) - named


def _and_also(passed: Passed | None, nodes: frozenset[str]) -> Passed:
    """The nodes that are passed over for a pod, and more."""
    if passed is None:
        return nodes
    if isinstance(passed, OtherThan):
        return OtherThan(passed.names - nodes)
    return passed | nodes


def _nodes_of(job: Job) -> set[str]:
    """The nodes that pods of the job have, or are planned on."""
    bound = {pod.node for pod in job.members.bound()}
    planned = {node for node, _ in job.plan.places.values()} if job.plan else set[str]()
    return bound | planned


def _by_age(pod: PodFacts) -> tuple[object, ...]:
    return pod.created, pod.name


def _by_gpus(pod: PodFacts) -> tuple[object, ...]:
    return pod.request.gpus, pod.request.need, pod.requests.cpu, pod.requests.memory, *_by_age(pod)


def _by_cpu(pod: PodFacts) -> tuple[object, ...]:
    return pod.requests.cpu, pod.requests.memory, pod.request.gpus, pod.request.need, *_by_age(pod)


def _only_nominated(names: Collection[str], pod: PodFacts) -> bool:
    """Whether kube-scheduler names the node alone that the pod is nominated for, and has not looked at the others."""
    return pod.nominated in names and len(names) == 1


def _are_all(names: Collection[str], pod: PodFacts, usage: ClusterUsage) -> bool:
    """Whether kube-scheduler has looked at every node, so that it does not accept those that it does not name."""
    if _only_nominated(names, pod):
        return False
    # It stops at a hundred accepted nodes or more, and not before: with fewer, it has come to the end.
    return len(usage.nodes) <= ALL_NAMED or len(names) < ALL_NAMED


def _has_seen(
    node: str,
    names: Collection[str],
    pod: PodFacts,
    *,
    named_all: bool,
) -> bool:
    """Whether kube-scheduler has looked at the node. It tries the one that the pod is nominated for in any case."""
    if _only_nominated(names, pod):
        return False
    return named_all or pod.nominated == node


def _may_wait_for_others(pod: PodFacts, plan: StartPlan) -> bool:
    """Whether kube-scheduler may accept the pod's place later: it counts only those pods that it has placed.

    The plan keeps the rules of its pods once all of them are on their nodes.
    """
    # Each time, another place is searched before, which takes long for a large job.
    is_cheap = len(plan.places) <= MOST_AT_ONCE and plan.deferrals < MOST_DEFERRALS
    if plan.in_order or not is_cheap:
        return False
    return pod.rules.depend_on_pods and plan.comes_after_others(pod.uid)


def _may_start_in_order(pod: PodFacts, plan: StartPlan) -> bool:
    """Whether kube-scheduler may accept the pod's place if it comes to the pods in the order of the plan.

    For example, a pod that is to be near others may be the first one anywhere, and no longer once another is placed.
    """
    if plan.in_order or len(plan.places) > MOST_AT_ONCE:
        return False
    # kube-scheduler places all pods of its own groups in one cycle, which ends with the first that is refused.
    is_one_by_one = not pod.in_native_group
    any_before = bool(plan.in_bind - {pod.uid})
    return is_one_by_one and any_before and pod.rules.depend_on_pods


def has_in_sum(node: NodeUsage, pods: Iterable[PodFacts]) -> bool:
    """Whether a node has room for all of the pods as kube-scheduler counts."""
    gpus = 0
    units = NOTHING
    requests = NO_RESOURCES
    for pod in pods:
        if pod.request.kind is RequestKind.WHOLE:
            gpus += pod.request.gpus
        units += pod.request.need
        requests += pod.requests
    return node.has_in_sum(gpus, units, requests)


def nudges(pods: Iterable[PodFacts]) -> list[Nudge]:
    """kube-scheduler does not try gated pods, so these are left out."""
    return [Nudge(pod.name, pod.uid) for pod in pods if not pod.gated]


def still_fit(
    job: Job,
    places: Mapping[str, tuple[str, Choice]],
    nodes: Mapping[str, NodeUsage],
) -> bool:
    """Whether the GPUs that are reserved for pods of a job may still serve them."""
    for uid, (name, choice) in places.items():
        node = nodes.get(name)
        if node is None:
            return False
        request = job.members[uid].request
        if not still_fits(request, node, choice):
            return False
    return True


def _has_room(usage: ClusterUsage, name: str, choice: Choice) -> bool:
    node = usage.nodes.get(name)
    return node is not None and node.has_room(choice.used)
