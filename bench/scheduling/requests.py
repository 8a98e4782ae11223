"""The pods of the scheduler's bench: of the open trace's own mix, or with many different requests."""

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.trace.trace import MILLI, PODS
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.pods import pod

DIFFERENT = 200
"""Requests of `many_requests`."""
CORES = 64
"""Of a node of the bench."""
UNITS = 80
"""Of memory on a GPU of `share_node`: what the trace calls a whole GPU."""

Limits = Mapping[str, int | str]


def many_requests(seed: int = 1) -> list[Limits]:
    """`DIFFERENT` requests that differ in GPUs, memory, compute and cores."""
    rng = random.Random(seed)  # noqa: S311 (equal runs)
    requests: dict[tuple[object, ...], Limits] = {}
    while len(requests) < DIFFERENT:
        request = _any_request(rng)
        requests[tuple(request.items())] = request
    return list(requests.values())


def _any_request(rng: random.Random) -> Limits:
    cpu = f"{rng.choice((500, 1000, 1500, 2000, 3000, 4000))}m"
    kind = rng.randrange(10)
    if kind < 6:
        return {GPU_MEM: rng.randint(1, 40), "cpu": cpu}
    if kind < 8:
        return {GPU_MEM: rng.randint(1, 12), GPU_CORE: 5 * rng.randint(1, 10), "cpu": cpu}
    return {GPU_WHOLE: rng.choice((1, 1, 1, 2, 4)), "cpu": cpu}


def trace_pods(folder: Path, count: int, seed: int = 1) -> list[Json]:
    """Pods drawn from the trace's default list, without those that no node of the bench has GPUs or cores for."""
    with (folder / PODS.format("default")).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _fits(row)]
    rng = random.Random(seed)  # noqa: S311 (equal runs)
    return [_traced(f"pod-{number}", rng.choice(rows)) for number in range(count)]


def _fits(row: Mapping[str, str]) -> bool:
    """Whether the pod asks for GPUs, and a node of the bench has its cores."""
    return int(row["num_gpu"]) > 0 and int(row["cpu_milli"]) <= CORES * MILLI


def _traced(name: str, row: Mapping[str, str]) -> Json:
    gpus = int(row["num_gpu"])
    milli = int(row["gpu_milli"])
    cpu = f"{row['cpu_milli']}m"
    if milli == MILLI:
        return pod(name, {GPU_WHOLE: gpus, "cpu": cpu})
    units = max(milli * UNITS // MILLI, 1)
    labels = {GPU_COUNT_LABEL: str(gpus)} if gpus > 1 else {}
    return pod(name, {GPU_MEM: units * gpus, "cpu": cpu}, labels=labels)


def pods_of(requests: Sequence[Limits], count: int) -> list[Json]:
    """Pods with these requests in turn."""
    return [pod(f"pod-{number}", requests[number % len(requests)]) for number in range(count)]
