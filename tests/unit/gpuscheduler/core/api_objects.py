"""Nodes and pods for tests, in the API server's form."""

import itertools

import numpy as np
from hypothesis import settings

from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION, held_gpus_text
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts

_UIDS = itertools.count()
OF_NODES = {"memory": "4Ti", "pods": "1000"}
"""What nodes have besides CPU and GPUs: enough for any test that is about these."""
NAMES = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE, "count": GPU_COUNT}


def lives(steps):
    """Twenty random lives; with HYPOTHESIS_PROFILE=fuzz as many as take a hundred thousand steps."""
    return settings(max_examples=max(20, settings.default.max_examples // steps), stateful_step_count=steps)


class LeastFree:
    """A policy: the GPU with the least free part that has room, on the node with the least free in all."""

    def costs(self, fleet, rows, demand):
        free = fleet.free[rows]
        roomy = np.where(free >= demand.fraction, free, np.inf)
        fits = np.isfinite(roomy).sum(axis=1) >= demand.gpus
        return np.where(fits, roomy.min(axis=1) + free.sum(axis=1) / 1000, np.inf), roomy.argmin(axis=1)


def shared_node(name="n1", gpus=2, memory=10, core=0, cpu="32", held=None, **rules):  # noqa: PLR0913 (by name)
    shared = tuple(NodeGpu(n, memory, core) for n in range(gpus))
    return node(name, NodeGpus(shared, both=bool(core), **rules), cpu, held)


def whole_node(name="n1", gpus=8, cpu="96", held=None):
    return node(name, NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(gpus))), cpu, held)


def node(name, gpus, cpu="32", held=None, labels=None):
    """A node with these GPUs; `held` is what its agent publishes of pods, None for an agent that publishes nothing."""
    annotations = {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)}
    if held is not None:
        annotations[HELD_GPUS_ANNOTATION] = held_gpus_text(held)
    metadata = {"name": name, "annotations": annotations, "labels": labels or {}}
    return node_facts({"metadata": metadata, "status": {"allocatable": {"cpu": cpu, **OF_NODES}}})


def container(name="c", **limits):
    return {"name": name, "resources": {"limits": {NAMES[key]: str(units) for key, units in limits.items()}}}


def pod_object(name=None, *containers, on=None, annotations=None, labels=None, gpu_count=None, **given):
    number = next(_UIDS)
    scheduler = given.pop("scheduler", "gpu-scheduler")
    priority, phase, owner = given.pop("priority", 0), given.pop("phase", "Pending"), given.pop("owner", None)
    kind = given.pop("kind", "R")
    gates = [{"name": gate} for gate in given.pop("gates", ())]
    metadata = {
        "name": name or f"p{number}",
        "namespace": given.pop("namespace", "default"),
        "uid": given.pop("uid", f"uid-{number}"),
        "resourceVersion": "1",
        "creationTimestamp": given.pop("created", "2026-01-01T00:00:00Z"),
        "labels": {**(labels or {}), **({GPU_COUNT_LABEL: str(gpu_count)} if gpu_count else {})},
        "annotations": annotations or {},
        "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "r", "uid": owner, "controller": True}]
        * bool(owner),
    }
    spec = {"containers": list(containers) or [container(**given)], "priority": priority, "schedulerName": scheduler}
    if gates:
        spec["schedulingGates"] = gates
    status = {"phase": phase, **({"reason": "UnexpectedAdmissionError"} if phase == "Failed" else {})}
    return {"metadata": metadata, "spec": spec | ({"nodeName": on} if on else {}), "status": status}


def pod(*arguments, **given):
    return pod_facts(pod_object(*arguments, **given))
