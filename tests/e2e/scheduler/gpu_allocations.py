"""The audit: what every GPU carries, by the API server's objects alone.

`Allocations` follows every change of every pod, so it also sees what was wrong only for a moment. It reads annotations
as the agent does, which has the last word on a node, and shares no code with the scheduler under test.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, gpu_names
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import Pod, asked, count_of
from gpuagent.domain.scheduling.decision import Decision, read
from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus, node_gpus
from gpuagent.domain.sharing.mode import (
    GPU_CORE,
    GPU_COUNT,
    GPU_MEM,
    GPU_WHOLE,
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    Kind,
)
from tests.e2e.cluster.manifests import Json

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)

OF_ALL_GROUPS = "all-"
"""Begins the name of a job that has pods of each group of a LeaderWorkerSet."""
OF_EACH_JOB = "each-"
"""Begins the name of a job that each Job of a sweep has for itself."""


@dataclass(frozen=True)
class _Part:
    """The part of one GPU that a pod has."""

    node: str
    minor: int
    memory: int = 0
    core: int = 0
    whole: int = 0


class Allocations:
    """Attributes:
    faults: what was wrong at any time, one sentence each.
    """

    def __init__(self, nodes: Iterable[Json]) -> None:
        self.faults: list[str] = []
        self._nodes = {node["metadata"]["name"]: _gpus(node) for node in nodes}
        self._parts: dict[str, tuple[_Part, ...]] = {}
        self._ended: set[str] = set()
        self._on: dict[tuple[str, int], dict[str, _Part]] = defaultdict(dict)
        self._members: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
        self._replicas: dict[tuple[str, str], int] = {}

    def seen(self, pod: Json) -> None:
        """A pod as it is now."""
        found, node = parse_pod(pod), pod["spec"].get("nodeName", "")
        if not any(asked(found, resource) for resource in RESOURCES):
            return
        if job := found.labels.get(JOB_LABEL):
            if not job.startswith(OF_ALL_GROUPS):
                # One template has the same labels for each group.
                job += found.labels.get("leaderworkerset.sigs.k8s.io/group-index", "")
            if job.startswith(OF_EACH_JOB):
                job += found.labels["batch.kubernetes.io/job-name"]
            self._members[found.name.namespace, job][found.uid] = bool(node)
            self._replicas[found.name.namespace, job] = count_of(found.labels.get(REPLICAS_LABEL)) or 0
        if not node and found.annotations.get(DECIDED_ANNOTATION) == found.uid:
            self.faults.append(f"pod {found.name} has a decision and no node")
        # After a kill of the API server, kwok may write a late Running, which no kubelet does.
        if node and found.uid not in self._parts and found.uid not in self._ended:
            self._take(found, node)
        if found.ended:
            self._ended.add(found.uid)
            self._drop(found.uid)

    def gone(self, uid: str) -> None:
        """A pod that is no more."""
        self._drop(uid)
        for members in self._members.values():
            members.pop(uid, None)

    def problems(self) -> list[str]:
        """The faults so far, and jobs that have neither all of their pods bound nor none. Ask when all is quiet."""
        partial = [
            f"job {name}: {sum(bound.values())} of {self._replicas[name]} pods are bound"
            for name, bound in self._members.items()
            if bound and sum(bound.values()) not in (0, self._replicas[name])
        ]
        return self.faults + partial

    def used(self) -> dict[str, int]:
        """Units of each resource that living pods have, over all nodes."""
        parts = [part for pods in self._on.values() for part in pods.values()]
        return {
            GPU_MEM: sum(part.memory for part in parts),
            GPU_CORE: sum(part.core for part in parts),
            GPU_WHOLE: sum(part.whole for part in parts),
        }

    def _take(self, pod: Pod, node: str) -> None:
        gpus = self._nodes[node]
        if pod.annotations.get(DECIDED_ANNOTATION) != pod.uid:
            self.faults.append(f"pod {pod.name} is bound to {node} without a decision of its own")
            return
        parts = _whole(pod, node, gpus) if asked(pod, GPU_WHOLE) else _share(pod, node, gpus)
        if isinstance(parts, str):
            self.faults.append(f"pod {pod.name} on {node}: {parts}")
            return
        if pod.ended:
            return
        self._parts[pod.uid] = parts
        for part in parts:
            on = self._on[node, part.minor]
            on[pod.uid] = part
            self.faults += _over(part, {gpu.minor: gpu for gpu in gpus.gpus}[part.minor], on, gpus.most_pods)

    def _drop(self, uid: str) -> None:
        for part in self._parts.pop(uid, ()):
            del self._on[part.node, part.minor][uid]


def _gpus(node: Json) -> NodeGpus:
    """The GPUs that the node publishes; equal ones where it publishes amounts only."""
    found = node_gpus(node["metadata"].get("annotations", {}))
    if isinstance(found, NodeGpus):
        return found
    amounts = node["status"]["allocatable"]
    count = int(amounts[GPU_COUNT])
    memory, core = (int(amounts.get(resource, 0)) // count for resource in (GPU_MEM, GPU_CORE))
    return NodeGpus(tuple(NodeGpu(n, memory, core, whole=GPU_WHOLE in amounts) for n in range(count)))


def _share(pod: Pod, node: str, gpus: NodeGpus) -> tuple[_Part, ...] | str:
    kinds = {GPU_MEM: Kind.MEMORY_CORE_MEM, GPU_CORE: Kind.CORE_CORE_MEM}
    amounts = {
        GPU_MEM: {str(gpu.minor): gpu.memory for gpu in gpus.gpus},
        GPU_CORE: {str(gpu.minor): gpu.core for gpu in gpus.gpus},
    }
    sold = {resource: kinds[resource] for resource in kinds if any(amounts[resource].values())}
    found = read(pod, sold, {str(gpu.minor): gpu.minor for gpu in gpus.gpus}, {name: amounts[name] for name in sold})
    if not isinstance(found, Decision):
        return f"the agent would ignore its annotations: {found}"
    if found.unmet:
        return f"the agent would refuse it: annotation {found.key} {found.unmet}"
    units: dict[str, dict[str, int]] = {resource: defaultdict(int) for resource in kinds}
    for (_, resource), on in found.units.items():
        for gpu, amount in on.items():
            units[resource][gpu] += amount
    for resource, on in units.items():
        if len(on) == 1:  # with its init containers and sidecars, as Kubernetes counts
            on[next(iter(on))] = asked(pod, resource)
    chosen = sorted(found.uuids)
    return tuple(_Part(node, int(gpu), units[GPU_MEM].get(gpu, 0), units[GPU_CORE].get(gpu, 0)) for gpu in chosen)


def _whole(pod: Pod, node: str, gpus: NodeGpus) -> tuple[_Part, ...] | str:
    found = gpu_names(pod.annotations, GROUP_ANNOTATION)
    minors = {str(gpu.minor) for gpu in gpus.gpus}
    if not isinstance(found, tuple) or not minors.issuperset(found) or len(found) != asked(pod, GPU_WHOLE):
        return f"{GROUP_ANNOTATION} has {found}, and it asks for {asked(pod, GPU_WHOLE)} of {sorted(minors)}"
    return tuple(_Part(node, int(name), whole=1) for name in found)


def _over(part: _Part, gpu: NodeGpu, on: Mapping[str, _Part], most_pods: int) -> Iterator[str]:
    """Why a GPU carries more than it may."""
    name = f"GPU {gpu.minor} of {part.node}"
    if not gpu.usable:
        yield f"{name} is out of service, and a pod was put on it"
    for what, used, there in (
        ("memory", sum(one.memory for one in on.values()), gpu.memory),
        ("compute", sum(one.core for one in on.values()), gpu.core),
        ("whole", sum(one.whole for one in on.values()), int(gpu.whole)),
        ("pods", len(on), most_pods if not gpu.whole else 1),
    ):
        if used > there:
            yield f"{name} has {there} of {what}, and its pods have {used}"
