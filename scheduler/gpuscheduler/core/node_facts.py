"""A node as the scheduler keeps it: its GPUs, its CPU, and how shares are placed on it."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpuagent.domain.pods.annotations import Malformed
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.scheduling.held_gpus import HeldGpu, held_gpus
from gpuagent.domain.scheduling.node_gpus import MOST_GPUS, NodeGpu, NodeGpus, node_gpus
from gpuagent.domain.sharing.mode import (
    CORE_PERCENT_PER_GPU,
    GPU_CORE,
    GPU_COUNT,
    GPU_MEM,
    GPU_WHOLE,
    MODE_LABEL,
    PLACEMENT_LABEL,
    Mode,
    Placement,
)
from gpuscheduler.core.constraints.node_site import NodeSite, node_site
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources, node_resources
from gpuscheduler.core.gpu_request import WHOLE, Amounts, Used
from gpuscheduler.core.policy.accepted_models import NodeLabels, model_labels

_MEMORY_MODES = (Mode.SHARE.value, Mode.CGPU.value, Mode.MPS.value)
"""Modes that share memory alone: the GPUs of a node look the same in each."""
AGENT_READY = "GPUAgentReady"
"""The agent's condition. It is False where the node cannot serve what its mode promises."""
_MOST_REASON = 64
"""Characters of a condition's reason that are kept."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        name: of the Node.
        gpus: its GPUs; none is usable while the node is not ready.
        allocatable: what its pods may use in all of CPU, memory and other resources.
        site: its labels and taints.
        model: of the GPUs; empty if it is not labeled.
        model_labels: by which pods may ask for the model.
        placement: how shares are placed on it.
        assumed: the node does not publish its GPUs, so `gpus` follow from its amounts.
        problem: the published GPUs could not be read.
        mode: in force; empty if it is not known.
        unready: why none of its GPUs can be used now, after "node(s) "; empty if the node is ready.
        agent_problem: that the agent does not keep what the mode promises, in the same form; empty if it does.
        held: UID to what a pod uses, for the pods of which the agent publishes it. None if the agent publishes none.
    """

    name: str
    gpus: NodeGpus
    allocatable: Resources = NO_RESOURCES
    site: NodeSite = NodeSite()
    model: str = ""
    model_labels: NodeLabels = ()
    placement: Placement = Placement.BINPACK
    assumed: bool = False
    problem: str = ""
    held: Mapping[str, Used] | None = field(default=None, hash=False)
    mode: str = ""
    unready: str = ""
    agent_problem: str = ""

    @property
    def unit_mib(self) -> int:
        """MiB of one unit of memory; 0 if it is not known."""
        return 0 if self.assumed else self.gpus.unit_mib

    @property
    def kind(self) -> Hashable:
        """Equal for nodes that can serve the same pods while they are empty."""
        # Nodes with equal GPUs share the value, so that its identity is enough.
        return id(self.gpus), self.mode, self.unready, self.assumed


def node_facts(node: Mapping[str, Any], unhealthy: Collection[int] = ()) -> NodeFacts | None:
    """Read a Node object (decoded JSON); None if it has no GPUs.

    `unhealthy` are minor numbers from the ConfigMap `unhealthy-gpu-<node>`, for nodes that do not publish their GPUs.
    """
    metadata = mapping(node.get("metadata"))
    annotations = mapping(metadata.get("annotations"))
    labels = mapping(metadata.get("labels"))
    status = mapping(node.get("status"))
    allocatable = mapping(status.get("allocatable"))
    published = node_gpus(annotations)
    is_published = isinstance(published, NodeGpus)
    gpus = published if isinstance(published, NodeGpus) else _by_amounts(allocatable, unhealthy)
    if not gpus.gpus:
        return None
    agent_problem = _agent_problem(status)
    unready = _unready(status, gpus, agent_problem)
    if unready:
        gpus = _without_usable(gpus)
    named = model_labels(labels)
    is_spread = labels.get(PLACEMENT_LABEL) == Placement.SPREAD
    return NodeFacts(
        name=text(metadata.get("name")),
        gpus=_first(gpus),
        allocatable=_first_resources(node_resources(allocatable)),
        site=node_site(node),
        model=named[0][1] if named else "",
        model_labels=_first_labels(named),
        placement=Placement.SPREAD if is_spread else Placement.BINPACK,
        assumed=not is_published,
        problem=str(published) if isinstance(published, Malformed) else "",
        held=_held(annotations),
        mode=_mode(labels, gpus),
        unready=unready,
        agent_problem=agent_problem,
    )


