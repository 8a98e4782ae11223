"""Processor time of the scheduler without servers: of what the watch and kube-scheduler have it do for each pod."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from bench.result import Results, Say
from bench.scheduling.requests import many_requests, pods_of
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_WHOLE
from gpuscheduler.cluster_api.pod_reader import PodReader
from gpuscheduler.core.calls import BindOutcome, BindWrite
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.extender.protocol import filter_call, filter_result
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.nodes import core_node, share_node, whole_node

NODES = (500, 5_000)
KINDS: tuple[Callable[[str], Json], ...] = (share_node, share_node, core_node, whole_node)
LATE = 5
"""Pods that kube-scheduler asks about until the watch shows a pod bound."""
WATCH, FILTER, BIND, BOUND = "watch", "filter", "bind", "bound"
"""What is measured: a new pod is seen, kube-scheduler asks about it, has it bound, and it is seen on its node."""


def measure(results: Results, say: Say, *, quick: bool) -> None:
    """Of several runs the least counts, because other work on the machine can only add to it."""
    for nodes in NODES:
        say(f"scheduler: the core alone, {nodes} nodes")
        runs = [_Run(nodes).all(300 if quick else 2_000) for _ in range(1 if quick else 3)]
        least = {step: min(run[step] for run in runs) for step in runs[0]}
        steps = ", ".join(f"{step} {us:.0f}" for step, us in least.items())
        results.row(f"processor time a pod without servers, {nodes:,} nodes", f"{sum(least.values()):.0f} us: {steps}")
        for step, us in least.items():
            results.keep(f"scheduler: {step} us a pod without servers, {nodes} nodes", [us])


class _Run:
    """Plays the API server and kube-scheduler."""

    def __init__(self, nodes: int) -> None:
        mix = Mix()
        self._core = Scheduling(named("strand", mix), mix)
        self._kinds: dict[str, Callable[[str], Json]] = {}
        for number in range(nodes):
            name = f"node-{number:05}"
            self._kinds[name] = KINDS[number % len(KINDS)]
            facts = node_facts(self._kinds[name](name))
            assert facts is not None
            self._core.node_seen(facts)
        self._core.synced(0.0)
        self._reader = PodReader()
        self._names = list(self._kinds)
        self._first = 0
        self._version = 0
        self._spent_ns: dict[str, int] = dict.fromkeys((WATCH, FILTER, BIND, BOUND), 0)

    def all(self, count: int) -> Mapping[str, float]:
        """Place pods with 200 different requests; microseconds a pod of each step."""
        pods = [self._stored(pod) for pod in pods_of(many_requests(), count)]
        for pod in pods:
            self._show(pod, WATCH)
        bound: list[tuple[Json, BindWrite]] = []
        for number, pod in enumerate(pods):
            write = self._place(pod, number / 1000)
            if write:
                bound.append((pod, write))
            if len(bound) > LATE:
                self._show_bound(*bound.pop(0))
        return {step: spent / count / 1000 for step, spent in self._spent_ns.items()}

    def _place(self, pod: Json, now: float) -> BindWrite | None:
        """Ask about a pod as kube-scheduler does; None if it finds no node."""
        names = list(islice(self._feasible(pod), self._sample()))
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()
        facts = self._core.pods[pod["metadata"]["uid"]]
        began = time.thread_time_ns()
        call = filter_call(body)
        answer = self._core.filter(facts, call.names or (), now)
        self._core.actions()
        filter_result(answer, call)
        self._spend(FILTER, began)
        if not answer.nodes:
            return None
        began = time.thread_time_ns()
        write = self._core.bind(facts.uid, answer.nodes[0], now, time.time_ns())
        self._core.actions()
        self._spend(BIND, began)
        return write if isinstance(write, BindWrite) else None

    def _show_bound(self, pod: Json, write: BindWrite) -> None:
        metadata = pod["metadata"] | {"annotations": dict(write.annotations)}
        self._show(pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": write.node}}, BOUND)
        began = time.thread_time_ns()
        self._core.bound(write.uid, BindOutcome.BOUND)
        self._core.actions()
        self._spend(BOUND, began)

    def _show(self, pod: Json, step: str) -> None:
        """Have the watch show a pod."""
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        text = json.dumps(pod, separators=(",", ":")).encode()
        began = time.thread_time_ns()
        self._core.pod_seen(self._reader.read(text), 0.0)
        self._core.actions()
        self._spend(step, began)

    def _spend(self, step: str, began_ns: int) -> None:
        self._spent_ns[step] += time.thread_time_ns() - began_ns

    def _stored(self, written: Json) -> Json:
        """A pod as the API server stores it."""
        metadata = written["metadata"]
        stored = {"uid": metadata["name"], "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        return written | {"metadata": metadata | stored, "status": {"phase": "Pending"}}

    def _sample(self) -> int:
        """Nodes that kube-scheduler looks for, by `percentageOfNodesToScore` left as it is."""
        nodes = len(self._names)
        percent = max(50 - nodes // 125, 5)
        return max(nodes * percent // 100, 100)

    def _feasible(self, pod: Json) -> Iterator[str]:
        """Names of nodes that have what the pod asks for in all, from where the last search ended."""
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        kinds: Sequence[Callable[[str], Json]] = (share_node, core_node)
        if GPU_WHOLE in limits:
            kinds = (whole_node,)
        elif GPU_CORE in limits:
            kinds = (core_node,)
        for _ in self._names:
            name = self._names[self._first]
            self._first = (self._first + 1) % len(self._names)
            if self._kinds[name] in kinds:
                yield name
