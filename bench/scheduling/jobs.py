"""Jobs that compete for GPUs, in the scheduler's core alone: what a plan takes, and whether every job starts whole."""

import heapq
import random
import time
from collections import deque
from collections.abc import Iterator

from bench.result import Results, Say
from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL
from gpuscheduler.core.calls import BindOutcome, BindWait, BindWrite, CommitJob, Nudge
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named
from gpuscheduler.core.scheduling import Scheduling
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import job

NODES, WAITING = 100, 10
SIZES = ((2, 4), (2, 8), (3, 2), (4, 8), (8, 1), (8, 8), (16, 8))
"""Pods of a job, and GPUs of each: 35 GPUs a job on average, of 800."""
MEAN_S, SEED = 60.0, 1


def measure(results: Results, count: int, say: Say) -> None:
    """Run `count` jobs."""
    say(f"scheduler: {count:,} jobs in the core")
    began, run = time.perf_counter(), _Run(count)
    run.all()
    value = f"{run.complete:,} whole, {run.partial} in part; {time.perf_counter() - began:.0f} s in all"
    what = f"{count:,} jobs on {NODES} nodes, {WAITING} wait at any time"
    results.row(what, value, "all whole", run.complete == count and not run.partial)
    for name, seconds in (
        ("filter call for a job's pod", run.filters),
        ("planning one of the jobs that wait", run.ticks),
    ):
        got = results.keep(f"scheduler jobs: {name} ms", [one * 1000 for one in seconds])
        results.row(name, f"p50 {got['p50']:.2f}, p99 {got['p99']:.1f}, worst {got['max']:.0f} ms")


class _Run:
    """Plays kube-scheduler and the API server, in simulated time.

    Attributes:
        complete: jobs whose pods were all bound.
        partial: jobs seen with some of their pods bound.
        filters, ticks: seconds that each took.
    """

    def __init__(self, count: int) -> None:
        mix = Mix()
        self._core = Scheduling(named("strand", mix), mix)
        self._names = {f"node-{n}": None for n in range(NODES)}.keys()
        for facts in map(node_facts, map(whole_node, self._names)):
            assert facts is not None
            self._core.node_seen(facts)
        self._now = 0.0
        self._core.synced(self._now)
        self._rng = random.Random(SEED)  # noqa: S311 (equal runs)
        self._coming = self._jobs(count)
        self._tries: deque[Json] = deque()
        self._in_bind: dict[str, str] = {}
        self._unbound: dict[str, dict[str, Json]] = {}
        self._running: list[tuple[float, str]] = []
        self._sizes: dict[str, int] = {}
        self.complete = self.partial = 0
        self.filters: list[float] = []
        self.ticks: list[float] = []

    def all(self) -> None:
        """Until nothing happens any more."""
        while True:
            while len(self._unbound) < WAITING and (members := next(self._coming, None)):
                self._create(members)
            while self._tries:
                self._try(self._tries.popleft())
            due, end = self._core.next_due(self._now), self._running[0][0] if self._running else None
            if due is not None and (end is None or due <= end):
                self._now, began = max(self._now, due), time.perf_counter()
                self._core.tick(self._now)
                self.ticks.append(time.perf_counter() - began)
            elif end is not None:
                self._now, name = heapq.heappop(self._running)
                for n in range(self._sizes.pop(name)):
                    self._core.pod_gone(f"{name}-{n}", self._now)
            else:
                return
            self._settle()

    def _jobs(self, count: int) -> Iterator[list[Json]]:
        for number in range(count):
            replicas, gpus = self._rng.choice(SIZES)
            yield job(f"job-{number:05}", replicas, {GPU_WHOLE: gpus})

    def _create(self, members: list[Json]) -> None:
        for pod in members:
            metadata = pod["metadata"]
            metadata |= {"uid": metadata["name"], "namespace": "default", "creationTimestamp": f"{self._now:012.3f}"}
            self._core.pod_seen(pod_facts(pod), self._now)
        name = members[0]["metadata"]["labels"][JOB_LABEL]
        self._unbound[name] = {pod["metadata"]["uid"]: pod for pod in members}
        self._sizes[name] = len(members)
        self._tries += members
        self._settle()

    def _try(self, pod: Json) -> None:
        """Have a pod placed that is neither bound nor in bind."""
        facts = pod_facts(pod)
        if facts.node or facts.uid in self._in_bind:
            return
        began = time.perf_counter()
        answer = self._core.filter(facts, self._names, self._now)
        self.filters.append(time.perf_counter() - began)
        if answer.nodes:
            self._in_bind[facts.uid] = answer.nodes[0]
        self._settle()

    def _settle(self) -> None:
        """Carry out actions, and have the calls that wait in bind ask again, until nothing changes."""
        changed = True
        while changed:
            changed = sum(map(self._bind, list(self._in_bind))) > 0
            for action in self._core.actions():
                changed = True
                if isinstance(action, CommitJob):
                    self._core.committed(action.job, self._now, written=True)
                elif isinstance(action, Nudge) and (pod := self._pod(action.uid)):
                    self._tries.append(pod)
        for name, members in list(self._unbound.items()):
            if not members:
                del self._unbound[name]
                self.complete += 1
                heapq.heappush(self._running, (self._now + self._rng.expovariate(1 / MEAN_S), name))
            elif len(members) < self._sizes[name]:
                self.partial += 1

    def _pod(self, uid: str) -> Json | None:
        return self._unbound.get(uid.rpartition("-")[0], {}).get(uid)

    def _bind(self, uid: str) -> bool:
        """Ask for the Binding of a pod; whether the call ended."""
        answer = self._core.bind(uid, self._in_bind[uid], self._now, 1)
        if isinstance(answer, BindWait):
            return False
        del self._in_bind[uid]
        if isinstance(answer, BindWrite):
            pod = self._unbound[uid.rpartition("-")[0]].pop(uid)
            pod["metadata"]["annotations"] |= answer.annotations
            pod["spec"]["nodeName"] = answer.node
            self._core.bound(uid, BindOutcome.BOUND)
            self._core.pod_seen(pod_facts(pod), self._now)
        return True
