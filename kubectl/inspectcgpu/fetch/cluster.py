"""Reads the cluster: nodes and pods in pages, ConfigMaps, and agents where labels and annotations do not suffice."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import DRA_DRIVER, GPU_CORE, GPU_MEM, GPU_WHOLE, MODE_LABEL, Mode
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import list_pages
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.fetch.agents import Answers, Asking, ask
from inspectcgpu.read.claims import Claims, by_node, read_claim, read_slice
from inspectcgpu.read.configmaps import NAMESPACE, GpuConfigMap, read_config_map
from inspectcgpu.read.gpu_node import RESOURCES, GpuNode, ReadNode, read_node_with_gpus
from inspectcgpu.read.gpu_pod import GpuPod, read_pod
from inspectcgpu.read.unit import measure, part_of_each

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
SLICES, CLAIMS = (f"/apis/resource.k8s.io/v1/resource{kind}" for kind in ("slices", "claims"))
NOT_SUCCEEDED = "status.phase!=Succeeded"
"""Failed pods are read too: the status of a refused pod has the reason."""
FEW_NAMES = 8
"""Up to this number, nodes and their pods are requested one by one; for more, all are listed."""
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Nodes:
    """GPU nodes by name. Of the requested nodes, `missing` do not exist, and `without` have no GPU resources."""

    gpu: tuple[GpuNode, ...]
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which nodes to show.

    Attributes:
        names: of the nodes.
        labels: without names, a label selector; empty for all.
        read: parses the nodes to show, and leaves out others.
    """

    names: Sequence[str] = ()
    labels: str = ""
    read: ReadNode = read_node_with_gpus

    @property
    def is_part(self) -> bool:
        """Whether a part of the cluster is shown. Pods without a node are then left out."""
        return bool(self.names or self.labels)


def read_nodes(client: Client, wanted: Wanted) -> Nodes:
    """The wanted nodes. Raises KubeError."""
    names = wanted.names
    if not names:
        params = {"labelSelector": wanted.labels} if wanted.labels else {}
        return Nodes(by_name(list_pages(client, NODES, wanted.read, params).items))
    shown: list[GpuNode] = []
    missing: list[str] = []
    without: list[str] = []
    for name, stored in _named(client, names).items():
        if stored is None:
            missing.append(name)
            continue
        node = wanted.read(stored)
        if node is None:
            without.append(name)
        else:
            shown.append(node)
    return Nodes(by_name(shown), tuple(missing), tuple(without))


def _named(client: Client, names: Sequence[str]) -> dict[str, Mapping[str, Any] | None]:
    """The Node objects of these names; None for a name without a node."""
    nodes: dict[str, Mapping[str, Any] | None] = dict.fromkeys(names)
    if len(names) <= FEW_NAMES:
        for name in nodes:
            nodes[name] = _object(client, f"{NODES}/{quote(name, safe='')}")
        return nodes
    listed = list_pages(client, NODES, lambda node: node if _name(node) in nodes else None)
    for node in listed.items:
        nodes[_name(node)] = node
    return nodes


def by_name(nodes: Iterable[GpuNode]) -> tuple[GpuNode, ...]:
    return tuple(sorted(nodes, key=lambda node: node.name))


def _name(node: Mapping[str, Any]) -> str:
    return text(mapping(node.get("metadata")).get("name"))


def _object(client: Client, path: str) -> Mapping[str, Any] | None:
    try:
        return client.get(path)
    except ApiError as err:
        if err.status == _NOT_FOUND:
            return None
        raise


def read_pods(client: Client, names: Sequence[str] = ()) -> tuple[GpuPod, ...]:
    """The pods that request GPUs: on these nodes, or all, including those without a node. Raises KubeError."""
    are_few = 0 < len(names) <= FEW_NAMES
    selectors = [pods_selector(name) for name in dict.fromkeys(names)] if are_few else [NOT_SUCCEEDED]
    pods: list[GpuPod] = []
    for selector in selectors:
        pods += list_pages(client, PODS, read_pod, {"fieldSelector": selector}).items
    if names:
        # Of many names, the pods of all nodes were listed.
        wanted = set(names)
        pods = [pod for pod in pods if pod.node in wanted]
    pods.sort(key=lambda pod: pod.name)
    return tuple(pods)


def on_nodes(pods: Iterable[GpuPod], nodes: Iterable[GpuNode]) -> tuple[GpuPod, ...]:
    """The pods on these nodes."""
    names = {node.name for node in nodes}
    return tuple(pod for pod in pods if pod.node in names)


def pods_selector(node: str) -> str:
    return f"{NOT_SUCCEEDED},spec.nodeName={node}"


@dataclass(frozen=True, slots=True)
class OtherSources:
    """Data from other sources than nodes and pods."""

    configmaps: Mapping[str, GpuConfigMap]
    answers: Answers
    problems: tuple[str, ...] = ()
    claims: Claims = Claims()


