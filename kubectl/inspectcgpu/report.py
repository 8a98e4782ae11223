"""The use of each GPU of a cluster: nodes, pods, and data of agents and ConfigMaps in, one value out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from inspectcgpu.read.agent_page import AgentView, SeenProblem
from inspectcgpu.read.configmaps import HEALTHY, GpuConfigMap
from inspectcgpu.read.gpu_node import RESOURCES, GpuNode
from inspectcgpu.read.gpu_pod import GpuPod, Places
from inspectcgpu.read.resize import Resize, read_resize
from inspectcgpu.read.unit import Measure, measure, part_of_each
from inspectcgpu.read.usage import Usage

AGENT = "agent"
UNKNOWN = "?"
NO_GPUS_SEEN = "it sees no GPUs"


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


@dataclass(frozen=True, slots=True)
class Amount:
    """Units allocated, out of how many; None where that is not known."""

    allocated: int
    total: int | None

    def __str__(self) -> str:
        return f"{self.allocated}/{UNKNOWN if self.total is None else self.total}"


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU. `amounts` has the resources that its node advertises; `cause` is "" for a healthy one."""

    number: int
    amounts: Mapping[str, Amount]
    cause: str = ""
    model: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod: `places` are its GPUs, `pending` its requests without a GPU, and `why` the reason for those.

    `resize` is the change of its memory limit; None if it has the limit that it requested.
    """

    pod: GpuPod
    places: Places
    sources: Mapping[str, str]
    pending: Mapping[str, int]
    why: str = ""
    differs: str = ""
    usage: Usage | None = None
    resize: Resize | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. `amounts` has resource to units allocated, those without a GPU included, out of the allocatable.

    `problems` are those that its agent reports; None if it did not answer.
    """

    node: GpuNode
    measure: Measure
    gpus: tuple[GpuReport, ...]
    amounts: Mapping[str, Amount]
    pending: Mapping[str, int]
    pods: tuple[PodReport, ...]
    links: tuple[tuple[str, ...], ...] = ()
    seen: bool = False
    unseen: str = ""
    problems: tuple[SeenProblem, ...] | None = None

    @property
    def unit(self) -> str:
        """The unit of memory: ``GiB``, ``256MiB``, or ``?``."""
        return str(self.measure.unit) if self.measure.unit else UNKNOWN


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster. `waiting` are pods without a node, and refused ones."""

    nodes: tuple[NodeReport, ...]
    waiting: tuple[PodReport, ...]
    usage_problem: str = ""
    problems: tuple[str, ...] = ()

    @property
    def sharing(self) -> tuple[NodeReport, ...]:
        """The nodes with shares of GPUs, by memory or by compute."""
        return tuple(node for node in self.nodes if GPU_MEM in node.amounts or GPU_CORE in node.amounts)

    @property
    def without_gpu(self) -> tuple[PodReport, ...]:
        """The pods that ask for GPUs and have none: those on a node, then those on none."""
        on_nodes = (pod for node in self.nodes for pod in node.pods if pod.pending)
        return (*on_nodes, *self.waiting)

    @property
    def pods(self) -> Iterator[PodReport]:
        """All pods that ask for GPUs."""
        for node in self.nodes:
            yield from node.pods
        yield from self.waiting

    def having(self, resource: str) -> tuple[NodeReport, ...]:
        """The nodes with an amount of `resource`."""
        return tuple(node for node in self.nodes if resource in node.amounts)

    def total(self, nodes: Iterable[NodeReport], resource: str) -> Amount:
        """The sum over those nodes; unknown amounts count as 0."""
        amounts = [node.amounts[resource] for node in nodes]
        allocated = sum(amount.allocated for amount in amounts)
        total = sum(amount.total or 0 for amount in amounts)
        return Amount(allocated, total)


def of_namespace(report: ClusterReport, namespace: str) -> ClusterReport:
    """The report with the pods of one namespace. Amounts still count the pods of all, because they share the GPUs."""
    nodes = [replace(node, pods=_pods_of(node.pods, namespace)) for node in report.nodes]
    return replace(report, nodes=tuple(nodes), waiting=_pods_of(report.waiting, namespace))


def _pods_of(pods: Iterable[PodReport], namespace: str) -> tuple[PodReport, ...]:
    return tuple(pod for pod in pods if pod.pod.name.namespace == namespace)


def build(facts: ClusterFacts) -> ClusterReport:
    """The report."""
    names = {node.name for node in facts.nodes}
    by_node: dict[str, list[GpuPod]] = defaultdict(list)
    waiting = []
    for pod in facts.pods:
        if pod.refused or not pod.node:
            waiting.append(PodReport(pod, {}, {}, pod.asks, pod.waits))
        elif pod.node in names:
            by_node[pod.node].append(pod)
    nodes = tuple(_node_at_least(node, by_node.get(node.name, ()), facts) for node in facts.nodes)
    return ClusterReport(nodes, tuple(waiting), facts.usage_problem, facts.problems)


def _node_at_least(node: GpuNode, pods: Sequence[GpuPod], facts: ClusterFacts) -> NodeReport:
    """The node; without the data of agents and ConfigMaps if they cannot be shown, so that other nodes still are."""
    try:
        return _node(node, pods, facts)
    except Exception as err:  # noqa: BLE001 - whatever a page of another program makes of it
        unseen = {node.name: f"what it and ConfigMaps say cannot be shown ({type(err).__name__}: {err})"}
        return _node(node, pods, replace(facts, views={}, configmaps={}, unseen=unseen))


def _node(node: GpuNode, pods: Sequence[GpuPod], facts: ClusterFacts) -> NodeReport:
    page = facts.views.get(node.name)
    configmap = facts.configmaps.get(node.name)
    unseen = facts.unseen.get(node.name, "")
    measured = _measured(node, page)
    # Without a driver an agent shows no GPUs: labels and annotations then count.
    view = page if page and page.gpus else None
    known = _numbers(node, view, configmap)
    reports = tuple(_pod(pod, known, page, unseen, facts) for pod in pods)
    held = _held(reports)
    numbers = sorted({gpu for gpu, _ in held}) if known is None else known
    shown = _shown_resources(node, reports)
    details = _Details(node, measured, view, configmap)
    gpus = tuple(_gpu(number, shown, held, details) for number in numbers)
    pending: Counter[str] = Counter()
    for report in reports:
        pending.update(report.pending)
    amounts = {}
    for resource in shown:
        on_gpus = sum(gpu.amounts[resource].allocated for gpu in gpus)
        amounts[resource] = Amount(on_gpus + pending[resource], node.allocatable.get(resource, 0))
    if page and not view:
        unseen = NO_GPUS_SEEN
    return NodeReport(
        node=node,
        measure=measured,
        gpus=gpus,
        amounts=amounts,
        pending=dict(pending),
        pods=reports,
        links=configmap.links if configmap else (),
        seen=view is not None,
        unseen=unseen,
        problems=page.problems if page else None,
    )


def _measured(node: GpuNode, page: AgentView | None) -> Measure:
    """The unit of memory, which the agent knows best, and how much of it each GPU has."""
    measured = measure(node) if node.offered(GPU_MEM) else Measure(None, None)
    if page and page.unit:
        return Measure(page.unit, measured.per_gpu, measured.doubt)
    return measured


def _held(pods: Iterable[PodReport]) -> Counter[tuple[int, str]]:
    """Units that the pods hold together, by number of the GPU and resource."""
    held: Counter[tuple[int, str]] = Counter()
    for pod in pods:
        for resource, units_by_gpu in pod.places.items():
            for gpu, units in units_by_gpu.items():
                held[gpu, resource] += units
    return held


def _shown_resources(node: GpuNode, pods: Iterable[PodReport]) -> list[str]:
    """The resources that the node advertises, and those that its pods ask for, as after a change of its mode."""
    wanted: set[str] = set()
    for pod in pods:
        wanted.update(pod.pod.asks)
    return [name for name in RESOURCES if node.offered(name) or name in wanted]


def _gpu(number: int, shown: Iterable[str], held: Counter[tuple[int, str]], details: "_Details") -> GpuReport:
    amounts = {resource: Amount(held[number, resource], details.total(number, resource)) for resource in shown}
    return GpuReport(number, amounts, details.cause(number), details.model(number), details.memory_mib(number))


def _numbers(node: GpuNode, view: AgentView | None, configmap: GpuConfigMap | None) -> list[int] | None:
    """Minor numbers of the node's GPUs; None where no source has their number."""
    if view:
        return sorted(view.gpus)
    if configmap and configmap.whole and configmap.health:
        return sorted(configmap.health)
    return None if node.gpu_count is None else list(range(node.gpu_count))


