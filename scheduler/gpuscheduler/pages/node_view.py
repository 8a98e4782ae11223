"""What people see of a node: its summary, each of its GPUs, and its pods with what they hold."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from gpuagent.domain.fleet.node_problems import NodeProblem
from gpuagent.domain.fleet.node_summary import (
    GpuUse,
    NodeReading,
    NodeSummary,
    amount_at_zero,
    node_summary,
)
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.gpu_request import WHOLE, Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.waiting.other_schedulers import OtherSchedulers

MOST_NAMED = 5
"""Pods that a problem names."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod on a node.

    Attributes:
        name: namespace and name, with ``/`` between them; the UID of a pod that was not seen.
        reserved: its GPUs are kept for it, and it is not bound yet.
        gpus: minor number to what it holds there; empty if it is not known which GPUs it holds.
        held: of all GPUs together: units of memory and percent of compute.
        whole: how many whole GPUs it holds.
    """

    name: str
    reserved: bool
    gpus: Mapping[int, Amounts]
    held: Amounts
    whole: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `gpus` are by minor number, `pods` by name."""

    summary: NodeSummary
    gpus: tuple[GpuUse, ...]
    pods: tuple[PodView, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What views are made from.

    Attributes:
        nodes: by name, those with GPUs that the scheduler places.
        readings: by name, what the Node objects say; also of nodes that offer no GPUs now, for example because
            their agent has a problem.
        pods: by UID.
        reservations: for pods that are not bound.
        others: pods that wait for another scheduler.
    """

    nodes: Mapping[str, NodeUsage]
    readings: Mapping[str, NodeReading]
    pods: Mapping[str, PodFacts]
    reservations: Reservations
    others: OtherSchedulers

    def names(self) -> list[str]:
        """Of all nodes that have, or should have, GPUs."""
        return sorted({*self.nodes, *self.readings})


def node_view(name: str, cluster: Cluster) -> NodeView | None:
    """The node as it is now; None if there is none of this name."""
    node = cluster.nodes.get(name)
    reading = cluster.readings.get(name)
    if node is None:
        return _without_gpus(reading) if reading else None
    pods = pod_views(node, cluster)
    gpus = tuple(_gpu_uses(node, pods))
    waiting = sum(pod.reserved for pod in pods)
    # Its Node was seen with its GPUs, so that there is a reading, too.
    reading = reading or NodeReading(name)
    summary = node_summary(
        reading,
        gpus,
        unit_mib=node.facts.unit_mib,
        pods=len(pods),
        waiting=waiting,
        others=_problems(node.facts, reading, pods),
    )
    return NodeView(summary, gpus, pods)


def _without_gpus(reading: NodeReading) -> NodeView:
    """A node that gives GPUs by claims, leaves them to another plugin, or has a problem."""
    return NodeView(node_summary(reading, (), unit_mib=0, pods=0), (), ())


def pod_views(node: NodeUsage, cluster: Cluster) -> tuple[PodView, ...]:
    """The pods that count on the node, by name."""
    minors = {gpu.minor for gpu in node.facts.gpus.gpus}
    views = []
    for uid, use in node.users.items():
        reservation = cluster.reservations.get(uid)
        pod = cluster.pods.get(uid) or (reservation and reservation.pod)
        name = str(pod.name) if pod else uid
        is_reserved = reservation is not None
        if isinstance(use, GpuRequest):
            whole = use.gpus if use.kind is RequestKind.WHOLE else 0
            views.append(PodView(name, is_reserved, {}, use.need, whole))
            continue
        amounts = dict(use)
        # The decision may name a GPU that the node does not have.
        known = amounts if amounts.keys() <= minors else {}
        memory = 0
        core = 0
        whole = 0
        for share in amounts.values():
            # To compare numbers is faster than to compare the values, and there are tens of thousands.
            if share.memory == WHOLE.memory:
                whole += 1
                continue
            memory += share.memory
            core += share.core
        views.append(PodView(name, is_reserved, known, Amounts(memory, core), whole))
    return tuple(sorted(views, key=attrgetter("name")))


def _gpu_uses(node: NodeUsage, pods: tuple[PodView, ...]) -> Iterator[GpuUse]:
    # A pod of which the GPUs are not known counts on each of them.
    unknown = sum(not pod.gpus for pod in pods)
    known: Counter[int] = Counter()
    for pod in pods:
        known.update(pod.gpus.keys())
    for position, gpu in enumerate(node.facts.gpus.gpus):
        free = node.free[position]
        yield GpuUse(
            gpu.minor,
            memory=gpu.memory,
            core=gpu.core,
            whole=gpu.whole,
            usable=gpu.usable,
            held_memory=gpu.memory - free.memory,
            held_core=gpu.core - free.core,
            pods=unknown + known[gpu.minor],
            takes_pods=node.pods_left[position] > 0,
        )


def _problems(facts: NodeFacts, reading: NodeReading, pods: tuple[PodView, ...]) -> Iterator[NodeProblem]:
    """What the scheduler knows of a node that its Node object does not say."""
    if facts.problem:
        yield NodeProblem("warning", "GPUsNotReadable", f"{facts.problem}. Its GPUs are counted by its amounts instead")
    if facts.unready and reading.is_ready and not facts.agent_problem:
        for name in _at_zero(facts, reading):
            yield amount_at_zero(name)
    names = [pod.name for pod in pods if not pod.gpus]
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        named = ", ".join(names[:MOST_NAMED])
        text = f"counted on every GPU, because no valid annotation says which GPUs they hold: {named}{more}"
        yield NodeProblem("warning", "PodsWithoutKnownGPUs", text)


def _at_zero(facts: NodeFacts, reading: NodeReading) -> Iterator[str]:
    """Resources that the node's GPUs have, and of which kubelet offers none."""
    gpus = facts.gpus.gpus
    published = {
        GPU_MEM: any(gpu.memory for gpu in gpus),
        GPU_CORE: any(gpu.core for gpu in gpus),
        GPU_WHOLE: any(gpu.whole for gpu in gpus),
    }
    for name, is_published in published.items():
        if is_published and reading.allocatable.get(name) == 0:
            yield name