def read_other_sources(
    client: Client, nodes: Sequence[GpuNode], pods: Sequence[GpuPod], asking: Asking | None, *, usage: bool
) -> OtherSources:
    """Read ConfigMaps where they matter, and query agents (never where `asking` is None) where they have more data.

    With `usage` every agent is queried for the usage of containers, and where `asking` says so for its problems. Never
    raises: the result has the problems.
    """
    problems: list[str] = []
    claims = _claims(client, nodes, problems)
    # From here on, a node in mode dra has what its slices advertise, and pods have what their claims ask for.
    nodes = claims.nodes(nodes)
    pods = claims.pods(pods)
    configmaps = _configmaps(client, nodes, problems)
    if asking is None:
        answers = Answers(usage_problem="agents are not asked (--no-agents)" if usage else "")
        return OtherSources(configmaps, answers, tuple(problems), claims)
    all_nodes = {node.name for node in nodes}
    # Where a node publishes slices, these and the claims show all holders.
    wanted = all_nodes if asking.every_agent else agents_wanted(nodes, pods) - claims.slices.keys()
    busy = {pod.node for pod in pods if pod.node and not pod.refused} if usage else set()
    answers = _answers(client, asking, nodes, wanted, busy)
    return OtherSources(configmaps, answers, tuple(problems), claims)


def _claims(client: Client, nodes: Iterable[GpuNode], problems: list[str]) -> Claims:
    """All slices and claims, if a node publishes slices. A failed read becomes a problem."""
    if all(node.mode != Mode.DRA for node in nodes):
        return Claims()
    try:
        slices = list_pages(client, SLICES, read_slice, {"fieldSelector": f"spec.driver={DRA_DRIVER}"}).items
        claims = list_pages(client, CLAIMS, read_claim).items
    except KubeError as err:
        problems.append(f"the slices and claims of nodes in mode {Mode.DRA} cannot be read: {err}")
        return Claims()
    return Claims(by_node(slices), claims)


def _configmaps(client: Client, nodes: Sequence[GpuNode], problems: list[str]) -> dict[str, GpuConfigMap]:
    """The ConfigMaps that matter, by node. A failed read becomes a problem."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    configmaps: dict[str, GpuConfigMap] = {}
    for selector in _maps_wanted(nodes):
        try:
            listed = list_pages(client, path, read_config_map, {"labelSelector": selector}).items
        except KubeError as err:
            problems.append(f"ConfigMaps with GPUs' health and links cannot be read: {err}")
            break
        for configmap in listed:
            former = configmaps.get(configmap.node)
            configmaps[configmap.node] = _joined(former, configmap)
    return configmaps


def _joined(topology: GpuConfigMap | None, configmap: GpuConfigMap) -> GpuConfigMap:
    """What a further ConfigMap of a node adds: the health of some GPUs, unless it is the node's topology itself."""
    if topology is None or configmap.whole:
        return configmap
    health = {**topology.health, **configmap.health}
    return GpuConfigMap(topology.node, health, topology.whole, topology.links)


def _answers(
    client: Client, asking: Asking, nodes: Sequence[GpuNode], wanted: AbstractSet[str], busy: AbstractSet[str]
) -> Answers:
    """What the agents in `wanted` answer about holders, and those in `busy` also about the usage of containers.

    An agent that is queried for usage is queried for holders too: kubelet's allocations outrank annotations.
    """
    names = [node.name for node in nodes]
    users = [name for name in names if name in busy]
    asked = [name for name in names if name in wanted or name in busy]
    marked = {node.name for node in nodes if node.agent}
    answers = ask(client, asking, asked, marked=marked, usage_of=users)
    for name in users:
        if name not in wanted:
            # Without its answer, only the usage is missing, which `usage_problem` says.
            answers.unseen.pop(name, None)
    return answers


def _maps_wanted(nodes: Sequence[GpuNode]) -> list[str]:
    """Label selectors: topology reports, then lists of unhealthy GPUs."""
    selectors = []
    if any(node.offered(GPU_WHOLE) for node in nodes):
        selectors.append(f"{MODE_LABEL}={Mode.TOPOLOGY}")
    if any(map(_has_unhealthy_gpus, nodes)):
        selectors.append("app.kubernetes.io/managed-by=gpuagent")
    return selectors


def _has_unhealthy_gpus(node: GpuNode) -> bool:
    return any(node.allocatable.get(name, 0) < node.capacity.get(name, 0) for name in RESOURCES)


def agents_wanted(nodes: Sequence[GpuNode], pods: Sequence[GpuPod]) -> set[str]:
    """Nodes whose labels and annotations do not suffice, as during a mode switch."""
    by_name = {node.name: node for node in nodes}
    wanted = {node.name for node in nodes if _unclear(node)}
    for pod in pods:
        node = by_name.get(pod.node)
        if node is None or pod.refused:
            continue
        has_no_place = pod.asks.keys() != pod.places.keys()
        is_of_former_mode = not all(map(node.offered, pod.asks))
        if has_no_place or is_of_former_mode:
            wanted.add(node.name)
    return wanted


def _unclear(node: GpuNode) -> bool:
    """Whether the size of a unit, or of a GPU, does not follow from the Node's data."""
    if node.offered(GPU_MEM) and measure(node).doubt:
        return True
    offered = [name for name in (GPU_CORE, GPU_WHOLE) if node.offered(name)]
    return any(part_of_each(node, name) is None for name in offered)


def facts(
    nodes: Sequence[GpuNode],
    pods: Sequence[GpuPod],
    others: OtherSources,
    problems: Sequence[str] = (),
    newer: AbstractSet[PodName] = frozenset(),
) -> ClusterFacts:
    """All data of a report. `newer` are pods that changed since agents were queried."""
    answers = others.answers
    return ClusterFacts(
        nodes=others.claims.nodes(nodes),
        pods=others.claims.pods(pods),
        configmaps=others.configmaps,
        views={**answers.views, **others.claims.views},
        unseen=answers.unseen,
        usage=answers.usage,
        usage_problem=answers.usage_problem,
        problems=(*problems, *others.problems),
        newer=newer,
    )
