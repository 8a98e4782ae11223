"""Simulated nodes and pods, and a small kube-scheduler that asks the real core of gpuscheduler."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindOutcome, BindWait, BindWrite, CommitJob, FilterAnswer, Report
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, PodFacts, pod_facts
from gpuscheduler.core.policy.fleet import CostPolicy
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.scheduling import Scheduling

RESOURCES = {"memory": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE}
CELLS = 10
"""Characters of one GPU in the picture."""
_WALL_NS = 1_800_000_000 * 10**9
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class ScheduledCluster:
    """Nodes, pods, and what waits.

    Attributes:
        waiting: name of each pod that waits, and why.
        events: texts of the scheduler's Events since the last `place`.
    """

    def __init__(self, policy: CostPolicy, mix: Mix, nodes: Iterable[tuple[str, NodeGpus]]) -> None:
        self._core = Scheduling(policy, mix)
        self._names: list[str] = []
        self._pods: dict[str, dict[str, Any]] = {}
        self._letters: dict[str, str] = {}
        self._now = 0.0
        self.waiting: dict[str, str] = {}
        self.events: list[str] = []
        for name, gpus in nodes:
            metadata = {"name": name, "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)}}
            allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            node = node_facts({"metadata": metadata, "status": {"allocatable": allocatable}})
            if node:
                self._core.node_seen(node)
                self._names.append(name)
        self._core.synced(self._now)

    def create(self, name: str, *, job: tuple[str, int] | None = None, priority: int = 0, **limits: int) -> None:
        """Create a pod that asks for these `RESOURCES`; `job` is a job's name and number of pods."""
        self._letters.setdefault(job[0] if job else name, _LETTERS[len(self._letters) % len(_LETTERS)])
        self._pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "demo",
                "uid": name,
                "creationTimestamp": f"2026-01-01T00:{len(self._letters):02}:00Z",
                "labels": {JOB_LABEL: job[0], REPLICAS_LABEL: str(job[1])} if job else {},
                "annotations": {},
            },
            "spec": {
                "priority": priority,
                "containers": [
                    {
                        "name": "main",
                        "resources": {"limits": {RESOURCES[key]: str(amount) for key, amount in limits.items()}},
                    }
                ],
            },
            "status": {"phase": "Pending"},
        }
        self._show(name)

    def end(self, name: str) -> None:
        """End a pod."""
        self._core.pod_gone(name, self._now)
        del self._pods[name]
        self._act()

    def place(self) -> None:
        """Try all pods that wait, as kube-scheduler does, until none can be placed."""
        self.events.clear()
        tried = None
        while tried != (tried := {name for name, pod in self._pods.items() if "nodeName" not in pod["spec"]}):
            self._now += 1.0
            self._core.tick(self._now)
            self._act()
            by_priority = sorted(tried, key=lambda name: (-self._facts(name).priority, name))
            # A job is planned when kube-scheduler has asked about each of its pods.
            for name in by_priority:
                self._core.filter(self._facts(name), self._names, self._now)
            answers = {name: self._core.filter(self._facts(name), self._names, self._now) for name in by_priority}
            self._act()
            self.waiting = {name: why(answer) for name, answer in answers.items() if not answer.nodes}
            placed = {name: answer.nodes[0] for name, answer in answers.items() if answer.nodes}
            for name, node in [*placed.items(), *placed.items()]:  # the pods of a job wait for each other
                self._bind(name, node)

    def preempt(self, name: str) -> list[str]:
        """Evict the pods that a waiting pod of higher priority displaces; returns their names."""
        # By amounts of whole nodes the pod fits, so kube-scheduler itself proposes to evict none.
        victims = self._core.preempt(self._facts(name), {node: [] for node in self._names}, self._now)
        chosen = min(victims.values(), key=len, default=[])
        for victim in chosen:
            self.end(victim)
        return chosen

    def node_of(self, name: str) -> str:
        """Where a pod is bound; empty while it waits."""
        return str(self._pods[name]["spec"].get("nodeName", ""))

    def picture(self) -> list[str]:
        """A line for each node: its GPUs as bars, in which each pod has a letter; ``.`` is free."""
        lines = []
        for name in self._names:
            node = self._core.usage.nodes[name]
            bars = []
            for gpu in node.facts.gpus.gpus:
                cells = ""
                for uid, use in node.users.items():
                    amounts = dict(use).get(gpu.minor) if isinstance(use, tuple) else None
                    if amounts:
                        part = 1.0 if gpu.whole else amounts.memory / gpu.memory
                        job = self._pods[uid]["metadata"]["labels"].get(JOB_LABEL)
                        cells += self._letters[job or uid] * max(1, round(part * (2 if gpu.whole else CELLS)))
                bars.append(cells.ljust(2 if gpu.whole else CELLS, ".")[:CELLS])
            lines.append(f"  {name:10} {' '.join(bars)}")
        return lines

    def legend(self) -> str:
        """Letters of the pods and jobs that are there, with a no-break space before each name."""
        there = {self._pods[name]["metadata"]["labels"].get(JOB_LABEL) or name for name in self._pods}
        return ", ".join(f"{letter}\N{NO-BREAK SPACE}{name}" for name, letter in self._letters.items() if name in there)

    def _facts(self, name: str) -> PodFacts:
        return pod_facts(self._pods[name])

    def _show(self, name: str) -> None:
        self._core.pod_seen(self._facts(name), self._now)
        self._act()

    def _bind(self, name: str, node: str) -> None:
        if "nodeName" in self._pods[name]["spec"]:
            return
        answer = self._core.bind(name, node, self._now, _WALL_NS)
        self._act()
        if isinstance(answer, BindWait):
            answer = self._core.bind(name, node, self._now, _WALL_NS)
        if isinstance(answer, BindWrite):
            self._pods[name]["metadata"]["annotations"].update(answer.annotations)
            self._pods[name]["spec"]["nodeName"] = answer.node
            self._core.bound(name, BindOutcome.BOUND)
            self._show(name)

    def _act(self) -> None:
        for action in self._core.actions():
            if isinstance(action, CommitJob):
                self._pods[action.uid]["metadata"]["annotations"][COMMIT_ANNOTATION] = action.text
                self._core.committed(action.job, self._now, written=True)
            elif isinstance(action, Report):
                self.events.append(f"{action.reason}: {action.message}")


def why(answer: FilterAnswer) -> str:
    """The reasons of all nodes as kube-scheduler sums them up."""
    counts: dict[str, int] = {}
    reasons: Mapping[str, str] = {**answer.failed, **answer.unresolvable}
    for reason in reasons.values():
        counts[reason] = counts.get(reason, 0) + 1
    nodes = "; ".join(f"{count} nodes: {reason}" for reason, count in sorted(counts.items()))
    return answer.error or nodes


def twenty_nodes() -> list[tuple[str, NodeGpus]]:
    """Eight nodes that share memory, six that share memory and compute, six that allocate whole GPUs."""
    shared = NodeGpus(tuple(NodeGpu(n, memory=40) for n in range(4)))
    both = NodeGpus(tuple(NodeGpu(n, memory=80, core=100) for n in range(2)), both=True)
    whole = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(8)))
    kinds = (("share", 8, shared), ("core", 6, both), ("whole", 6, whole))
    return [(f"{kind}-{n}", gpus) for kind, count, gpus in kinds for n in range(1, count + 1)]
