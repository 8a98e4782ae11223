"""Keeps nodes for the first job that waits, so that pods behind it do not take what becomes free there.

A job needs room for many pods at one time. Smaller pods that come later would take each part of it, so that a job of
high priority waits for as long as they come. Only one job has nodes kept: two that kept nodes from each other might
both wait for ever.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.job import Job, JobKey, key_of
from gpuscheduler.core.jobs.places.groups import Passed
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES, plan
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

NODES_TRIES = 2 * PLAN_TRIES
"""Work that one choice of nodes may take: it makes a plan for ever more nodes."""
Rank = tuple[int, str]
"""Negative priority, and creation time: the least comes first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The nodes that are kept for a job.

    Attributes:
        key: of the job.
        rank: of the job.
        overdue: the job has waited for too long, so that later pods of its own priority are behind it, too.
        nodes: names.
    """

    key: JobKey
    rank: Rank
    overdue: bool
    nodes: frozenset[str]

    def precedes(self, rank: Rank) -> bool:
        """Whether a pod or job of this rank has to leave the nodes to the job."""
        if self.overdue:
            return rank > self.rank
        priority, _ = rank
        own_priority, _ = self.rank
        return priority > own_priority


class Precedence:
    """The claim of the first job that waits.

    Args:
        usage: nodes and their users.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        patience_s: how long a job waits before later pods of its own priority are behind it, too; 0 for never.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        links: Links,
        pods: Mapping[str, PodFacts],
        patience_s: float,
    ) -> None:
        self._usage = usage
        self._links = links
        self._pods = pods
        self.patience_s = patience_s
        self.claim: Claim | None = None

    def kept_from(self, pod: PodFacts) -> frozenset[str]:
        """Names of the nodes that are kept for a job before this pod."""
        return self._kept_from(key_of(pod), (-pod.priority, pod.created))

    def kept_from_job(self, job: Job) -> frozenset[str]:
        """Names of the nodes that are kept for another job before this one."""
        return self._kept_from(job.key, job.age)

    def _kept_from(self, key: JobKey, rank: Rank) -> frozenset[str]:
        if self.claim is None or self.claim.key == key:
            return frozenset()
        return self.claim.nodes if self.claim.precedes(rank) else frozenset()

    def why(self, namespace: str) -> str:
        """Why the nodes of the claim take no pod of a namespace that is behind. Names stay in their own namespace."""
        is_own = self.claim is not None and self.claim.key.namespace == namespace
        title = self.claim.key.title if self.claim and is_own else "a job of another namespace"
        return f"node(s) were kept for {title}, which comes first"

    def is_overdue(self, job: Job, now: float) -> bool:
        """Whether the job has waited for too long."""
        return bool(self.patience_s) and now - job.waits_since >= self.patience_s

    def wanted(
        self,
        job: Job,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        now: float,
    ) -> None:
        """Take that there is no room for a job now. It gets nodes if it is the first that waits."""
        overdue = self.is_overdue(job, now)
        priority, _ = job.age
        if priority >= 0 and not overdue:
            # Pods of a priority below the default are rare, and to choose nodes takes a while.
            return
        if self.claim and not self._gives_way(self.claim, job, overdue=overdue):
            return
        # Where there are none, each event of the job would have them looked for again.
        made_of = len(self._usage.nodes), job.members.version, len(unsuitable), overdue
        is_in_vain = self.claim is None and job.nodes_tried == made_of
        if is_in_vain:
            return
        job.nodes_tried = made_of
        nodes = self._nodes_for(job.as_checked(pending), unsuitable)
        self._set(Claim(job.key, job.age, overdue, nodes) if nodes else None)

    def _gives_way(self, claim: Claim, job: Job, *, overdue: bool) -> bool:
        """Whether another claim for this job takes the place of the present one."""
        if claim.key != job.key:
            return job.age < claim.rank
        are_there = claim.nodes <= self._usage.nodes.keys()
        return not are_there or claim.overdue != overdue or claim.rank != job.age

    def preemptable(self, job: Job, pod: PodFacts) -> frozenset[str]:
        """The nodes where a pod of a job may have others evicted: none unless the job then starts whole.

        Those are nodes on which all of its pods that wait would fit if pods of lower priority had ended.
        """
        pending = [] if job.plan else job.wants_nodes()
        if not pending:
            return frozenset()
        return self._nodes_for(job.as_checked(pending), job.unsuitable(), below=pod.priority)

    def ends(self, job: Job) -> None:
        """Take that a job does not wait any more."""
        if self.claim and self.claim.key == job.key:
            self._set(None)

    def _set(self, claim: Claim | None) -> None:
        if self.claim is not None:
            # Pods that were refused for it may fit now.
            self._usage.frees += 1
        self.claim = claim

    def _nodes_for(
        self,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        below: int | None = None,
    ) -> frozenset[str]:
        """The nodes on which the pods would fit if all others had ended: those with the fewest of them, if possible.

        With `below`, only pods of a lower priority than that have ended.
        """
        names = sorted(self._usage.nodes, key=self._busy)
        count = 1
        tries = Tries(NODES_TRIES)
        while not tries.gave_up:
            emptied = {name: self._emptied(self._usage.nodes[name], below) for name in names[:count]}
            places = plan(
                pending,
                emptied,
                self._links,
                without=unsuitable,
                tries=tries,
                beside=self._usage.pods,
            )
            if len(places) == len(pending):
                return frozenset(node for node, _ in places.values())
            if count >= len(names):
                return frozenset()
            # A few nodes more than needed cost less than to try each number.
            count *= 2
        return frozenset()

    def _busy(self, name: str) -> tuple[int, str]:
        return len(self._usage.nodes[name].users), name

    def _emptied(self, node: NodeUsage, below: int | None) -> NodeUsage:
        """The node without pods that use its GPUs; of all priorities if `below` is None."""
        emptied = node.copy()
        for uid in node.users:
            pod = self._pods.get(uid)
            stays = below is not None and (pod is None or pod.priority >= below)
            if stays:
                continue
            emptied.release(uid)
            if pod is not None:
                emptied.used -= pod.requests
        return emptied
