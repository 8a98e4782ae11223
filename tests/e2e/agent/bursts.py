"""Bursts of pods for a scheduler, most of which never start.

Their runtime class names a handler that the runtime does not have. Kubelet admits them like any other, and its
checkpoint has the devices and the agent's whole answer, environment included. So hundreds fit on a small machine.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuagent.domain.sharing.mode import GPU_MEM as MEM
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.share_scheduler import NAME, AnnotationFamily, ShareScheduler, stale
from tests.e2e.cluster import container, pod_manifest

GPUS, WHOLE = 8, 80
FAMILIES = AnnotationFamily.V1, AnnotationFamily.V2
MANY = ("--max-pods-per-gpu", "200")


def manifest(name: str, rng: random.Random, runtime_class: str | None) -> dict[str, Any]:
    """A pod of few sizes, so that many are alike: one container or two, some with an init container or a sidecar."""
    size = rng.choice([1, 2, 2, 3])
    made = pod_manifest(name, {MEM: size})
    spec = made["spec"]
    spec["schedulerName"] = NAME
    if rng.random() < 0.3:
        spec["containers"].append(container("second", {MEM: rng.choice([1, 2])}))
    first = rng.random()
    if first < 0.1:
        spec["initContainers"] = [container("init", {MEM: size}, command=["/bin/sh", "-c", "env"])]
    elif first < 0.2:
        spec["initContainers"] = [container("side", {MEM: 1}, restart_policy="Always")]
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    if rng.random() < 0.1:
        made["metadata"]["annotations"] = stale(rng.randrange(GPUS), size)
    return made


def in_parallel(work: Callable[[str], Any], names: list[str]) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, names))


def burst(node: Node, scheduler: ShareScheduler, manifests: dict[str, dict[str, Any]], rng: random.Random) -> None:
    """Create the pods, and bind them in another order; the scheduler dies once between its two steps."""
    names = list(manifests)
    node.pods += names
    in_parallel(lambda name: node.cluster.create_pod(manifests[name]), names)
    for name in rng.sample(names, len(names) // 10):
        scheduler.assume(name, rng.choice(FAMILIES))
    scheduler.restart()
    for name in rng.sample(names, len(names)):
        scheduler.assume(name, rng.choice(FAMILIES))
    in_parallel(scheduler.bind, rng.sample(names, len(names)))
