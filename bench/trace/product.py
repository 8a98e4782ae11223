"""The trace through the product's own path: Node and Pod objects in, decisions out as annotations, which are read back.

What kube-scheduler does beside it is modeled here: it names the nodes that have the CPU, the memory and the model for a
pod, and it places pods without GPUs by the scores of its default profile.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.trace.trace import MILLI, Nodes, Pod
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, GPU_MEM, MODE_LABEL, Mode
from gpuscheduler.core.calls import BindWrite
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.accepted_models import MODEL_LABEL
from gpuscheduler.core.policy.fleet import CostPolicy, Floats, Ints
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.scores import HIGHEST

Json = dict[str, Any]

CALL_S = 0.01
"""Seconds between two pods. Nothing waits in a run, so their number does not matter."""
MIB_A_UNIT = 16
"""A GPU has a thousand units, so that each part of a GPU in the trace is a whole number of units."""
BEST = 100
"""kube-scheduler's highest score."""
WEIGHT = 10
"""Of gpuscheduler's scores, as in the documented configuration. kube-scheduler takes the highest of them for `BEST`."""


class CpuPods(enum.Enum):
    """Who places pods without GPUs."""

    APART = "CPU-only pods elsewhere"
    """GPU nodes have a taint that keeps them away; they count as placed elsewhere."""
    BESIDE = "CPU-only pods beside"
    """kube-scheduler spreads them over the GPU nodes by itself."""
    SCORED = "CPU-only pods scored"
    """kube-scheduler adds gpuscheduler's scores to its own."""


@dataclass(frozen=True, slots=True)
class Running:
    """A placed pod."""

    pod: Pod
    row: int
    uid: str


class Product:
    """The cluster, with gpuscheduler's core in it.

    Args:
        nodes: of the trace.
        policy: rates choices.
        mix: that the policy uses.
        rng: decides between nodes to which kube-scheduler gives equal scores.
        cpu_pods: who places pods without GPUs.

    Attributes:
        core: of gpuscheduler.
        now: seconds since the start.
    """

    def __init__(
        self,
        nodes: Nodes,
        policy: CostPolicy,
        mix: Mix,
        rng: np.random.Generator,
        *,
        cpu_pods: CpuPods,
    ) -> None:
        self._rng = rng
        self._cpu_pods = cpu_pods
        self._models = nodes.model
        self._cpu = np.round(nodes.cores * MILLI).astype(np.int64)
        self._memory = nodes.memory.copy()
        self._cpu_free = self._cpu.copy()
        self._memory_free = self._memory.copy()
        self._names = np.array([f"node-{row:04}" for row in range(len(nodes.gpus))])
        self._rows = {str(name): row for row, name in enumerate(self._names)}
        self.core = Scheduling(policy, mix)
        self.now = 0.0
        self._count = 0
        # In a random order, as the API server lists nodes by names that mean nothing.
        for row in rng.permutation(len(nodes.gpus)).tolist():
            facts = node_facts(_node(str(self._names[row]), nodes, row))
            assert facts is not None
            self.core.node_seen(facts)
        self.core.synced(self.now)

    def place(self, pod: Pod) -> Running | None:
        """Place a pod; None if it fits on no node."""
        self.now += CALL_S
        self._count += 1
        uid = f"uid-{self._count:06}"
        feasible = self._feasible(pod)
        if pod.demand.gpus:
            return self._place_by_extender(pod, uid, feasible)
        if self._cpu_pods is CpuPods.APART:
            return Running(pod, -1, uid)
        return self._place_by_scores(pod, uid, feasible)

    def release(self, running: Running) -> None:
        """End a pod."""
        if running.row < 0:
            return
        self._take(running, -1)
        self.core.pod_gone(running.uid, self.now)
        self.core.actions()

    def _feasible(self, pod: Pod) -> Ints:
        """The nodes that kube-scheduler accepts by CPU, memory and node affinity."""
        has_cpu = self._cpu_free >= _milli_cpu(pod)
        has_memory = self._memory_free >= pod.memory
        accepted = has_cpu & has_memory
        if pod.demand.models is not None:
            accepted &= np.isin(self._models, list(pod.demand.models))
        return np.flatnonzero(accepted)

    def _place_by_extender(self, pod: Pod, uid: str, feasible: Ints) -> Running | None:
        created = pod_object(pod, uid)
        waiting = pod_facts(created)
        self.core.pod_seen(waiting, self.now)
        names = self._names[feasible].tolist()
        answer = self.core.filter(waiting, names, self.now) if names else None
        if answer is None or not answer.nodes:
            self.core.pod_gone(uid, self.now)
            self.core.actions()
            return None
        node = answer.nodes[0]
        write = self.core.bind(uid, node, self.now, wall_ns=self._count)
        assert isinstance(write, BindWrite), write
        created["metadata"]["annotations"] = dict(write.annotations)
        return self._run(pod, uid, created, node)

    def _place_by_scores(self, pod: Pod, uid: str, feasible: Ints) -> Running | None:
        """A pod without GPUs, as kube-scheduler places it, with the scores of gpuscheduler if asked."""
        if not len(feasible):
            return None
        created = pod_object(pod, uid)
        scores = self._own_scores(pod, feasible)
        if self._cpu_pods is CpuPods.SCORED:
            scores += self._added_scores(created, feasible)
        best = np.flatnonzero(scores == scores.max())
        row = int(feasible[self._rng.choice(best)])
        return self._run(pod, uid, created, str(self._names[row]))

    def _own_scores(self, pod: Pod, feasible: Ints) -> Floats:
        """kube-scheduler's own scores, by NodeResourcesFit and NodeResourcesBalancedAllocation."""
        cpu_after = self._cpu_free[feasible] - _milli_cpu(pod)
        memory_after = self._memory_free[feasible] - pod.memory
        free_cpu = cpu_after / self._cpu[feasible]
        free_memory = memory_after / self._memory[feasible]
        return _least_allocated(free_cpu, free_memory) + _balanced(free_cpu, free_memory)

    def _added_scores(self, created: Json, feasible: Ints) -> Ints:
        """What kube-scheduler adds to its own scores."""
        names = self._names[feasible].tolist()
        by_name = self.core.scores(pod_facts(created), names)
        of_rows = np.array([by_name[name] for name in names])
        return of_rows * WEIGHT * BEST // HIGHEST

    def _run(self, pod: Pod, uid: str, created: Json, node: str) -> Running:
        """Show the core the pod as the API server shows it once it is bound."""
        created["spec"]["nodeName"] = node
        created["metadata"]["resourceVersion"] = "2"
        self.core.pod_seen(pod_facts(created), self.now)
        self.core.actions()
        running = Running(pod, self._rows[node], uid)
        self._take(running, 1)
        return running

    def _take(self, running: Running, sign: int) -> None:
        self._cpu_free[running.row] -= sign * _milli_cpu(running.pod)
        self._memory_free[running.row] -= sign * running.pod.memory


