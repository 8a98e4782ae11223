"""The scheduler with a real etcd, API server and kube-scheduler: speed, processor time, memory.

Nodes are objects without a machine: they are Ready from the start, and nothing runs the pods that are bound to them.
"""

import datetime as dt
import os
import re
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import bigcluster
from bench.agent.resting import fields, ticks
from bench.node import BenchError
from bench.result import Results, Say
from bench.scheduling.requests import many_requests, pods_of, trace_pods
from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.build import bin_dir
from tests.e2e.cluster import pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.cluster.processes import Process
from tests.e2e.scheduler.control_plane import BINARIES, LEASE, LEASES, PODS, ControlPlane
from tests.e2e.scheduler.nodes import core_node, share_node, whole_node
from tests.e2e.scheduler.pods import job
from tests.e2e.scheduler.replica import Replica

KINDS: tuple[Callable[[str], Json], ...] = (share_node, share_node, core_node, whole_node)
RATE, P99_MS, RSS_MIB, READY_S = 100.0, 10.0, 150.0, 10.0
LARGE = 1000
PART_LARGE, PART_SMALL = 0.98, 0.95
"""Of the pods a second of the same kube-scheduler without the extender; on at least `LARGE` nodes, and on fewer."""
JOB_S = {8: 1.0, 64: 3.0}
"""Pods of a job to the seconds until all are bound, from when the last was created."""
LONGEST_S = 600.0
WRITERS, BATCH = 4, 500
_SECONDS = "gpuscheduler_call_duration_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of nodes, pods of each run, pairs of runs, runs of each size of job, and pods that are there already."""

    nodes: int = 5_000
    pods: int = 2_000
    pairs: int = 2
    jobs: int = 5
    present: int = 50_000


QUICK = Sizes(nodes=500, pods=300, pairs=1, jobs=1, present=2_000)


@dataclass(frozen=True, slots=True)
class Run:
    """Bound pods a second, and processor time a pod.

    Attributes:
        rate: pods a second.
        scheduler_ms, extender_ms, api_ms: of kube-scheduler, of the extender, of the API server with etcd.
        nominated: part of the pods whose nomination was written before they were bound.
    """

    rate: float
    scheduler_ms: float
    extender_ms: float
    api_ms: float
    nominated: float


class Progress:
    """Follows pods, by name, until all are bound.

    Attributes:
        first, all: set when the first and when all are bound.
        ended: monotonic seconds when all were.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting = set(names)
        self.first, self.all = threading.Event(), threading.Event()
        self.ended = 0.0

    def seen(self, pod: Json) -> None:
        """A pod as it is now."""
        if "nodeName" in pod["spec"] and (name := pod["metadata"]["name"]) in self._waiting:
            self._waiting.remove(name)
            self.first.set()
            if not self._waiting:
                self.ended = time.monotonic()
                self.all.set()

    def gone(self, uid: str) -> None:
        """A pod that is no more."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)


def measure(results: Results, sizes: Sizes, say: Say, trace: Path | None = None) -> None:
    """All of it, in one cluster. `trace` is the folder of the open trace, whose mix of pods is measured, too."""
    if missing := [name for name in BINARIES if not (bin_dir() / name).exists()]:
        raise BenchError(f"run `python tests/e2e/build.py {' '.join(missing)}` first")
    with tempfile.TemporaryDirectory(prefix="gb-") as folder, ControlPlane(Path(folder) / "c") as plane:
        plane.kwok.kill()
        say(f"scheduler: {sizes.nodes} nodes")
        plane.add_nodes(map(_node, range(sizes.nodes)))
        mixes = {"200 different requests": pods_of(many_requests(), sizes.pods)}
        if trace:
            mixes["the open trace's mix"] = trace_pods(trace, sizes.pods)
        for mix, pods in mixes.items():
            _speed(results, plane, sizes, say, mix, pods)
        _jobs(results, plane, sizes, say)
        _full(results, plane, sizes, say)


def _name(n: int) -> str:
    return f"node-{n:05}"


def _kind(n: int) -> Callable[[str], Json]:
    return KINDS[n % len(KINDS)]


def _node(n: int) -> Json:
    node = _kind(n)(_name(n))
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return node


def _speed(  # noqa: PLR0913 (called once)
    results: Results, plane: ControlPlane, sizes: Sizes, say: Say, mix: str, pods: Sequence[Json]
) -> None:
    """With and without the extender in turns, in alternating order."""
    runs: dict[bool, list[Run]] = {True: [], False: []}
    calls: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for n in range(2 * sizes.pairs):
        extends = n % 4 in {0, 3}
        say(f"scheduler: {len(pods)} pods, {mix}, {'with' if extends else 'without'} the extender")
        with _replica(plane, f"speed-{mix[:3].strip()}-{n}", extends=extends) as replica:
            runs[extends].append(_run(plane, replica, pods, extends=extends))
            for verb, seconds, count in _buckets(replica) if extends else ():
                calls[verb][seconds] += count
        plane.clear_pods()
    what = f"{sizes.nodes:,} nodes, {len(pods):,} pods, {mix}"
    least = PART_LARGE if sizes.nodes >= LARGE else PART_SMALL
    _rate_row(results, what, runs, least)
    for name, extends in (("with", True), ("without", False)):
        rates = [run.rate for run in runs[extends]]
        results.keep(f"scheduler: pods/s {name} the extender, {mix}", rates)
    _call_rows(results, calls)
    _processor_row(results, runs, mix)