def _unready(status: Mapping[str, Any], gpus: NodeGpus, agent_problem: str) -> str:
    """Why no GPU of the node can be used now, although it publishes some; empty if they can."""
    for condition in mappings(status.get("conditions")):
        # The status of a node whose kubelet is silent is Unknown.
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return "were not ready"
    usable = [gpu for gpu in gpus.gpus if gpu.usable]
    advertised = {
        GPU_MEM: any(gpu.memory for gpu in usable),
        GPU_CORE: any(gpu.core for gpu in usable),
        GPU_WHOLE: any(gpu.whole for gpu in usable),
    }
    allocatable = mapping(status.get("allocatable"))
    for name, is_advertised in advertised.items():
        if not is_advertised or _units(allocatable, name):
            continue
        if agent_problem:
            return agent_problem
        # Kubelet sets the amount to 0 when the agent's device plugin is gone, for example while it restarts.
        if name in allocatable:
            return f"had {name} at 0"
    return ""


def _agent_problem(status: Mapping[str, Any]) -> str:
    """That the agent is not ready, after "node(s) "; empty if it is, or does not say.

    Pods may still get GPUs there: an operator may have switched off isolation, which the mode promises.
    """
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == AGENT_READY and condition.get("status") == "False":
            reason = text(condition.get("reason"))[:_MOST_REASON]
            return f"had a GPU agent that was not ready: {reason}"
    return ""


def _without_usable(gpus: NodeGpus) -> NodeGpus:
    """The same GPUs, none of which takes a pod."""
    unusable = tuple(replace(gpu, usable=False) for gpu in gpus.gpus)
    return replace(gpus, gpus=unusable)


@lru_cache(maxsize=4096)
def _first(gpus: NodeGpus) -> NodeGpus:
    """The first value that was equal to this one: a cluster has thousands of nodes, of few kinds."""
    # Others compare these values by identity, which is faster: `NodeUsage.alike`, `reasons`.
    return gpus


def _mode(labels: Mapping[str, Any], gpus: NodeGpus) -> str:
    """The mode in force; empty if it is not known.

    The label may name another one: a removed or unknown value changes nothing, and a switch takes time.
    """
    if any(gpu.whole for gpu in gpus.gpus):
        return Mode.TOPOLOGY.value
    if any(gpu.core for gpu in gpus.gpus):
        return Mode.CORE_MEM.value
    label = text(labels.get(MODE_LABEL))
    return label if label in _MEMORY_MODES else ""


@lru_cache(maxsize=4096)
def _first_labels(labels: NodeLabels) -> NodeLabels:
    """The first value that was equal to this one."""
    return labels


@lru_cache(maxsize=4096)
def _first_resources(resources: Resources) -> Resources:
    """The first value that was equal to this one."""
    return resources


def _held(annotations: Mapping[str, Any]) -> dict[str, Used] | None:
    """What the agent publishes of each pod; None if it publishes nothing that can be read."""
    pods = held_gpus(annotations)
    if pods is None or isinstance(pods, Malformed):
        return None
    held: dict[str, Used] = {}
    for uid, gpus in pods.items():
        by_minor = sorted(gpus)
        held[uid] = tuple((gpu.minor, _amounts(gpu)) for gpu in by_minor)
    return held


def _amounts(gpu: HeldGpu) -> Amounts:
    return WHOLE if gpu.whole else Amounts(gpu.memory, gpu.core)


def _by_amounts(allocatable: Mapping[str, Any], unhealthy: Collection[int]) -> NodeGpus:
    """GPUs as the open scheduler extender assumes them: equal ones, numbered from 0."""
    memory = _units(allocatable, GPU_MEM)
    core = _units(allocatable, GPU_CORE)
    whole = _units(allocatable, GPU_WHOLE)
    # The plugins of before the agent publish the number of GPUs, or compute in percent of a GPU.
    by_compute = core // CORE_PERCENT_PER_GPU
    named = _units(allocatable, GPU_COUNT) or whole or by_compute
    count = min(named, MOST_GPUS)
    has_units = memory or whole
    if not count or not has_units:
        return NodeGpus(())
    gpus: list[NodeGpu] = []
    for minor in range(count):
        gpu = NodeGpu(
            minor,
            memory=memory // count,
            core=core // count,
            whole=bool(whole),
            usable=minor not in unhealthy,
        )
        gpus.append(gpu)
    return NodeGpus(tuple(gpus), both=bool(core))


def _units(amounts: Mapping[str, Any], name: str) -> int:
    return amount(str(amounts.get(name, "0"))) or 0
