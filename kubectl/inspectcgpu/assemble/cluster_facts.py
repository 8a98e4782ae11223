"""Everything that was read of a cluster."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gpuagent.domain.pods.pod import PodName
from inspectcgpu.read.agent_page import AgentView
from inspectcgpu.read.configmaps import GpuConfigMap
from inspectcgpu.read.gpu_node import GpuNode
from inspectcgpu.read.gpu_pod import GpuPod
from inspectcgpu.read.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that was read, as of one moment.

    Attributes:
        nodes: in the order in which they are shown.
        pods: of these nodes, and such as have no node yet.
        configmaps: node to the data of its ConfigMaps.
        views: node to its agent's page, where that was requested and answered.
        unseen: node to the reason why its agent did not answer, where it was queried.
        usage: pod to its usage, where agents' metrics show it.
        usage_problem: why no agent shows the usage of pods; "" where one does, or none was queried.
        problems: failed reads, in words for people.
        newer: pods that changed since agents were queried.
    """

    nodes: Sequence[GpuNode]
    pods: Sequence[GpuPod]
    configmaps: Mapping[str, GpuConfigMap] = field(default_factory=dict)
    views: Mapping[str, AgentView] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[PodName, Usage] = field(default_factory=dict)
    usage_problem: str = ""
    problems: tuple[str, ...] = ()
    newer: AbstractSet[PodName] = frozenset()