def _rate_row(results: Results, what: str, runs: Mapping[bool, Sequence[Run]], least: float) -> None:
    """Pods a second, and as a part of those without the extender."""
    extended = [run.rate for run in runs[True]]
    alone = [run.rate for run in runs[False]]
    part = median(extended) / median(alone)
    text = f"{_list(extended)} pods/s; {_list(alone)} without the extender: {part * 100:.0f} %"
    holds = median(extended) >= RATE and part >= least
    results.row(what, text, f">= {RATE:.0f}, >= {least * 100:.0f} %", holds)


def _processor_row(results: Results, runs: Mapping[bool, Sequence[Run]], mix: str) -> None:
    """Processor time a pod, with the extender and without."""
    extended = runs[True]
    alone = runs[False]
    extender_ms = median(run.extender_ms for run in extended)
    scheduler_ms = median(run.scheduler_ms for run in extended)
    api_ms = median(run.api_ms for run in extended)
    scheduler_alone_ms = median(run.scheduler_ms for run in alone)
    api_alone_ms = median(run.api_ms for run in alone)
    nominated = median(run.nominated for run in extended)
    with_it = f"extender {extender_ms:.2f} ms, kube-scheduler {scheduler_ms:.2f}, API server and etcd {api_ms:.2f}"
    without = f"alone {scheduler_alone_ms:.2f}, {api_alone_ms:.2f}"
    text = f"{with_it}; {without}; {nominated * 100:.0f} % nominated ahead"
    results.row(f"processor time a pod, {mix}", text)
    in_all_ms = extender_ms + scheduler_ms + api_ms
    alone_ms = scheduler_alone_ms + api_alone_ms
    # With few processors, they are what limits the pods a second. With many, the turns of kube-scheduler's queue do.
    bound = f"{alone_ms:.2f} of {in_all_ms:.2f} ms: {alone_ms / in_all_ms * 100:.0f} %"
    results.row(f"pods a second if processors are the limit ({os.cpu_count()} here), {mix}", bound)
    kept = {
        "extender": extender_ms,
        "kube-scheduler": scheduler_ms,
        "kube-scheduler alone": scheduler_alone_ms,
    }
    for name, value in kept.items():
        results.keep(f"scheduler: processor ms a pod, {name}, {mix}", [value])


def _call_rows(results: Results, calls: Mapping[str, Mapping[float, float]]) -> None:
    for verb, buckets in sorted(calls.items()):
        half, most = (_percentile(buckets, part) * 1000 for part in (0.5, 0.99))
        bar, holds = (f"p99 < {P99_MS:.0f} ms", most <= P99_MS) if verb == "filter" else ("", None)
        results.row(f"{verb} call in the extender", f"p50 <= {half:g} ms, p99 <= {most:g} ms", bar, holds)


def _jobs(results: Results, plane: ControlPlane, sizes: Sizes, say: Say) -> None:
    with _replica(plane, "jobs") as replica:
        replica.start()
        plane.leader()
        for pods, limit_s in JOB_S.items():
            say(f"scheduler: jobs of {pods} pods")
            took_ms = []
            for n in range(sizes.jobs):
                made = job(f"job-{pods}-{n}", pods, {GPU_WHOLE: 8})
                progress = Progress(pod["metadata"]["name"] for pod in made)
                plane.pods.listen(progress)
                plane.add_pods(made)
                created = time.monotonic()
                _wait(progress.all, f"a job of {pods} pods did not start")
                took_ms.append((progress.ended - created) * 1000)
                plane.pods.listen(None)
                plane.clear_pods()
            what = f"job of {pods} pods x 8 GPUs: last created -> all bound"
            results.reaction(what, f"scheduler: job of {pods} pods ms", took_ms, limit_s * 1000)


def _full(results: Results, plane: ControlPlane, sizes: Sizes, say: Say) -> None:
    """Start the extender with many pods present, and place more."""
    say(f"scheduler: {sizes.present} pods present")
    _create_present(plane, sizes)
    with _replica(plane, "full") as replica:
        began = time.monotonic()
        replica.extender.start()
        replica.wait_for_extender()
        ready_s = time.monotonic() - began
        status_file = Path(f"/proc/{replica.extender.pid}/status")
        at_start = fields(status_file)
        run = _run(plane, replica, pods_of(many_requests(), sizes.pods), extends=True)
        at_end = fields(status_file)
    what = f"{sizes.present:,} pods present"
    results.row(f"{what}: start -> ready", f"{ready_s:.1f} s", f"< {READY_S:.0f} s", ready_s < READY_S)
    started_mib = at_start["VmRSS"] / 1024
    rss_mib = at_end["VmRSS"] / 1024
    peak_mib = at_end["VmHWM"] / 1024
    text = f"{started_mib:.1f} MiB, after {sizes.pods:,} more {rss_mib:.1f}; peak {peak_mib:.1f}"
    results.row(f"{what}: resident memory", text, f"< {RSS_MIB:.0f} MiB", rss_mib < RSS_MIB)
    processor = f"extender {run.extender_ms:.2f} ms, kube-scheduler {run.scheduler_ms:.2f} ms a pod"
    results.row(f"{what}: {sizes.pods:,} more", f"{run.rate:.0f} pods/s; {processor}")
    kept = {"ready s": ready_s, "rss MiB": rss_mib, "peak MiB": peak_mib, "pods/s": run.rate}
    for name, value in kept.items():
        results.keep(f"scheduler, {what}: {name}", [value])


