"""Nodes on which pods of a job are placed by way of trial: what fails leaves no trace."""

from collections.abc import Collection, Mapping, Sequence

from gpuscheduler.core.choose_gpus import Choice, fit
from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.jobs.places.groups import Group
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

Places = dict[str, tuple[str, Choice]]
"""UID to node name and GPUs, in an order in which kube-scheduler accepts the pods."""


class Trial:
    """Copies of nodes with pods on them.

    Args:
        nodes: by name, with what is in use.
        links: between the GPUs of each node.
        admission: of the pods. It counts those that are placed here.
        near: nodes with other members of the job.

    Attributes:
        nodes: with the pods that were placed.
        used: names of the nodes with pods of the job.
        places: of the pods that were placed.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeUsage],
        links: Links,
        admission: Admission,
        near: Collection[str],
    ) -> None:
        self.nodes = dict(nodes)
        self.used = set(near)
        self.places = Places()
        self._links = links
        self._admission = admission
        self._kinds: list[tuple[int, str]] = []

    def place(self, group: Group, pods: Sequence[PodFacts], name: str) -> bool:
        """Place pods of a group on a node, where they share the best set of GPUs; False if the node has no room."""
        node = self.nodes[name].copy()
        choices = _take(group.request, pods, node, self._links)
        if choices is None:
            return False
        self.nodes[name] = node
        self.used.add(name)
        for pod, choice in zip(pods, choices, strict=True):
            self.places[pod.uid] = name, choice
            self._admission.place(group.kind, name)
            self._kinds.append((group.kind, name))
        return True

    def undo(self) -> None:
        """Take all pods back from the admission, which others use after this."""
        for kind, name in self._kinds:
            self._admission.place(kind, name, -1)
        self._kinds.clear()


def _take(
    request: GpuRequest,
    pods: Sequence[PodFacts],
    node: NodeUsage,
    links: Links,
) -> list[Choice] | None:
    """GPUs for each of the pods, which `node` counts from now on; None if they have no room."""
    among: Collection[int] | None = None
    if request.kind is RequestKind.WHOLE:
        count = len(pods) * request.gpus
        if count > len(node.room.unused):
            return None
        among = links.choose(node, node.unused(), count)
    choices = []
    for pod in pods:
        choice = fit(request, node, links=links, among=among)
        if choice is None:
            return None
        node.use(pod.uid, choice.used)
        node.used += pod.requests
        choices.append(choice)
    return choices
