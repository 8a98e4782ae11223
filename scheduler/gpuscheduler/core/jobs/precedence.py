"""Keeps nodes for the first job that waits, so that pods behind it do not take what becomes free there.

A job needs room for many pods at one time. Smaller pods that come later would take each part of it, so that a job of
high priority waits for as long as they come. Only one job has nodes kept: two that kept nodes from each other might
both wait for ever. A job that only has waited for too long may need pods to end that run for ever, so that it keeps
nodes for a while, and then none for as long.
"""

import math
from collections import Counter
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
NODES_AGAIN_S = 10.0
"""Time between two choices of nodes for a job for which there were none, if only their pods have changed."""
PAUSE_FROM = 0.75
"""Mantissa of a time from which a job pauses: the middle between two powers of 2, which are 0.5 and 1.0 of the next."""
ROUNDING_S = 0.001
"""What a sum of times may be off."""
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
        self._lowest = 0
        """The lowest priority of pods and jobs that have come, or the default one."""
        self._checked: object = None
        """What the claim was compared with last."""

    def kept_from(self, pod: PodFacts) -> frozenset[str]:
        """Names of the nodes that are kept for a job before this pod."""
        return self._kept_from(key_of(pod), (-pod.priority, pod.created))

    def kept_from_job(self, job: Job) -> frozenset[str]:
        """Names of the nodes that are kept for another job before this one."""
        return self._kept_from(job.key, job.age)

    def _kept_from(self, key: JobKey, rank: Rank) -> frozenset[str]:
        negative_priority, _ = rank
        self._lowest = min(self._lowest, -negative_priority)
        if self.claim is None or self.claim.key == key:
            return frozenset()
        return self.claim.nodes if self.claim.precedes(rank) else frozenset()

    def why(self, namespace: str) -> str:
        """Why the nodes of the claim take no pod of a namespace that is behind. Names stay in their own namespace."""
        is_own = self.claim is not None and self.claim.key.namespace == namespace
        title = self.claim.key.title if self.claim and is_own else "a job of another namespace"
        return f"node(s) were kept for {title}, which comes first"

    def is_overdue(self, job: Job, now: float) -> bool:
        """Whether the job has waited for too long, and it is no pause.

        It keeps nodes for as long as the patience, and pauses for as long. Each time, both are twice as long as before:
        in the end, it is as long as other pods run.
        """
        return _keeps_nodes(*self._waited(job, now))

    def overdue_changes_at(self, job: Job, now: float) -> float:
        """When `is_overdue` changes next; infinite if it does not."""
        if not self.patience_s or job.waits_since == float("inf"):
            return float("inf")
        share, exponent = self._waited(job, now)
        end = math.ldexp(PAUSE_FROM if _keeps_nodes(share, exponent) else 1.0, exponent)
        return job.waits_since + (end - 1) * self.patience_s

    def _waited(self, job: Job, now: float) -> tuple[float, int]:
        """How long the job has waited, in units of the patience, and one more: as mantissa and exponent of 2."""
        waits = now - job.waits_since + ROUNDING_S
        if not self.patience_s or waits < 0:
            return math.frexp(1.0)
        return math.frexp(waits / self.patience_s + 1)

    def wanted(
        self,
        job: Job,
        pending: Collection[PodFacts],
        now: float,
    ) -> None:
        """Take that there is no room for a job now. It gets nodes if it is the first that waits."""
        overdue = self.is_overdue(job, now)
        negative_priority, _ = job.age
        priority = -negative_priority
        if priority <= self._lowest and not overdue:
            # No pod that has come is behind it, and to choose nodes takes a while.
            return
        is_its_own = self.claim is not None and self.claim.key == job.key
        if self.claim and not is_its_own and self.claim.rank <= job.age:
            return
        # Each event of the job comes here, and to compare its claim with the cluster takes a plan.
        compared_with = self._usage.frees, job.age, job.rejections, overdue
        if is_its_own and self._checked == compared_with:
            return
        self._checked = compared_with
        # Where there are none, each event of the job would have them looked for again.
        made_of = len(self._usage.nodes), job.members.version, job.rejections, overdue
        is_in_vain = not is_its_own and job.nodes_tried == made_of
        if is_in_vain and now < job.nodes_again_at:
            return
        job.nodes_tried = made_of
        job.nodes_again_at = now + NODES_AGAIN_S
        pending = job.as_checked(pending)
        # Pods of a higher priority do not leave their nodes to it.
        below = priority + 1
        if self.claim and self._holds(self.claim, job, pending, overdue=overdue):
            return
        nodes = self._nodes_for(pending, job.never_suitable(), below)
        if nodes:
            self._set(Claim(job.key, job.age, overdue, nodes))
        else:
            self.ends(job)

    def _holds(
        self,
        claim: Claim,
        job: Job,
        pending: Collection[PodFacts],
        *,
        overdue: bool,
    ) -> bool:
        """Whether a claim is this job's, and its pods would still fit on the nodes."""
        is_its_own = claim.key == job.key and claim.rank == job.age and claim.overdue == overdue
        if not is_its_own or not claim.nodes <= self._usage.nodes.keys():
            return False
        negative_priority, _ = job.age
        below = 1 - negative_priority
        return bool(self._emptied_for(pending, job.never_suitable(), claim.nodes, Tries(NODES_TRIES), below))

    def preemptable(self, job: Job, pod: PodFacts, proposed: Collection[str]) -> frozenset[str]:
        """The nodes where a pod of a job may have others evicted: none unless the job then starts whole.

        Those are nodes on which all of its pods that wait would fit if pods of lower priority had ended. As many as
        possible are among those that kube-scheduler proposes: of a large cluster, these are a part.
        """
        pending = [] if job.plan else job.wants_nodes()
        if not pending:
            return frozenset()
        return self._nodes_for(job.as_checked(pending), job.never_suitable(), pod.priority, proposed)

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
        below: int,
        proposed: Collection[str] = (),
    ) -> frozenset[str]:
        """The nodes on which the pods would fit if all of a priority below `below` had ended.

        They are those with the fewest pods, if possible, of the proposed ones.
        """
        reserved = Counter[str]()
        for pod in pending:
            reserved.update(self._usage.nodes_of(pod.uid))

        def price(name: str) -> tuple[bool, int, str]:
            # Room that is there already costs no pod its life. It may be reserved for a pod of the job.
            others = len(self._usage.nodes[name].users) - reserved[name]
            is_left_out = bool(proposed) and others > 0 and name not in proposed
            return is_left_out, others, name

        names = sorted(self._usage.nodes, key=price)
        count = 1
        tries = Tries(NODES_TRIES)
        while not tries.gave_up:
            nodes = self._emptied_for(pending, unsuitable, names[:count], tries, below)
            if nodes or count >= len(names):
                return nodes
            # A few nodes more than needed cost less than to try each number.
            count *= 2
        return frozenset()

    def _emptied_for(
        self,
        pending: Collection[PodFacts],
        unsuitable: Mapping[str, Passed],
        names: Collection[str],
        tries: Tries,
        below: int,
    ) -> frozenset[str]:
        """Those of the nodes on which the pods would fit, see `_nodes_for`; none if there are too few."""
        own = {pod.uid for pod in pending}
        places = plan(
            pending,
            {name: self._emptied(self._usage.nodes[name], below, own) for name in names},
            self._links,
            without=unsuitable,
            tries=tries,
            beside=self._usage.pods,
        )
        if len(places) < len(pending):
            return frozenset()
        return frozenset(node for node, _ in places.values())

    def _emptied(self, node: NodeUsage, below: int, own: Collection[str]) -> NodeUsage:
        """The node without the pods of a priority below `below` that use its GPUs, and without those of the job itself.

        GPUs that victims freed are reserved for the job's pods one by one.
        """
        emptied = node.copy()
        for uid in node.users:
            pod = self._pods.get(uid)
            leaves = uid in own or (pod is not None and pod.priority < below)
            if not leaves:
                continue
            emptied.release(uid)
            if pod is not None:
                emptied.used -= pod.requests
        return emptied


def _keeps_nodes(mantissa: float, exponent: int) -> bool:
    """Whether a job keeps nodes after such a time, see `Precedence._waited`: from a power of 2, from the second on."""
    return exponent > 1 and mantissa < PAUSE_FROM
