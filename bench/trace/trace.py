"""The trace as published: nodes and lists of pods as CSV files, and the orders in which pods arrive.

The folder is `data/csv` of github.com/hkust-adsl/kubernetes-scheduler-simulator: Alibaba's cluster-trace-gpu-v2023 as
the authors of FGD (USENIX ATC 2023) use it.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscheduler.core.policy.fleet import MOST_GPUS, Demand, Fleet, Floats, Ints

NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_{}.csv"
MILLI = 1000


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster, empty.

    Attributes:
        gpus, cores, model, memory: of each node; memory in MiB.
    """

    gpus: Ints
    cores: Floats
    model: Ints
    memory: Ints

    def fleet(self, order: Ints) -> Fleet:
        """The empty nodes in this order."""
        free = (np.arange(MOST_GPUS) < self.gpus[order, None]).astype(np.float64)
        return Fleet(free, self.gpus[order], self.cores[order].copy(), self.cores[order], self.model[order])


@dataclass(frozen=True, slots=True)
class Pod:
    """The request of a pod of the trace; memory in MiB."""

    demand: Demand
    memory: int

    @property
    def gpus(self) -> float:
        """In whole GPUs."""
        return self.demand.gpus * self.demand.fraction


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod, when it arrives, and how long it stays, in mean lifetimes; forever by default."""

    pod: Pod
    time: float = 0.0
    lifetime: float = float("inf")


@dataclass(frozen=True, slots=True)
class Trace:
    """Nodes, and the pods of one variant."""

    nodes: Nodes
    pods: Sequence[Pod]

    @property
    def shares(self) -> dict[Demand, float]:
        """Share of each demand, the most frequent first."""
        counts = Counter(pod.demand for pod in self.pods)
        return {demand: count / len(self.pods) for demand, count in counts.most_common()}


def variants(folder: Path) -> list[str]:
    """Names of the lists of pods in the folder; "default" first."""
    names = sorted(path.stem.removeprefix(PODS.partition("{")[0]) for path in folder.glob(PODS.format("*")))
    return sorted(names, key=lambda name: name != "default")


def read(folder: Path, variant: str) -> Trace:
    """One variant of the trace."""
    with (folder / NODES).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    models = {name: number for number, name in enumerate(sorted({row["model"] for row in rows}))}
    nodes = Nodes(
        np.array([int(row["gpu"]) for row in rows]),
        np.array([int(row["cpu_milli"]) / MILLI for row in rows]),
        np.array([models[row["model"]] for row in rows]),
        np.array([int(row["memory_mib"]) for row in rows]),
    )
    with (folder / PODS.format(variant)).open(encoding="utf-8", newline="") as file:
        return Trace(nodes, [_pod(row, models) for row in csv.DictReader(file)])


def _pod(row: dict[str, str], models: dict[str, int]) -> Pod:
    gpus, names = int(row["num_gpu"]), [name for name in (row.get("gpu_spec") or "").split("|") if name]
    accepted = frozenset(models[name] for name in names if name in models) if names else None
    fraction = int(row["gpu_milli"]) / MILLI if gpus else 0.0
    return Pod(Demand(gpus, fraction, int(row["cpu_milli"]) / MILLI, accepted), int(row["memory_mib"]))


def without_departures(trace: Trace, arrived: float, rng: np.random.Generator) -> list[Arrival]:
    """The pods in random order, and more drawn from them until they ask for `arrived` times the GPUs (ATC'23, 6.1)."""
    pods = [trace.pods[number] for number in rng.permutation(len(trace.pods)).tolist()]
    left = arrived * float(trace.nodes.gpus.sum()) - sum(pod.gpus for pod in pods)
    while left > 0:
        pod = trace.pods[int(rng.integers(len(trace.pods)))]
        left -= pod.gpus
        pods.append(pod)
    return [Arrival(pod) for pod in pods]


def with_departures(trace: Trace, load: float, until: float, rng: np.random.Generator) -> list[Arrival]:
    """Pods drawn at random, with exponential gaps and lifetimes, so that on average `load` of the GPUs is asked for.

    The lifetimes are synthetic: the trace has pods that outlast it. Times are in mean lifetimes.
    """
    mean = float(np.mean([pod.gpus for pod in trace.pods]))
    rate = load * float(trace.nodes.gpus.sum()) / mean
    count = int(rate * until)
    drawn, times = rng.integers(len(trace.pods), size=count), rng.exponential(1 / rate, count).cumsum()
    lifetimes = rng.exponential(1.0, count)
    return [
        Arrival(trace.pods[number], time, lifetime)
        for number, time, lifetime in zip(drawn.tolist(), times.tolist(), lifetimes.tolist(), strict=True)
    ]
