"""Pods of all shapes that ask for GPUs."""

import random
from collections.abc import Mapping, Sequence

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import (
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEM,
    GPU_WHOLE,
    JOB_LABEL,
    REPLICAS_LABEL,
)
from tests.e2e.cluster.manifests import Json

SCHEDULER_NAME = "gpu-scheduler"
RUNS_FOR = "gpuagent.test/runs-for"
"""How long kwok runs the pod, such as `2s`; forever without it."""
Limits = Mapping[str, int | str]


def pod(
    name: str,
    *containers: Limits,
    init: Sequence[Limits] = (),
    sidecars: Sequence[Limits] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    runs_for: str | None = None,
    **spec: object,
) -> Json:
    """A pod whose containers have these limits; ``spec`` adds further fields of the pod's spec."""
    notes = dict(annotations or {}) | ({} if runs_for is None else {RUNS_FOR: runs_for})
    first = [_container(f"init-{n}", limits) for n, limits in enumerate(init)]
    first += [_container(f"side-{n}", limits) | {"restartPolicy": "Always"} for n, limits in enumerate(sidecars)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": notes},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": first,
            "containers": [_container(f"main-{n}", limits) for n, limits in enumerate(containers)],
        }
        | spec,
    }


def job(
    name: str,
    replicas: int,
    limits: Limits,
    *,
    pods: str | None = None,
    finalizers: Sequence[str] = (),
    node_selector: Mapping[str, str] | None = None,
    runs_for: str | None = None,
) -> list[Json]:
    """The pods of one distributed job, named after it or after `pods`."""
    labels = {JOB_LABEL: name, REPLICAS_LABEL: str(replicas)}
    names = [f"{pods or name}-{n}" for n in range(replicas)]
    made = [pod(one, limits, labels=labels, runs_for=runs_for, nodeSelector=node_selector or {}) for one in names]
    for one in made:
        one["metadata"]["finalizers"] = list(finalizers)
    return made


def why(pods: Mapping[str, Json], name: str) -> str:
    """kube-scheduler's message about one of the pods; empty while there is none."""
    listed = pods[name]["status"].get("conditions", ()) if name in pods else ()
    conditions = {condition["type"]: condition for condition in listed}
    return str(conditions.get("PodScheduled", {}).get("message", ""))


def mixed(count: int, seed: int) -> list[Json]:
    """About `count` pods of all shapes that end by themselves, in the order of their creation; jobs are interleaved."""
    rng = random.Random(seed)
    waiting: list[list[Json]] = []
    made: list[Json] = []
    for number in range(count):
        if sum(map(len, waiting)) + len(made) >= count:
            break
        seconds = f"{rng.randint(1, 4)}s"
        if rng.random() < 0.03:
            replicas, gpus = rng.choice(((2, 4), (2, 8), (4, 8), (8, 1), (3, 2)))
            waiting.append(job(f"job-{number}", replicas, {GPU_WHOLE: gpus}, runs_for=seconds))
        else:
            made.append(_single(f"pod-{number}", rng, seconds))
        for members in waiting:
            if rng.random() < 0.3:
                made.append(members.pop())
        waiting = [members for members in waiting if members]
    return made + [member for members in waiting for member in members]


def _single(name: str, rng: random.Random, seconds: str) -> Json:
    units = rng.choice((1, 2, 4, 6, 8, 10, 16, 20))
    shape = rng.randrange(20)
    if shape < 8:
        return pod(name, {GPU_MEM: units, "cpu": "100m"}, runs_for=seconds)
    if shape < 11:
        return pod(name, {GPU_MEM: units, GPU_CORE: rng.choice((5, 10, 25, 50, 100))}, runs_for=seconds)
    if shape < 14:
        return pod(name, {GPU_WHOLE: rng.choice((1, 1, 1, 2, 4, 8))}, runs_for=seconds)
    if shape < 16:
        return pod(name, {GPU_MEM: units}, {GPU_MEM: 2}, {}, runs_for=seconds)
    if shape == 16:
        gpus = rng.choice((2, 4))
        return pod(name, {GPU_MEM: gpus * units}, labels={GPU_COUNT_LABEL: str(gpus)}, runs_for=seconds)
    if shape == 17:
        return pod(name, {GPU_MEM: units}, init=[{GPU_MEM: units + 4}], sidecars=[{GPU_MEM: 1}], runs_for=seconds)
    if shape == 18:  # made from a template that was read from a pod with a decision
        copied = {
            MEMORY_ANNOTATION: f'{{"0":{{"0":{units}}}}}',
            DECIDED_ANNOTATION: "00000000-0000-0000-0000-000000000000",
        }
        return pod(name, {GPU_MEM: units}, annotations=copied, runs_for=seconds)
    return pod(name, {GPU_MEM: units}, runs_for=seconds, affinity=_PREFERS_SPREAD)


_PREFERS_SPREAD: Json = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 10,
                "preference": {
                    "matchExpressions": [
                        {"key": "ack.node.gpu.placement", "operator": "In", "values": ["spread"]},
                    ]
                },
            }
        ]
    }
}


def _container(name: str, limits: Limits) -> Json:
    amounts = {resource: str(amount) for resource, amount in limits.items()}
    return {"name": name, "image": "gpuagent.test/none", "resources": {"limits": amounts}}
