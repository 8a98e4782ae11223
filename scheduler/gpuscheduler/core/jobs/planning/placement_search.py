"""Searches nodes and GPUs for the pods of a job that start together.

A search gets a job, and those of its pods that kube-scheduler has come to. It tries three things in turn:

1. All of the pods.
2. As many as have to start together, if that is fewer. The others follow when there is room.
3. The same, if pods give way that are decided although kube-scheduler has not asked about them.

The result is a node and GPUs for each pod, or for as many as there is room for, and what the others lack. Nothing is
reserved here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES, Passed, Places, plan
from gpuscheduler.core.jobs.places.shortage import shortage
from gpuscheduler.core.jobs.planning.named_nodes import passed_with
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts


class Decisions(Protocol):
    """Decisions on pods that kube-scheduler has not asked about yet. They give way to others."""

    def behind(self, pod: PodFacts) -> Iterator[tuple[str, list[str]]]:
        """Nodes with the UIDs of pods that are decided for them and behind this one."""

    def take_back(self, uids: Collection[str]) -> None:
        """End the decisions for these pods."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The result of a search.

    Attributes:
        places: node and GPUs by UID; fewer than the pods if not all fit.
        fitting: how many pods had a place at most, if several sets of pods were tried.
        gave_up: it took too many tries, so that more pods may fit.
        shortage: what the pods without a place need, and what keeps them off nodes.
    """

    places: Places
    fitting: int
    gave_up: bool
    shortage: str = ""


@dataclass(frozen=True, slots=True)
class _Demand:
    """Pods of a job that are to be placed together.

    Attributes:
        job: of the pods.
        pods: with what kube-scheduler checks of their requests.
        passed: UID to the nodes that the pod must not be on.
        are_nodes_kept: some of these nodes are kept for another job.
        nodes: by name, as they are or would be.
    """

    job: Job
    pods: Sequence[PodFacts]
    passed: Mapping[str, Passed]
    are_nodes_kept: bool
    nodes: Mapping[str, NodeUsage]


class PlacementSearch:
    """The searches for all jobs.

    Args:
        usage: nodes and their users.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        precedence: nodes that are kept for the first jobs that wait.
        work: of all namespaces; each search counts.

    Attributes:
        decisions: that give way to jobs; None if there are none.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        links: Links,
        pods: Mapping[str, PodFacts],
        precedence: Precedence,
        work: WorkShares,
    ) -> None:
        self._usage = usage
        self._links = links
        self._pods = pods
        self._precedence = precedence
        self._work = work
        self.decisions: Decisions | None = None

    def to_start(self, job: Job, pending: Collection[PodFacts]) -> Placement:
        """Places for all of the pods, or for as many as have to start together; fewer if they are not found."""
        needed = job.needed
        may_start_in_part = needed < len(pending)
        demand = self._demand(job, pending, job.unsuitable())
        placement = self._placed(demand)
        if may_start_in_part and len(placement.places) < needed:
            # Why not all of them fit takes as long to find out as a plan, and does not matter: fewer are tried next.
            placement = self._minimum(job, pending, fitting=len(placement.places))
        else:
            placement = self._explained(demand, placement)
        if len(placement.places) < needed:
            placement = self._on_decided(job, pending, placement)
        return placement

    def elsewhere(self, job: Job, plan_before: StartPlan, uid: str, passed: Passed) -> Placement:
        """The places of a plan, of which one pod must not be on some nodes. The others stay where they are if possible.

        What the plan holds must count as free.
        """
        pods = [job.members[planned] for planned in plan_before.places]
        # The pod exchanges its node with the last one that is alike. Those in bind come first, so that they stay.
        in_bind_first = sorted(plan_before.places, key=lambda planned: planned not in plan_before.in_bind)
        stay: dict[str, str] = {}
        for planned in in_bind_first:
            node, _ = plan_before.places[planned]
            stay[planned] = node
        demand = self._demand(job, pods, {**job.unsuitable(), uid: passed})
        return self._explained(demand, self._placed(demand, prefer=stay))

    def _minimum(self, job: Job, pending: Collection[PodFacts], *, fitting: int) -> Placement:
        """Places for as many of the pods as have to start together; fewer if they are not found.

        Which of them start is open, and too many to try them all. Those that came first are tried, as the first one
        often leads, and then those that ask for the least.

        Args:
            job: of the pods.
            pending: all pods that may be planned, for which no plan was found together.
            fitting: how many of all of them had a place.
        """
        placement = Placement(Places(), 0, gave_up=False)
        # Together they take no longer than one plan.
        tries = Tries(PLAN_TRIES)
        tried: list[list[PodFacts]] = []
        for order in (_by_age, _by_gpus, _by_cpu):
            first = sorted(pending, key=order)[: job.needed]
            if first in tried:
                continue  # pods that are alike have one order
            tried.append(first)
            demand = self._demand(job, first, job.unsuitable())
            placement = self._explained(demand, self._placed(demand, tries=tries))
            fitting = max(fitting, len(placement.places))
            if len(placement.places) == len(first):
                break
        return replace(placement, fitting=fitting)

    def _on_decided(self, job: Job, pending: Collection[PodFacts], placement: Placement) -> Placement:
        """The places of the job once pods that come after it have lost their decided ones.

        kube-scheduler has asked about all pods of the job, and about none of those. If the job does not fit even so,
        they keep their places, and `placement` is returned.
        """
        if self.decisions is None or placement.gave_up:
            return placement
        urgent = max(pending, key=lambda pod: pod.priority)
        behind = dict(self.decisions.behind(urgent))
        without = {name: self._without(name, uids) for name, uids in behind.items() if name in self._usage.nodes}
        if not without:
            return placement
        needed = sorted(pending, key=_by_age)[: job.needed]
        demand = self._demand(job, needed, job.unsuitable())
        trial_demand = replace(demand, nodes={**self._usage.nodes, **without})
        trial = self._explained(trial_demand, self._placed(trial_demand))
        if len(trial.places) < len(needed):
            return placement
        for name in {node for node, _ in trial.places.values()} & behind.keys():
            self.decisions.take_back(behind[name])
        # With what is in use now, because the trial may have left a decision where it was.
        return self._explained(demand, self._placed(demand))

    def _without(self, name: str, uids: Iterable[str]) -> NodeUsage:
        """The node without some of its users."""
        node = self._usage.nodes[name].copy()
        for uid in uids:
            node.release(uid)
            if uid in self._pods:
                node.used -= self._pods[uid].requests
        return node

    def _demand(self, job: Job, pods: Iterable[PodFacts], passed: Mapping[str, Passed]) -> _Demand:
        """The pods as kube-scheduler checks them, which must not be on nodes that are kept for another job, either."""
        checked = job.rejected.as_checked(pods)
        kept = self._precedence.kept_from_job(job)
        if kept:
            passed = {pod.uid: passed_with(passed.get(pod.uid), kept) for pod in checked}
        return _Demand(job, checked, passed, bool(kept), self._usage.nodes)

    def _placed(
        self,
        demand: _Demand,
        *,
        prefer: Mapping[str, str] | None = None,
        tries: Tries | None = None,
    ) -> Placement:
        """Nodes and GPUs for the pods; fewer if not all fit. `prefer` has the nodes on which they stay if possible."""
        tries = Tries(PLAN_TRIES) if tries is None else tries
        left_before = tries.left
        places = plan(
            demand.pods,
            demand.nodes,
            self._links,
            near=_nodes_of(demand.job),
            without=demand.passed,
            tries=tries,
            beside=self._usage.pods,
            prefer=prefer,
            min_feasible=self._usage.min_feasible,
        )
        self._work.add(left_before - tries.left)
        if len(places) < len(demand.pods) and any(pod.rules.depend_on_pods for pod in demand.pods):
            # Another pod may make room for it: one that it wants to be near, or one that evens out its spread.
            self._usage.pods_matter = True
        return Placement(places, len(places), tries.gave_up)

    def _explained(self, demand: _Demand, placement: Placement) -> Placement:
        """The placement with what those pods need that have no place in it."""
        if placement.gave_up:
            # The rules of its pods may be too large to be looked through once more.
            return placement
        if demand.are_nodes_kept and len(placement.places) < len(demand.pods):
            return replace(placement, shortage=self._precedence.reason_for_job(demand.job))
        tries = Tries(PLAN_TRIES)
        why = shortage(
            demand.pods,
            placement.places,
            demand.nodes,
            self._usage.pods,
            demand.passed,
            tries,
        )
        self._work.add(PLAN_TRIES - tries.left)
        return replace(placement, shortage=why)


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