@dataclass(frozen=True, slots=True)
class _Details:
    """The total amounts of a GPU, its model, and whether it is unhealthy, each from the best source."""

    node: GpuNode
    measured: Measure
    view: AgentView | None
    configmap: GpuConfigMap | None

    def total(self, number: int, resource: str) -> int | None:
        if self.view:
            return self.view.gpus[number].units.get(resource, 0)
        if not self.node.offered(resource):
            return 0
        if resource == GPU_MEM:
            return self.measured.per_gpu
        if resource == GPU_WHOLE and self.configmap and self.configmap.whole:
            return 1
        return part_of_each(self.node, resource)

    def cause(self, number: int) -> str:
        if self.view:
            gpu = self.view.gpus[number]
            return "" if gpu.healthy else gpu.cause or "Unhealthy"
        word = self.configmap.health.get(number, HEALTHY) if self.configmap else HEALTHY
        return "" if word == HEALTHY else word or "Unhealthy"

    def model(self, number: int) -> str:
        if self.view:
            return self.view.gpus[number].model
        # The labels of a node are about its first GPU.
        return self.node.model if number == 0 else ""

    def memory_mib(self, number: int) -> int | None:
        if self.view:
            return self.view.gpus[number].memory_mib
        return self.node.first_mib if number == 0 else None


