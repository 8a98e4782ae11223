"""Between the outside and the core: passes on events and calls, and has the core's actions carried out.

All of it runs on one event loop, so that the core takes one event or call at a time.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import KubeError
from gpuscheduler.cluster_api.evictions import Evictions
from gpuscheduler.cluster_api.writes import Writes
from gpuscheduler.core.calls import (
    Action,
    BindOutcome,
    BindRefused,
    BindWait,
    BindWrite,
    CommitJob,
    Evict,
    EvictOutcome,
    FilterAnswer,
    MoveAway,
)
from gpuscheduler.core.claims.claim_jobs import ClaimJobs
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.claims.gpu_claims import pod_claims
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.gangs.gang_object import GangObject, ObjectKey
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.pod_facts import PodFacts, pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.extender.carried_calls import CarriedCalls
from gpuscheduler.extender.protocol import BindCall, FilterCall, Json, PreemptCall
from gpuscheduler.extender.routes import Left

log = logging.getLogger(__name__)

BEHIND = "the scheduler's extender began to lead a moment ago; first it reads what the former leader bound"
CATCH_UP_S = 5.0
"""Longest wait for the watch to show a write."""
FIRST_CALL_S = 1.0
"""Longest wait of a call for that, and for the lease: kube-scheduler asks about one pod at a time, so a call keeps the
others back."""
DEFRAGMENTATION = "defragmentation"
"""Cause of evictions, in metrics."""
TICK_GAP_S = 0.02
"""Least time from a change to a tick, as changes come many at a time."""
TICK_AGAIN_S = 0.005
"""Least time from a tick to the next one, if more is due: calls come in between."""
TICK_PART = 3.0
"""The same as a multiple of what a tick took."""


class Service:
    """Serves kube-scheduler's calls from the core.

    Args:
        core: decides.
        claims: knows which nodes suit pods with claims.
        claim_jobs: knows which jobs of such pods may start in part.
        writes: to the API server.
        evictions: there, too.
        problem: why the view of the cluster is too old to decide with; empty if it is not.
        not_leading: why kube-scheduler's calls are not those of the leader; empty if they may be.
        read_lease: reads anew who leads.
        term: how often the kube-scheduler beside this process has begun to lead.
        lagged: called with the seconds from a Binding until the watch shows it.
    """

    def __init__(  # noqa: PLR0913 (by name)
        self,
        *,
        core: Scheduling,
        claims: ClaimNodes,
        claim_jobs: ClaimJobs,
        writes: Writes,
        evictions: Evictions,
        problem: Callable[[], str],
        not_leading: Callable[[], str],
        read_lease: Callable[[], Awaitable[None]],
        term: Callable[[], int],
        lagged: Callable[[float], None],
    ) -> None:
        self.core = core
        self.claims = claims
        self._claim_jobs = claim_jobs
        self.problem = problem
        self._writes = writes
        self._evictions = evictions
        self._not_leading = not_leading
        self._read_lease = read_lease
        self._lagged = lagged
        self._term = term
        self._caught_up = 0
        self._catching_up: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._bound_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._carried_calls = CarriedCalls(core.usage.nodes, problem)

    def node_seen(self, node: NodeFacts) -> None:
        """Take a node as it is now."""
        self.core.node_seen(node)
        self._settle()

    def site_seen(self, site: NodeSite) -> None:
        """Take a node without GPUs as it is now."""
        self.core.site_seen(site)
        self._settle()

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self.core.node_gone(name)
        self._settle()

    def gang_seen(self, found: GangObject) -> None:
        """Take an object that says which pods belong together."""
        self.core.gang_seen(found)
        self._settle()

    def gang_gone(self, key: ObjectKey, uid: str) -> None:
        """Forget such an object."""
        self.core.gang_gone(key, uid)
        self._settle()

    def gangs_readable(self, kind: ObjectKind, problem: str) -> None:
        """Take why no objects of a kind can be seen; empty if they can."""
        self.core.gangs_readable(kind, problem)
        self._settle()

    def pod_seen(self, pod: PodFacts) -> None:
        """Take a pod as it is now."""
        now = time.monotonic()
        bound_at = self._bound_at.pop(pod.uid, None) if pod.node else None
        if bound_at is not None:
            self._lagged(now - bound_at)
        self.core.pod_seen(pod, now)
        self._settle()
        if pod.claims:
            self._report_job(pod)

    def _report_job(self, pod: PodFacts) -> None:
        """Say that the job of a pod with claims may start in part."""
        resolved = self.core.gang_objects.resolved(pod)
        report = self._claim_jobs.report(resolved)
        if report:
            self._act(report)

    def pod_gone(self, uid: str) -> None:
        """Forget a pod."""
        self._bound_at.pop(uid, None)
        self.core.pod_gone(uid, time.monotonic())
        self._settle()

    def synced(self) -> None:
        """Answer calls from now on, as all nodes and pods were seen."""
        self.core.synced(time.monotonic())
        self._settle()

    def stop(self) -> None:
        """End the bind calls that wait for the other pods of a job."""
        self._stopping = True
        self._wake()

    async def filter(self, call: FilterCall) -> FilterAnswer:
        """Choose the node for a pod, see `Scheduling.filter`."""
        # An error would cost the pod a backoff of a second. To read the lease, and on in the watch, takes milliseconds.
        if self._not_leading():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._read_lease(), FIRST_CALL_S)
        problem = self._why_no_answer()
        if not problem and self._is_behind():
            await self._caught_up_within(FIRST_CALL_S, call)
            problem = self._why_no_answer() or (BEHIND if self._is_behind() else "")
        if problem:
            return FilterAnswer(error=problem)
        pod = self._pod(call.pod)
        answer = self.core.filter(pod, call.names or (), time.monotonic())
        self._settle()
        return answer

    async def filter_carried(self, call: FilterCall) -> FilterAnswer:
        """Say on which of the nodes that the call carries the pod fits."""
        # No pod is bound by the answer, so it may also come from a process that does not lead.
        return await self._carried_calls.answer(call)

    def prioritize(self, call: FilterCall) -> Mapping[str, int]:
        """Score nodes for a pod without GPUs in its limits; none if the view of the cluster is too old."""
        scores = self.prioritize_claims(call)
        if scores or self.problem():
            return scores
        # Nothing is reserved, so it does not matter who leads.
        return self.core.scores(self._pod(call.pod), call.node_names, self.claims)

    def prioritize_claims(self, call: FilterCall) -> Mapping[str, int]:
        """Score nodes for a pod with claims for GPUs, see `ClaimNodes.scores`; none for other pods."""
        claims = pod_claims(call.pod)
        return self.claims.scores(claims, call.node_names) if claims else {}

    async def bind(self, call: BindCall, left: Left) -> tuple[str, str]:
        """Bind a pod, for a member of a job together with the others."""
        answer = self._bind(call)
        self._settle()
        if isinstance(answer, BindWait):
            answer = await self._waited(call, answer.until, left)
        if isinstance(answer, BindRefused):
            refused = self.core.pods.get(call.uid)
            if refused:
                self.core.jobs.left_bind(refused)
            self._settle()
            return "refused", answer.reason
        result = await self._writes.bind(answer)
        self.core.bound(call.uid, result.outcome)
        self._settle()
        pod = self.core.pods.get(call.uid)
        # The watch may have been faster than the answer.
        is_unseen = pod is not None and not pod.node
        if result.outcome is BindOutcome.BOUND and is_unseen:
            self._bound_at[call.uid] = time.monotonic()
        return result.outcome.name.lower(), result.why

    def preempt(self, call: PreemptCall) -> Mapping[str, Sequence[str]]:
        """Choose victims, see `Scheduling.preempt`; none while filter calls get an error."""
        if not self._decides():
            return {}
        pod = self._pod(call.pod)
        victims = self.core.preempt(pod, call.proposed, time.monotonic(), call.violations)
        self._settle()
        return victims

    async def tick(self) -> None:
        """Have the core do what is due until canceled."""
        pause_s = TICK_GAP_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = TICK_GAP_S
            now = time.monotonic()
            due = self.core.next_due(now)
            if due is None or due > now:
                # Any event or call may make something due earlier.
                wait_s = None if due is None else due - now
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                continue
            self.core.defragmentation.may_begin = self._decides()
            try:
                self.core.tick(now)
            except Exception:
                # A bug must not end the process.
                log.exception("Tick failed")
            self._settle()
            took_s = time.monotonic() - now
            pause_s = max(TICK_AGAIN_S, TICK_PART * took_s)

    def _bind(self, call: BindCall) -> BindWrite | BindWait | BindRefused:
        # Also after a wait: another leader may have given the GPUs away.
        problem = self._not_leading()
        if problem:
            return BindRefused(problem)
        if self._is_behind():
            return BindRefused(BEHIND)
        return self.core.bind(call.uid, call.node, time.monotonic(), time.time_ns())

    async def _waited(
        self,
        call: BindCall,
        until: float,
        left: Left,
    ) -> BindWrite | BindRefused:
        """The answer when the job's other pods are in bind too, or its plan broke."""
        gone = asyncio.ensure_future(left())
        # It has to end the wait below, which may last until the job is complete.
        gone.add_done_callback(lambda _: self._wake())
        try:
            while not (gone.done() or self._stopping):
                with suppress(TimeoutError):
                    async with asyncio.timeout(until - time.monotonic()):
                        await self._changed.wait()
                answer = self._bind(call)
                if not isinstance(answer, BindWait):
                    self._settle()
                    return answer
                until = answer.until
        finally:
            gone.cancel()
        why = "the scheduler's extender stops" if self._stopping else "kube-scheduler ended the call"
        return BindRefused(why)

    def _settle(self) -> None:
        """Carry out the core's actions after a call of it, and have bind calls that wait ask it again."""
        for action in self.core.actions():
            self._act(action)
        self._wake()

    def _act(self, action: Action) -> None:
        match action:
            case CommitJob():
                self._begin(self._commit(action))
            case Evict():
                self._begin(self._evict(action))
            case MoveAway():
                self._begin(self._move_away(action))
            case _:
                self._writes.add(action)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Have it done beside everything else."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _why_no_answer(self) -> str:
        """Why no call can be answered now; empty if they can."""
        return self.problem() or self._not_leading()

    async def _caught_up_within(self, seconds: float, call: FilterCall) -> None:
        """Wait so long at most until the watch has shown what the former leader bound."""
        # One write shows the state for all calls.
        if self._catching_up is None or self._catching_up.done():
            catching_up = self._catch_up(self._pod(call.pod), self._term())
            self._catching_up = asyncio.ensure_future(catching_up)
        await asyncio.wait({self._catching_up}, timeout=seconds)

    async def _catch_up(self, pod: PodFacts, term: int) -> None:
        """Wait until the watch shows a write to a waiting pod: then it has shown what the former leader bound."""
        try:
            version = await self._writes.marked(pod.name, pod.uid)
        except KubeError as err:
            reason = {"pod": str(pod.name), "reason": str(err)}
            log.warning("Failed to catch up with the former leader", extra=reason)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                while not self._has_seen(pod.uid, int(version)):
                    await self._changed.wait()
                self._caught_up = term
                self.core.caught_up(time.monotonic())
                self._settle()

    def _pod(self, pod: Json) -> PodFacts:
        """The pod of a call. Most have been read from the watch in the same version, and are not read again."""
        metadata = mapping(pod.get("metadata"))
        version = metadata.get("resourceVersion")
        seen = self.core.pods.get(text(metadata.get("uid")))
        # The core keeps other values of a bound pod than the API server shows.
        if seen and not seen.node and version and seen.version == version:
            return seen
        return pod_facts(pod)

    def _has_seen(self, uid: str, version: int) -> bool:
        """Whether the watch has shown a pod at this version, or at a later one."""
        pod = self.core.pods.get(uid)
        return pod is not None and int(pod.version) >= version

    def _decides(self) -> bool:
        """Whether this process leads, and knows what is bound."""
        return not (self._why_no_answer() or self._is_behind())

    def _is_behind(self) -> bool:
        """Whether the watch may not have shown yet what a former leader bound."""
        return self._caught_up != self._term()

    async def _commit(self, action: CommitJob) -> None:
        written = await self._writes.commit(action)
        self.core.committed(action.job, time.monotonic(), written=written)
        self._settle()

    async def _evict(self, action: Evict) -> None:
        jobs = self.core.jobs
        outcome, why = await self._evictions.evict(
            action.pod,
            action.uid,
            action.cause,
            is_wanted=lambda: jobs.wants_evicted(action),
        )
        jobs.evicted(action, outcome, why, time.monotonic())
        self._settle()

    async def _move_away(self, action: MoveAway) -> None:
        if action.is_trial:
            outcome, why = await self._evictions.would_evict(action.pod, action.uid)
        else:
            defragmentation = self.core.defragmentation
            outcome, why = await self._evictions.evict(
                action.pod,
                action.uid,
                DEFRAGMENTATION,
                is_wanted=lambda: defragmentation.is_wanted(action.uid),
            )
            if outcome is EvictOutcome.EVICTED:
                log.info("Evicted a pod so that another has room", extra={"pod": str(action.pod)})
        self.core.eviction_answered(action.uid, outcome, why, time.monotonic())
        self._settle()

    def _wake(self) -> None:
        """Wake all who wait for a change now."""
        self._changed.set()
        self._changed.clear()
