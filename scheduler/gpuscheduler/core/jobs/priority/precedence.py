"""Keeps nodes for the first jobs that wait, so that pods behind them do not take what becomes free there.

A job needs room for many pods at one time. Smaller pods that come later would take each part of it, so that a job of
high priority waits for as long as they come. The jobs stand in one order, and each chooses among the nodes that none
before it has: two that kept nodes from each other might both wait for ever.

A job that only has waited for too long may need pods to end that run for ever. So it keeps nodes for a while, and then
pauses. There may be many such jobs. Therefore one of them keeps nodes at one time, no other one begins at once, and
they keep nodes for half of the time at most.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.jobs.job import Job, JobKey, key_of
from gpuscheduler.core.jobs.priority.after_evictions import AfterEvictions, Waiting
from gpuscheduler.core.jobs.priority.endings import Endings
from gpuscheduler.core.jobs.priority.overdue_turns import OverdueTurn, overdue_turn
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import PodFacts

NODES_AGAIN_S = 10.0
"""Time between two choices of nodes for a job for which there were none, if only their pods have changed."""
ROUNDING_S = 0.001
"""What a sum of times may be off."""
MOST_CLAIMS = 8
"""Jobs for which nodes are kept at one time. Each choice of nodes takes as long as a plan."""
Rank = tuple[int, str]
"""Negative priority, and creation time: the least comes first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The nodes that are kept for a job.

    Attributes:
        key: of the job.
        rank: of the job.
        overdue: the job has waited for too long, so that later pods of its own priority are behind it, too.
        since: from when on nodes are kept for overdue jobs, this one or others.
        nodes: names.
    """

    key: JobKey
    rank: Rank
    overdue: bool
    since: float
    nodes: frozenset[str]

    @property
    def priority(self) -> int:
        """Of the job."""
        negative_priority, _ = self.rank
        return -negative_priority

    def is_before(self, job: Job) -> bool:
        """Whether the job of the claim stands before another one."""
        return (self.rank, self.key) < (job.age, job.key)

    def precedes(self, rank: Rank) -> bool:
        """Whether a pod or job of this rank has to leave the nodes to the job."""
        if self.overdue:
            return rank > self.rank
        priority, _ = rank
        own_priority, _ = self.rank
        return priority > own_priority


class Precedence:
    """The claims of the first jobs that wait.

    Args:
        usage: nodes and their users.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        patience_s: how long a job waits before later pods of its own priority are behind it, too; 0 for never.
        work: of all namespaces.

    Attributes:
        endings: pods that end without an eviction.
        claims: by job, the first one first.
        outdated: jobs whose nodes are to be chosen with the next ticks. For example, pods have come there that do not
            leave them to the job.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        links: Links,
        pods: Mapping[str, PodFacts],
        patience_s: float,
        work: WorkShares,
    ) -> None:
        self._usage = usage
        self.endings = Endings()
        self._after = AfterEvictions(usage, links, pods, self.endings, work)
        self.patience_s = patience_s
        self.claims: dict[JobKey, Claim] = {}
        self.outdated: set[JobKey] = set()
        self._lowest = 0
        """The lowest priority of pods and jobs that have come, or the default one."""
        self._rests_until = float("-inf")
        """Until then no nodes are kept from pods of the same priority, as they were kept in vain before."""
        self._checked: dict[JobKey, object] = {}
        """What each claim was compared with last."""
        self._has_vacancy = False
        """A job has left its nodes to others since this was asked for."""

    def take_vacancy(self) -> bool:
        """Whether a job has left its nodes to others since the last call of this."""
        has_vacancy = self._has_vacancy
        self._has_vacancy = False
        return has_vacancy

    @property
    def claim(self) -> Claim | None:
        """That of the first job; None if no nodes are kept."""
        return next(iter(self.claims.values()), None)

    def kept_from(self, pod: PodFacts) -> frozenset[str]:
        """Names of the nodes that are kept for a job before this pod."""
        return self._kept_from(key_of(pod), (-pod.priority, pod.created))

    def kept_from_job(self, job: Job) -> frozenset[str]:
        """Names of the nodes that are kept for another job before this one."""
        return self._kept_from(job.key, job.age)

    def _kept_from(self, key: JobKey, rank: Rank) -> frozenset[str]:
        negative_priority, _ = rank
        self._lowest = min(self._lowest, -negative_priority)
        nodes = frozenset[str]()
        for claim in self._preceding(key, rank):
            nodes |= claim.nodes
        return nodes

    def _preceding(self, key: JobKey, rank: Rank) -> list[Claim]:
        """The claims of other jobs that come before a pod or job of this rank."""
        return [claim for claim in self.claims.values() if claim.key != key and claim.precedes(rank)]

    def reasons(self, pod: PodFacts) -> dict[str, str]:
        """Name of each node that is kept before a pod, and why it does not get it."""
        why: dict[str, str] = {}
        for claim in self._preceding(key_of(pod), (-pod.priority, pod.created)):
            why.update(dict.fromkeys(claim.nodes, _why(claim, pod.name.namespace)))
        return why

    def reason_for_job(self, job: Job) -> str:
        """How many nodes are kept before a job, and for which others."""
        counts = Counter[str]()
        for claim in self._preceding(job.key, job.age):
            counts[_why(claim, job.key.namespace)] += len(claim.nodes)
        return ", ".join(f"{count} {why}" for why, count in counts.items())

    def taken(self, pod: PodFacts) -> None:
        """Take that a pod is on a node from now on. A job needs other nodes if the pod does not leave its own to it."""
        own = key_of(pod) if pod.job else None
        for claim in self.claims.values():
            if pod.node in claim.nodes and pod.priority > claim.priority and claim.key != own:
                self.outdated.add(claim.key)
                self._checked.pop(claim.key, None)

    def is_overdue(self, job: Job, now: float) -> bool:
        """Whether the job has waited for too long, and it is its turn, see `overdue_turn`."""
        own = self.claims.get(job.key)
        is_its_own = own is not None and own.overdue
        rests = now < self._rests_until and not is_its_own
        if not self.patience_s or rests:
            return False
        return self._turn(job, now).keeps_nodes

    def overdue_changes_at(self, job: Job, now: float) -> float:
        """When `is_overdue` changes next; infinite if it does not."""
        if not self.patience_s or job.room_wait.since == float("inf"):
            return float("inf")
        changes_at = job.room_wait.since + self._turn(job, now).until_s
        rests = now < self._rests_until
        return min(changes_at, self._rests_until) if rests else changes_at

    def _turn(self, job: Job, now: float) -> OverdueTurn:
        waited_s = now - job.room_wait.since + ROUNDING_S
        return overdue_turn(waited_s, self.patience_s)

    def wanted(
        self,
        job: Job,
        pending: Collection[PodFacts],
        now: float,
    ) -> None:
        """Take that there is no room for a job now. It gets nodes if it is one of the first that wait."""
        overdue = self.is_overdue(job, now) and not self._is_overdue_before(job)
        own = self.claims.get(job.key)
        if not self._may_keep_nodes(job, own, overdue=overdue):
            return
        before = self._nodes_before(job)
        # Each event of the job comes here, and to compare its claim with the cluster takes a plan.
        compared_with = self._usage.frees, job.age, job.rejected.room_changes, overdue, before
        is_compared = self._checked.get(job.key) == compared_with
        if own and is_compared:
            return
        # Where there are none, each event of the job would have them looked for again.
        made_of = len(self._usage.nodes), job.members.version, job.rejected.room_changes, overdue, before
        is_in_vain = own is None and job.room_wait.nodes_tried == made_of
        if is_in_vain and now < job.room_wait.nodes_again_at:
            return
        job.room_wait.nodes_tried = made_of
        job.room_wait.nodes_again_at = now + NODES_AGAIN_S
        # Pods of a higher priority do not leave their nodes to it.
        waiting = _waiting(job, pending, _priority(job) + 1)
        if own and self._holds(own, job, waiting, before, overdue=overdue):
            self._checked[job.key] = compared_with
            return
        places = self._after.places(waiting, before)
        if not places:
            self.ends(job, now)
            return
        nodes = frozenset(places.values())
        former_overdue = self._overdue()
        since = former_overdue.since if former_overdue else now
        self._put(Claim(job.key, job.age, overdue, since, nodes), now)
        self._checked[job.key] = compared_with

    def _may_keep_nodes(self, job: Job, own: Claim | None, *, overdue: bool) -> bool:
        """Whether pods may come that have to leave nodes to the job, and it is one of the first. `own` is its claim."""
        any_behind = _priority(job) > self._lowest
        if not any_behind and not overdue:
            # To choose nodes takes a while.
            return False
        return own is not None or self._is_among_first(job)

    def _is_overdue_before(self, job: Job) -> bool:
        """Whether another job that stands before this one has waited for too long, too, and keeps nodes."""
        claim = self._overdue()
        return claim is not None and claim.key != job.key and claim.is_before(job)

    def _overdue(self) -> Claim | None:
        """The claim of a job that has waited for too long. There is one at most."""
        overdue = (claim for claim in self.claims.values() if claim.overdue)
        return next(overdue, None)

    def _is_among_first(self, job: Job) -> bool:
        """Whether the job stands before one of those that keep nodes, or there may be more of them."""
        if len(self.claims) < MOST_CLAIMS:
            return True
        last = next(reversed(self.claims.values()))
        return not last.is_before(job)

    def _nodes_before(self, job: Job) -> frozenset[str]:
        """Names of the nodes of the jobs that stand before this one, also of those of its own priority."""
        nodes = frozenset[str]()
        for claim in self.claims.values():
            if claim.key != job.key and claim.is_before(job):
                nodes |= claim.nodes
        return nodes

    def _holds(
        self,
        claim: Claim,
        job: Job,
        waiting: Waiting,
        before: frozenset[str],
        *,
        overdue: bool,
    ) -> bool:
        """Whether a claim of the job is up to date, and its pods would still fit on the nodes.

        `before` are the nodes that jobs keep which stand before it.
        """
        is_same = claim.rank == job.age and claim.overdue == overdue
        return is_same and claim.nodes.isdisjoint(before) and bool(self._after.places_on(waiting, claim.nodes))

    def preemptable(self, job: Job, pod: PodFacts, proposed: Collection[str]) -> frozenset[str]:
        """The nodes where a pod of a job may have others evicted: none unless the job then starts whole.

        Those are nodes on which all of its pods that wait would fit if pods of lower priority had ended. As many as
        possible are among those that kube-scheduler proposes: of a large cluster, these are a part. There are none if
        pods that end anyway make room enough, such as those that were evicted for the job before.
        """
        pending = [] if job.plan else job.wants_nodes()
        below = _evicts_below(job, pending)
        if below is None:
            return frozenset()
        kept = self.kept_from_job(job)
        # kube-scheduler asks for each pod of the job in turn.
        below = min(below, pod.priority)
        made_of = (
            self._usage.version,
            self.endings.version,
            job.rejected.room_changes,
            len(pending),
            below,
            kept,
            frozenset(proposed),
        )
        former, nodes = job.room_wait.evictable
        if former != made_of:
            waiting = _waiting(job, pending, below)
            nodes = frozenset()
            if not self._after.fit_without_evictions(waiting, kept):
                places = self._after.places(waiting, kept, proposed)
                nodes = frozenset(places.values())
            job.room_wait.evictable = made_of, nodes
        return nodes

    def places_after_evictions(self, job: Job, nodes: Collection[str] | None = None) -> dict[str, str]:
        """UID of each pod of a job to the node where it would fit if pods of lower priority had ended.

        It is empty unless the job would start then, and is the one for which nodes are kept. It is also empty if pods
        that end anyway make room enough. `nodes` are the only ones for it; None for any.
        """
        first = self.claim
        is_first = first is not None and first.key == job.key
        pending = job.to_plan()
        if not is_first or not pending:
            return {}
        lowest = min(pod.priority for pod in pending)
        waiting = _waiting(job, pending, lowest)
        if self._after.fit_without_evictions(waiting, ()):
            return {}
        return self._after.places(waiting) if nodes is None else self._after.places_on(waiting, nodes)

    def ends(self, job: Job, now: float) -> None:
        """Take that a job does not wait any more."""
        if job.key in self.claims:
            others = [claim for claim in self.claims.values() if claim.key != job.key]
            self._set(others, now, in_vain=job.plan is None)

    def _put(self, claim: Claim, now: float) -> None:
        """Keep nodes for a job: those of the claim, in the place of others if it has some."""
        others = [other for other in self.claims.values() if other.key != claim.key]
        if claim.overdue:
            others = [other for other in others if not other.overdue]
        self._set([*others, claim], now)

    def _set(self, claims: Collection[Claim], now: float, *, in_vain: bool = True) -> None:
        former = self.claims
        former_overdue = self._overdue()
        in_order = sorted(claims, key=lambda claim: (claim.rank, claim.key))
        self.claims = {claim.key: claim for claim in in_order[:MOST_CLAIMS]}
        for key in former.keys() - self.claims.keys():
            self._checked.pop(key, None)
            self._has_vacancy = True
        is_only_added = former.items() <= self.claims.items()
        if not is_only_added or self._have_nodes_in_common():
            # Pods that were refused for a claim may fit now, and jobs that stand behind a new one need other nodes.
            self._usage.frees += 1
        if former_overdue and in_vain and self._overdue() is None:
            self._rests_until = now + (now - former_overdue.since)

    def _have_nodes_in_common(self) -> bool:
        """Whether two jobs keep one node, because the first of them came later."""
        count = sum(len(claim.nodes) for claim in self.claims.values())
        names = frozenset[str]().union(*(claim.nodes for claim in self.claims.values()))
        return len(names) < count


def _why(claim: Claim, namespace: str) -> str:
    """Why the nodes of a claim take no pod of a namespace that is behind. Names stay in their own namespace."""
    is_own = claim.key.namespace == namespace
    title = claim.key.title if is_own else "a job of another namespace"
    return f"node(s) were kept for {title}, which comes first"


def _priority(job: Job) -> int:
    """The highest of its pods."""
    negative_priority, _ = job.age
    return -negative_priority


def _waiting(job: Job, pending: Collection[PodFacts], below: int) -> Waiting:
    """Pods of a job, for which pods of a lower priority than `below` may end."""
    needed = min(job.needed, len(pending))
    return Waiting(job.rejected.as_checked(pending), needed, job.rejected.nodes_with_room(), below)


def _evicts_below(job: Job, pending: Collection[PodFacts]) -> int | None:
    """The priority below which pods may be evicted so that these pods of a job start; None if none may.

    A pod of high priority makes no room for others of its job that could not make it themselves.
    """
    willing = [pod.priority for pod in pending if pod.may_preempt]
    needed = min(job.needed, len(pending))
    if not pending or len(willing) < needed:
        return None
    willing.sort(reverse=True)
    return willing[needed - 1]
