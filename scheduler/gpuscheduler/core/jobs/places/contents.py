"""What is free on nodes while a search places pods of several groups there."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.constraints.resources import free_amounts
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.jobs.places.groups import Group
from gpuscheduler.core.jobs.places.rooms import look_tries
from gpuscheduler.core.node_usage import NodeUsage

Counts = tuple[int, ...]


class Content(NamedTuple):
    """What is free on a node.

    Attributes:
        gpus: a node with as much free on its GPUs; nodes that are alike share it.
        free: amounts of the resources that the job asks for.
    """

    gpus: NodeUsage
    free: Counts


class Contents:
    """Works out what is free, once for all nodes that are alike.

    Args:
        groups: of the pods that are placed.
        tries: of the plan.
    """

    def __init__(self, groups: Sequence[Group], tries: Tries) -> None:
        self._groups = groups
        self._tries = tries
        resources: set[str] = set()
        for group in groups:
            resources |= group.requests.names()
        self._resources = tuple(sorted(resources))
        self._needs = [group.requests.amounts(self._resources) for group in groups]
        self._alike: dict[Hashable, NodeUsage] = {}
        self._after: dict[tuple[int, GpuRequest], NodeUsage | None] = {}

    def on(self, nodes: Mapping[str, NodeUsage]) -> dict[str, Content]:
        """What is free on nodes, by name; nothing if that takes too many tries."""
        # Any author of pods may name a resource on each that no other has.
        if not self._tries.spend(look_tries(len(nodes), len(self._resources))):
            return {}
        return {name: self._content(node) for name, node in nodes.items()}

    def after(self, number: int, content: Content) -> Content | None:
        """What is free with another pod of a group; None if there is no room for it."""
        group = self._groups[number]
        needs = self._needs[number]
        free = tuple(map(int.__sub__, content.free, needs))
        if any(units < 0 < need for units, need in zip(free, needs, strict=True)):
            return None
        gpus = self._gpus_with(group.request, content.gpus)
        return None if gpus is None else Content(gpus, free)

    def _content(self, node: NodeUsage) -> Content:
        free = free_amounts(node.facts.allocatable, node.used, self._resources)
        return Content(self._first_alike(node), free)

    def _first_alike(self, node: NodeUsage) -> NodeUsage:
        return self._alike.setdefault((node.alike(), node.facts.placement), node)

    def _gpus_with(self, request: GpuRequest, node: NodeUsage) -> NodeUsage | None:
        """A node with a pod more; None if its GPUs have no room for it."""
        key = (id(node), request)
        if key not in self._after:
            self._after[key] = None
            choice = fit(request, node, tries=self._tries)
            if choice:
                copy = node.copy()
                # The pods of a trial have numbers instead of UIDs.
                copy.use(str(len(self._after)), choice.used)
                self._after[key] = self._first_alike(copy)
        return self._after[key]