def _least_allocated(free_cpu: Floats, free_memory: Floats) -> Floats:
    """Scores of NodeResourcesFit, whose default is LeastAllocated, by the parts of nodes that are free after the pod.

    kube-scheduler counts in integers. So each resource is rounded, and then their average.
    """
    of_cpu = np.floor(free_cpu * BEST)
    of_memory = np.floor(free_memory * BEST)
    scores: Floats = np.floor((of_cpu + of_memory) / 2)
    return scores


def _balanced(free_cpu: Floats, free_memory: Floats) -> Floats:
    """Scores of NodeResourcesBalancedAllocation, by the parts of nodes that are free after the pod."""
    # With two resources, the standard deviation is half of the difference.
    deviation = np.abs(free_cpu - free_memory) / 2
    scores: Floats = np.floor((1 - deviation) * BEST)
    return scores


def _milli_cpu(pod: Pod) -> int:
    return round(pod.demand.cpu * MILLI)


def _node(name: str, nodes: Nodes, row: int) -> Json:
    """A node in mode share, as its agent leaves it."""
    gpus = tuple(NodeGpu(minor, memory=MILLI) for minor in range(int(nodes.gpus[row])))
    allocatable = {
        "cpu": f"{round(nodes.cores[row] * MILLI)}m",
        "memory": f"{nodes.memory[row]}Mi",
        "pods": "1000",
        GPU_MEM: str(MILLI * len(gpus)),
    }
    labels = {MODE_LABEL: Mode.SHARE.value, MODEL_LABEL: _model(int(nodes.model[row]))}
    annotations = {NODE_GPUS_ANNOTATION: node_gpus_text(NodeGpus(gpus, unit_mib=MIB_A_UNIT))}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {"allocatable": allocatable},
    }


def pod_object(pod: Pod, uid: str) -> Json:
    """The pod as its author creates it."""
    demand = pod.demand
    requests = {"cpu": f"{_milli_cpu(pod)}m", "memory": f"{pod.memory}Mi"}
    resources: dict[str, Mapping[str, str]] = {"requests": requests}
    labels = {}
    if demand.gpus:
        units = round(demand.gpus * demand.fraction * MILLI)
        requests[GPU_MEM] = str(units)
        resources["limits"] = {GPU_MEM: str(units)}
    if demand.gpus > 1:
        labels[GPU_COUNT_LABEL] = str(demand.gpus)
    spec: Json = {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "resources": resources}]}
    if demand.models is not None:
        spec["affinity"] = _affinity([_model(model) for model in sorted(demand.models)])
    metadata = {
        "name": uid,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        # A service, whose pods may be moved.
        "ownerReferences": [{"kind": "ReplicaSet", "name": uid, "uid": f"owner-{uid}", "controller": True}],
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _affinity(models: list[str]) -> Json:
    expression = {"key": MODEL_LABEL, "operator": "In", "values": models}
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _model(number: int) -> str:
    return f"model-{number}"
