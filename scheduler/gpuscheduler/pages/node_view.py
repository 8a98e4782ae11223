"""What people see of a node: its summary, each of its GPUs, and its pods with what they hold."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from gpuscheduler.core.gpu_request import WHOLE, Amounts, GpuRequest, RequestKind, Used
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


@dataclass(slots=True)
class Holding:
    """What some pods hold or have reserved, added up.

    Attributes:
        pods: how many.
        memory: units of memory.
        core: percent of compute.
        whole: whole GPUs.
    """

    pods: int = 0
    memory: int = 0
    core: int = 0
    whole: int = 0

    def add(self, pods: int, memory: int, core: int, whole: int) -> None:
        """Add other pods."""
        self.pods += pods
        self.memory += memory
        self.core += core
        self.whole += whole


@dataclass(slots=True)
class NodeUsers:
    """The pods of a node, added up.

    Attributes:
        on_gpu: minor number to how many pods count there.
        unknown: names of pods of which it is not known which GPUs they hold.
        waiting: how many are not bound yet.
        namespaces: what the pods of each hold.
    """

    on_gpu: dict[int, int]
    unknown: list[str] = field(default_factory=list)
    waiting: int = 0
    namespaces: dict[str, Holding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `gpus` are by minor number; `namespaces` has what the pods of each hold."""

    summary: NodeSummary
    gpus: tuple[GpuUse, ...]
    namespaces: Mapping[str, Holding]


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

    def pod(self, uid: str) -> PodFacts | None:
        """A pod that counts on a node; None if it was not seen."""
        pod = self.pods.get(uid)
        if pod:
            return pod
        reservation = self.reservations.get(uid)
        return reservation.pod if reservation else None


def node_view(name: str, cluster: Cluster) -> NodeView | None:
    """The node as it is now; None if there is none of this name."""
    node = cluster.nodes.get(name)
    reading = cluster.readings.get(name)
    if node is None:
        return _without_gpus(reading) if reading else None
    users = _users(node, cluster)
    gpus = tuple(_gpu_uses(node, users.on_gpu))
    # Its Node was seen with its GPUs, so that there is a reading, too.
    reading = reading or NodeReading(name)
    summary = node_summary(
        reading,
        gpus,
        unit_mib=node.facts.unit_mib,
        pods=len(node.users),
        waiting=users.waiting,
        others=_problems(node.facts, reading, users.unknown),
    )
    return NodeView(summary, gpus, users.namespaces)


def _without_gpus(reading: NodeReading) -> NodeView:
    """A node that gives GPUs by claims, leaves them to another plugin, or has a problem."""
    return NodeView(node_summary(reading, (), unit_mib=0, pods=0), (), {})


def pod_views(node: NodeUsage, cluster: Cluster) -> tuple[PodView, ...]:
    """The pods that count on the node, by name."""
    minors = {gpu.minor for gpu in node.facts.gpus.gpus}
    views = []
    for uid, use in node.users.items():
        pod = cluster.pod(uid)
        name = str(pod.name) if pod else uid
        is_reserved = cluster.reservations.get(uid) is not None
        known = dict(_known(use, minors))
        memory, core, whole = _held(use)
        view = PodView(name, is_reserved, known, Amounts(memory, core), whole)
        views.append(view)
    views.sort(key=attrgetter("name"))
    return tuple(views)


def _users(node: NodeUsage, cluster: Cluster) -> NodeUsers:
    """Add up the pods of a node.

    The first reader of the page waits until this was done for tens of thousands, so it makes no value for each of them.
    """
    users = NodeUsers({gpu.minor: 0 for gpu in node.facts.gpus.gpus})
    for uid, use in node.users.items():
        pod = cluster.pod(uid)
        if cluster.reservations.get(uid):
            users.waiting += 1
        known = _known(use, users.on_gpu)
        for minor, _ in known:
            users.on_gpu[minor] += 1
        if not known:
            users.unknown.append(str(pod.name) if pod else uid)
        namespace = pod.name.namespace if pod else uid
        holding = users.namespaces.get(namespace)
        if holding is None:
            # Equal names share one text, because the pages keep them for each node.
            holding = users.namespaces.setdefault(sys.intern(namespace), Holding())
        holding.add(1, *_held(use))
    # A pod of which the GPUs are not known counts on each of them.
    for minor in users.on_gpu:
        users.on_gpu[minor] += len(users.unknown)
    users.unknown.sort()
    return users


def _known(use: Used | GpuRequest, minors: Collection[int]) -> Used:
    """What a pod holds of each GPU; empty if it is not known which GPUs it holds."""
    if isinstance(use, GpuRequest):
        return ()
    for minor, _ in use:
        # The decision may name a GPU that the node does not have.
        if minor not in minors:
            return ()
    return use


def _held(use: Used | GpuRequest) -> tuple[int, int, int]:
    """Units of memory, percent of compute, and whole GPUs of one pod."""
    if isinstance(use, GpuRequest):
        whole = use.gpus if use.kind is RequestKind.WHOLE else 0
        return use.need.memory, use.need.core, whole
    memory = 0
    core = 0
    whole = 0
    for _, share in use:
        # To compare numbers is faster than to compare the values, and there are tens of thousands.
        if share.memory == WHOLE.memory:
            whole += 1
            continue
        memory += share.memory
        core += share.core
    return memory, core, whole


def _gpu_uses(node: NodeUsage, on_gpu: Mapping[int, int]) -> Iterator[GpuUse]:
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
            pods=on_gpu[gpu.minor],
            takes_pods=node.pods_left[position] > 0,
        )


def _problems(facts: NodeFacts, reading: NodeReading, unknown: Sequence[str]) -> Iterator[NodeProblem]:
    """What the scheduler knows of a node that its Node object does not say."""
    if facts.problem:
        yield NodeProblem("warning", "GPUsNotReadable", f"{facts.problem}. Its GPUs are counted by its amounts instead")
    if facts.unready and reading.is_ready and not facts.agent_problem:
        for name in _at_zero(facts, reading):
            yield amount_at_zero(name)
    if unknown:
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        named = ", ".join(unknown[:MOST_NAMED])
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
