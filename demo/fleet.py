"""A fleet of any size, for the page of the cluster: nodes of four kinds with pods on them, some with problems."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from gpuagent.domain.fleet.agent_pods import (
    COMPONENT,
    COMPONENT_LABEL,
    NAME,
    NAME_LABEL,
    AgentPod,
    AgentPods,
    AgentUnreadableError,
)
from gpuagent.domain.fleet.held_use import HeldUse
from gpuagent.domain.fleet.node_problems import CONDITION_TYPE, NodeProblem, condition_message
from gpuagent.domain.fleet.node_summary import node_reading
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.gpu_request import WHOLE, Amounts, Used
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.strand import Strand
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages.namespace_use import PAUSE_S, NamespaceUse
from gpuscheduler.pages.node_view import Cluster, pod_views

NAMESPACES = ("batch", "ml-research", "notebooks", "serving", "team-a", "team-b")
APPS = ("chat", "embed", "ocr", "rank", "train")
MEMORY = (1, 2, 4, 8, 16)
CORE = (10, 20, 30, 50)
_UNKNOWN_EVERY = 11
"""Of each pod of this many, the use is not known."""
_IDLE_EVERY = 7
"""One pod of this many uses nothing."""
_IDLE_S = 7200
"""For how long it has been idle."""
_WHOLE_GIB = 80


@dataclass(frozen=True, slots=True)
class _Kind:
    """Equal nodes."""

    prefix: str
    mode: str
    model: str
    gpus: tuple[NodeGpu, ...]


KINDS = (
    _Kind("a10", "share", "NVIDIA-A10", tuple(NodeGpu(n, memory=24) for n in range(4))),
    _Kind("a100", "core_mem", "NVIDIA-A100-SXM4-80GB", tuple(NodeGpu(n, memory=80, core=100) for n in range(8))),
    _Kind("h100", "topology", "NVIDIA-H100-80GB-HBM3", tuple(NodeGpu(n, whole=True) for n in range(8))),
    _Kind("t4", "cgpu", "Tesla-T4", tuple(NodeGpu(n, memory=15) for n in range(2))),
)
SICK = NodeProblem(
    "warning",
    "GPUUnhealthy",
    "GPU 1 (GPU-8f3c1d2e): XID 79; the driver asks to reboot the node: drain it, and reboot it",
)
FENCED = NodeProblem("info", "GPUFenced", "GPU 1 (GPU-1b22c3d4) is fenced by file (index 1)")
DOWN = NodeProblem("blocking", "DriverUnavailable", "NVIDIA driver: Driver/library version mismatch")
PROBLEMS = {3: (SICK,), 10: (FENCED,), 12: (DOWN,)}
"""By the number of a node."""


def fleet(nodes: int) -> Cluster:
    """The scheduler's view of so many nodes; the same each time."""
    mix = Mix()
    core = Scheduling(Strand(mix), mix)
    numbers = count()
    for number in range(nodes):
        kind = KINDS[number % len(KINDS)]
        node = _node(kind, number)
        name = node["metadata"]["name"]
        reading = node_reading(node)
        if reading:
            core.readings[name] = reading
        facts = node_facts(node)
        if facts is None:
            continue
        core.node_seen(facts)
        for used in _uses(facts.gpus.gpus, number):
            _add_pod(core, next(numbers), name, used)
    for number in range(max(nodes // 10, 3)):
        _add_waiting(core, number, nodes)
    return Cluster(core.usage.nodes, core.readings, core.pods, core.reservations, core.others)


async def use_page(cluster: Cluster) -> bytes:
    """The page /use of the fleet, once all its agents were asked: the first one does not answer."""
    agents = AgentPods("kube-system")
    for name in cluster.names():
        agents.seen(_agent_pod(name))
    silent = min(name for name, node in cluster.nodes.items() if node.users)

    async def ask(agent: AgentPod) -> list[HeldUse]:
        if agent.node == silent:
            raise AgentUnreadableError("its agent cannot be reached: connection refused")
        pods = pod_views(cluster.nodes[agent.node], cluster)
        return [_held_use(pod.name, pod.held.memory or _WHOLE_GIB) for pod in pods]

    reading = NamespaceUse(cluster, agents, ask)
    await reading.page()
    asking = asyncio.create_task(reading.run())
    while True:
        await asyncio.sleep(PAUSE_S)
        page = await reading.page()
        progress = json.loads(page)
        if progress["asked"] == progress["nodes"]:
            asking.cancel()
            return page


def _agent_pod(node: str) -> dict[str, Any]:
    labels = {NAME_LABEL: NAME, COMPONENT_LABEL: COMPONENT}
    return {
        "metadata": {"uid": f"agent-{node}", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": "192.0.2.7"},
    }


def _held_use(pod: str, held_gib: int) -> HeldUse:
    """Any use does that differs from pod to pod; of some it is not known."""
    namespace, _, name = pod.partition("/")
    pod_name = PodName(namespace, name)
    number = int(name.rpartition("-")[2])
    held_bytes = held_gib << 30
    is_unknown = number % _UNKNOWN_EVERY == 0
    if is_unknown:
        return HeldUse(pod_name, held_bytes, None, None)
    # From none to six eighths of what the pod holds. Its peak is an eighth above that.
    eighth_bytes = held_bytes // 8
    eighths = number % _IDLE_EVERY
    used_bytes = held_bytes * eighths // 8
    peak_bytes = used_bytes + eighth_bytes
    idle_s = 0 if eighths else _IDLE_S
    return HeldUse(pod_name, held_bytes, used_bytes, idle_s, peak_bytes)


def _node(kind: _Kind, number: int) -> dict[str, Any]:
    problems = PROBLEMS.get(number, ())
    gpus = kind.gpus
    if SICK in problems or FENCED in problems:
        gpus = tuple(replace(gpu, usable=gpu.minor != 1) for gpu in gpus)
    if DOWN in problems:
        gpus = ()
    is_ready = DOWN not in problems
    condition = {
        "type": CONDITION_TYPE,
        "status": "True" if is_ready else "False",
        "reason": "Ready" if is_ready else DOWN.reason,
        "message": condition_message(f"mode {kind.mode}, {len(kind.gpus)} GPUs", problems),
    }
    amounts = {
        GPU_MEM: str(sum(gpu.memory for gpu in gpus)),
        GPU_CORE: str(sum(gpu.core for gpu in gpus)),
        GPU_WHOLE: str(sum(gpu.whole for gpu in gpus)),
    }
    labels = {
        "aliyun.accelerator/nvidia_name": kind.model,
        "aliyun.accelerator/nvidia_count": str(len(kind.gpus)),
    }
    published = node_gpus_text(NodeGpus(gpus))
    return {
        "metadata": {
            "name": f"gpu-{kind.prefix}-{number:04}",
            "labels": labels,
            "annotations": {NODE_GPUS_ANNOTATION: published},
        },
        "status": {
            "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", **amounts},
            "conditions": [{"type": "Ready", "status": "True"}, condition],
        },
    }


def _uses(gpus: tuple[NodeGpu, ...], number: int) -> Iterator[Used]:
    """What the pods of a node hold: some GPUs are full, some empty."""
    for gpu in gpus:
        if not gpu.usable:
            continue
        # Any numbers do that differ from GPU to GPU.
        pods = (7 * number + 3 * gpu.minor + number // 4) % 5
        if gpu.whole:
            if pods > 1:
                yield ((gpu.minor, WHOLE),)
            continue
        free = Amounts(gpu.memory, gpu.core)
        for place in range(pods):
            memory = MEMORY[(number + place) % len(MEMORY)]
            core = CORE[(number + 3 * place) % len(CORE)] if gpu.core else 0
            share = Amounts(memory, core)
            if share.within(free):
                free -= share
                yield ((gpu.minor, share),)


def _add_pod(core: Scheduling, number: int, node: str, used: Used) -> None:
    ((_, amounts),) = used
    limits = {GPU_WHOLE: "1"}
    if amounts != WHOLE:
        limits = {GPU_MEM: str(amounts.memory), GPU_CORE: str(amounts.core)}
    uid = f"pod-{number}"
    core.pods[uid] = pod_facts(_pod(uid, number, limits, {"phase": "Running"}, node))
    core.usage.use(uid, node, used)


def _add_waiting(core: Scheduling, number: int, nodes: int) -> None:
    message = f"0/{nodes} nodes are available: {nodes} node(s) had no GPU with 100 GiB free (most free: 80 GiB)."
    reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    uid = f"waiting-{number}"
    status = {"phase": "Pending", "conditions": [reason]}
    core.pods[uid] = pod_facts(_pod(uid, number, {GPU_MEM: "100"}, status, ""))


def _pod(uid: str, number: int, limits: dict[str, str], status: dict[str, Any], node: str) -> dict[str, Any]:
    app = APPS[number % len(APPS)]
    metadata = {
        "name": f"{app}-{uid}",
        "namespace": NAMESPACES[number % len(NAMESPACES)],
        "uid": uid,
    }
    container = {"name": "main", "resources": {"limits": limits}}
    spec = {"nodeName": node, "containers": [container]}
    return {"metadata": metadata, "spec": spec, "status": status}
