"""What pods cost that a tenant may write: thousands under one label, thousands of jobs, a pod of many containers."""

import random
import time
from collections.abc import Callable, Iterable

from bench.result import Results, Say
from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE
from gpuscheduler.core.calls import CommitJob
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import PodFacts, pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named
from gpuscheduler.core.scheduling import Scheduling
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.nodes import share_node, whole_node
from tests.e2e.scheduler.pods import job, pod

MEMBERS, JOB_NODES = 4000, 100
MEMBERS_S = 2.0
"""Longest time of the event loop for all pods under one job label."""
JOBS, MANY_NODES = 2000, 5000
CONTAINERS, GPUS, SHARE_NODES = 32, 16, 1000
CONTAINERS_MS = 10.0
"""Longest filter call for a pod of many containers."""
Make = Callable[[str], Json]


def measure(results: Results, say: Say, *, quick: bool) -> None:
    """Measure in the core, from the objects that users write on."""
    say("scheduler: pods that a tenant may write")
    _one_label(results)
    _many_jobs(results, JOBS // 10 if quick else JOBS)
    _many_containers(results)


def _one_label(results: Results) -> None:
    """Each pod asks for a GPU, and says that its job has as many pods as there are."""
    core = _core(whole_node, JOB_NODES)
    members = job("crafted", MEMBERS, {GPU_WHOLE: 1})
    steps = _steps(core, members, [f"node-{n}" for n in range(JOB_NODES)])
    _row(results, f"{MEMBERS:,} pods under one job label", steps, MEMBERS_S)


def _many_jobs(results: Results, count: int) -> None:
    """Jobs of two pods that come at once."""
    core = _core(whole_node, MANY_NODES)
    members = [member for number in range(count) for member in job(f"job-{number}", 2, {GPU_WHOLE: 4})]
    steps = _steps(core, members, [f"node-{n}" for n in range(MANY_NODES)])
    _row(results, f"{count:,} jobs at once on {MANY_NODES:,} nodes", steps, None)


def _row(results: Results, what: str, steps: list[float], bar_s: float | None) -> None:
    kept = results.keep(f"scheduler: {what}: ms", [seconds * 1000 for seconds in steps])
    text = f"{sum(steps):.2f} s of the event loop; longest step {kept['max']:.0f} ms"
    holds = None if bar_s is None else sum(steps) < bar_s
    results.row(what, text, f"< {bar_s:g} s" if bar_s else "", holds)


def _many_containers(results: Results) -> None:
    """Containers of unequal sizes that fit on no node, so that each node is searched."""
    core = _core(lambda name: share_node(name, gpus=GPUS, units=20), SHARE_NODES)
    names = [f"node-{n}" for n in range(SHARE_NODES)]
    rng = random.Random(1)  # noqa: S311 (equal runs)
    # The first call about any pod reads all nodes.
    core.filter(_as_stored(pod("usual", {GPU_MEM: 4})), names, 0.0)
    took = []
    for number in range(20):
        limits = [{GPU_MEM: rng.randint(6, 14)} for _ in range(CONTAINERS)]
        facts = _as_stored(pod(f"crafted-{number}", *limits))
        core.pod_seen(facts, float(number))
        began = time.perf_counter()
        core.filter(facts, names, float(number))
        took.append((time.perf_counter() - began) * 1000)
    what = f"filter call for a pod of {CONTAINERS} containers, {SHARE_NODES:,} nodes of {GPUS} GPUs"
    kept = results.keep(f"scheduler: {what}: ms", took)
    text = f"p50 {kept['p50']:.1f} ms, worst {kept['max']:.1f} ms"
    results.row(what, text, f"< {CONTAINERS_MS:g} ms", kept["max"] < CONTAINERS_MS)


def _core(make: Make, nodes: int) -> Scheduling:
    mix = Mix()
    core = Scheduling(named("strand", mix), mix)
    for number in range(nodes):
        facts = node_facts(make(f"node-{number}"))
        assert facts is not None
        core.node_seen(facts)
    core.synced(0.0)
    return core


def _steps(core: Scheduling, pods: Iterable[Json], names: list[str]) -> list[float]:
    """Seconds of each step: the watch shows a pod, kube-scheduler asks about it, and what is due is done."""
    steps = []
    for number, written in enumerate(pods):
        now = number / 100
        began = time.perf_counter()
        facts = _as_stored(written)
        core.pod_seen(facts, now)
        core.filter(facts, names, now)
        due = core.next_due(now)
        if due is not None and due <= now:
            core.tick(now)
        for action in core.actions():
            if isinstance(action, CommitJob):
                core.committed(action.job, now, written=True)
        steps.append(time.perf_counter() - began)
    return steps


def _as_stored(written: Json) -> PodFacts:
    """A pod as the API server stores it."""
    metadata = written["metadata"]
    stored = {"uid": metadata["name"], "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return pod_facts(written | {"metadata": metadata | stored})
