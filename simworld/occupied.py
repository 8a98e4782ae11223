"""Holds each Binding of gpuscheduler against the containers that already run on the GPUs that it names.

`placements` knows what gpuscheduler has given away. Pods of other schedulers have GPUs, too, as their agent says.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from simworld.history import GIB_PER_GPU
from simworld.parts.node import SimulatedNode
from simworld.parts.placements import decided_gib
from simworld.runtime.kernel import kernel

if TYPE_CHECKING:
    from simworld.world import World

KNOWN_S = 6.5
"""How long gpuscheduler may not know of a container: its watch may be behind by 3 s, and sometimes twice in a row."""


class OccupiedChecks:
    """Checks Bindings."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def check_bound(self, uid: str, node_name: str, annotations: Mapping[str, str]) -> Iterator[str]:
        """The promise that a Binding breaks which decides for a GPU that others have filled before."""
        # The watches of a replica may be held back for longer.
        if self._world.scenario.replicas:
            return
        node = next(node for node in self._world.nodes if node.name == node_name)
        for index, gib in decided_gib(annotations).items():
            used = self._known_gib(node, index)
            if used + gib > GIB_PER_GPU:
                name = self._world.history.name(uid)
                has = f"containers that have run for {KNOWN_S:g} s have {used} GiB"
                yield f"{name} is bound with {gib} GiB of GPU {index} of {node_name}, where {has}"

    def _known_gib(self, node: SimulatedNode, index: str) -> int:
        """GiB of a GPU that containers have of which gpuscheduler knows."""
        told_until = kernel().now - KNOWN_S
        # While the API server or the agent is away, nothing is told.
        if self._world.faults_end_at > told_until:
            return 0
        uuid = next(gpu.uuid for gpu in node.box.gpus if str(gpu.minor) == index)
        used = 0
        # The container of a pod that was deleted by force may live on for a while, and its GPU is given to others.
        pods_there = {pod["metadata"]["uid"] for pod in self._world.api.objects.peek("pods")}
        for living in self._world.history.on_node(node.name):
            if living.since <= told_until and living.pod_uid in pods_there:
                used += len(living.memory_on(uuid))
        return used