def _pod(
    pod: GpuPod, known: Sequence[int] | None, view: AgentView | None, unseen: str, facts: ClusterFacts
) -> PodReport:
    """The pod's GPUs: kubelet's allocations as its node's agent shows them, else a scheduler's annotations."""
    faults = list(pod.faults)
    places: dict[str, Mapping[int, int]] = {}
    sources: dict[str, str] = {}
    for resource, annotated in pod.places.items():
        unknown = _unknown_gpus(annotated, known)
        if unknown:
            faults.append(f"its annotation names GPU {unknown[0]}, and the node has {_spoken(known or ())}")
            continue
        places[resource] = annotated
        sources[resource] = pod.sources[resource]
    by_kubelet = view.places.get(pod.name, {}) if view else {}
    differs = _difference(places, by_kubelet)
    for resource, allocated in by_kubelet.items():
        if resource in pod.asks:
            places[resource] = allocated
            sources[resource] = AGENT
    pending = {resource: amount for resource, amount in pod.asks.items() if resource not in places}
    why = _why(pod, faults, view, unseen, newer=pod.name in facts.newer) if pending else "; ".join(faults)
    return PodReport(
        pod=pod,
        places=places,
        sources=sources,
        pending=pending,
        why=why,
        differs=differs,
        usage=facts.usage.get(pod.name),
        resize=_resize(pod, view),
    )


def _unknown_gpus(annotated: Mapping[int, int], known: Sequence[int] | None) -> list[int]:
    """The GPUs of an annotation that the node does not have; none if its GPUs are not known."""
    return [] if known is None else sorted(set(annotated) - set(known))


def _difference(annotated: Places, by_kubelet: Places) -> str:
    """How kubelet's allocations differ from the annotations, for the last resource that does; empty if none does."""
    difference = ""
    for resource, allocated in by_kubelet.items():
        planned = annotated.get(resource, allocated)
        if dict(planned) != dict(allocated):
            difference = f"its annotation gives it {_units(planned)}, and kubelet gave it {_units(allocated)}"
    return difference


def _resize(pod: GpuPod, view: AgentView | None) -> Resize | None:
    """What became of the pod's request for another limit: its node's agent knows, and an annotation may be forged."""
    answer = pod.limit_answer
    if view is not None and view.resizes is not None:
        answer = view.resizes.get(pod.name, "")
    return read_resize(pod.wanted_limit, answer)


def _why(pod: GpuPod, faults: Sequence[str], view: AgentView | None, unseen: str, *, newer: bool) -> str:
    """Why none of the pod's GPUs is known."""
    agent = "the node's agent could not be asked" if unseen else ""
    if view:
        agent = "the node's agent has given it none yet" if view.gpus else "the node's agent sees no GPUs"
    if view and newer:
        agent = "the node's agent is asked again soon: it was before the pod changed"
    annotated = [] if faults else ["not annotated by a scheduler"]
    return "; ".join(filter(None, (*faults, *annotated, agent, pod.waits)))


def _units(gpus: Mapping[int, int]) -> str:
    return ", ".join(f"{units} of GPU {gpu}" for gpu, units in sorted(gpus.items()))


def _spoken(known: Sequence[int]) -> str:
    return ", ".join(map(str, known)) or "none"