def _create_present(plane: ControlPlane, sizes: Sizes) -> None:
    """Create the pods that are on nodes before the extender starts, some batches at a time."""
    on = [_name(n) for n in range(sizes.nodes) if _kind(n) is share_node]

    def create(first: int) -> int:
        last = min(first + BATCH, sizes.present)
        pods = [_present(n, on) for n in range(first, last)]
        return len(plane.client.create_all(PODS, pods))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(create, range(0, sizes.present, BATCH)))


def _present(n: int, nodes: Sequence[str]) -> Json:
    """A pod as deployments make them, bound with a decision."""
    made = bigcluster.pod(n, 0)
    metadata = {key: made["metadata"][key] for key in ("name", "labels", "annotations")}
    spec = made["spec"] | {"nodeName": nodes[n % len(nodes)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextmanager
def _replica(plane: ControlPlane, name: str, *, extends: bool = True) -> Iterator[Replica]:
    # Its link is part of this process, which would slow it down.
    replica = Replica(plane, name, ("--kubeconfig", str(plane.kubeconfig(pki.GPU_SCHEDULER))), extends=extends)
    try:
        yield replica
    finally:
        plane.pods.listen(None)
        replica.stop()


def _run(plane: ControlPlane, replica: Replica, pods: Sequence[Json], *, extends: bool) -> Run:
    """Create pods while kube-scheduler may not lead yet; measured from the first pods that are bound to the last.

    So its queue is full at the start, in the order of its watch, as in a cluster where many pods come at a time.
    """
    if extends and not replica.extender.running:
        replica.extender.start()
        replica.wait_for_extender()
    plane.client.request("DELETE", f"{LEASES}/{LEASE}")
    plane.client.expect("POST", LEASES, _lease_of_the_bench())
    replica.scheduler.start()
    replica.wait_for_scheduler()
    progress = Progress(made["metadata"]["name"] for made in pods)
    plane.pods.listen(progress)
    plane.add_pods(pods)
    processes = [replica.scheduler, *([replica.extender] if extends else [])]
    plane.client.request("DELETE", f"{LEASES}/{LEASE}")
    _wait(progress.first, "no pod was bound")
    measured, began = len(progress), time.monotonic()
    before = [_used_ms(one) for one in (*processes, *plane.servers)]
    _wait(progress.all, "not all pods were bound")
    after = [_used_ms(one) for one in (*processes, *plane.servers)]
    spent = [now - used for now, used in zip(after, before, strict=True)]
    of_servers = len(plane.servers)
    return Run(
        rate=measured / (progress.ended - began),
        scheduler_ms=spent[0] / measured,
        extender_ms=sum(spent[1:-of_servers]) / measured,
        api_ms=sum(spent[-of_servers:]) / measured,
        nominated=_nominated(replica) / len(pods) if extends else 0.0,
    )


def _lease_of_the_bench() -> Json:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "bench_", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}


def _nominated(replica: Replica) -> float:
    """How many nominations were written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.pages_port}/metrics") as page:
        text = page.read().decode()
    counted = re.search(r'^gpuscheduler_writes_total{kind="nominate",result="ok"} (.*)$', text, re.MULTILINE)
    return float(counted[1]) if counted else 0.0


def _wait(event: threading.Event, failure: str) -> None:
    if not event.wait(LONGEST_S):
        raise BenchError(f"{failure} within {LONGEST_S:.0f} s")


def _used_ms(process: Process) -> float:
    """Processor time so far."""
    return ticks(Path(f"/proc/{process.pid}")) * 1000 / os.sysconf("SC_CLK_TCK")


def _buckets(replica: Replica) -> Iterator[tuple[str, float, float]]:
    """Verb, seconds, and how many calls took at most these."""
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.pages_port}/metrics") as page:
        text = page.read().decode()
    for seconds, verb, count in re.findall(rf'^{_SECONDS}{{le="(.*)",verb="(.*)"}} (.*)$', text, re.MULTILINE):
        yield verb, float(seconds), float(count)


def _percentile(buckets: Mapping[float, float], part: float) -> float:
    """The upper edge of the bucket in which it is."""
    return min(seconds for seconds, count in buckets.items() if count >= part * buckets[float("inf")])


def _list(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)
