"""Pods that kubelet refuses although nothing is wrong: a reason in words is not enough, it has to be one that holds.

Only what is certain is told. So nothing is while a fault may still have effects, or if a tenant has changed what the
agent follows, or if containers that have just ended may still count as living for the agent.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import MODE_LABEL
from simworld.parts.amounts import ENDED, has_claims, limits
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import kernel
from simworld.scenario import Action
from simworld.waiting import RESOURCES, free_by_gpu, has_room_on
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

CALM_S = 100.0
"""How long after the beginning of a fault, which lasts for 40 s at most, pods may be refused for it."""
ENDED_S = 15.0
"""How long a container that has ended may count as living: kubelet's list is read once a second, if nothing is slow."""
CALM_ACTIONS = frozenset(
    (
        "create_pod",
        "create_job_pod",
        "create_gang",
        "create_twins",
        "create_retried_gang",
        "create_init_pod",
        "create_workload",
        "evict_workload",
        "suspend_workload",
        "delete_workload",
        "lose_member",
        "delete_pod",
        "replace_pod",
    )
)
"""Actions after which no pod may be refused that has room. `replace_pod` gives a name to another pod."""


OF_ONE_NODE = frozenset(
    (
        "restart_agent",
        "restart_kubelet",
        "restart_both",
        "raise_xid",
        "lose_gpu",
        "break_gpu",
        "hang_driver",
        "slow_disk",
        "press_disk",
        "monitor",
        "set_mode",
        "change_mode_for",
        "restart_limits",
        "slow_limits",
        "refuse_limits",
        "strike_limits",
    )
)
"""Actions that excuse refusals on one node only, whose number is the first argument."""


class RefusalChecks:
    """Checks each refusal when it happens.

    Args:
        world: whose faults are noted with `acts`.

    Attributes:
        calm_from: name of each node to the moment from which its refusals are not excused, in virtual seconds.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.calm_from = dict.fromkeys((node.name for node in world.nodes), 0.0)

    def acts(self, action: Action) -> None:
        """An action begins."""
        if action.kind in CALM_ACTIONS:
            return
        nodes = self._world.nodes
        if action.kind in OF_ONE_NODE:
            nodes = [self._world.node_of(int(action.args[0]))]
        for node in nodes:
            self.calm_from[node.name] = kernel().now + CALM_S

    def check(self, node_name: str, uid: str, _reason: str) -> Iterator[str]:
        """The promise that a refusal breaks: nothing is wrong, and a GPU of the node has room for the pod."""
        if kernel().now < self.calm_from[node_name] or uid in self._world.history.edited:
            return
        pods = self._world.api.objects.peek("pods")
        pod = next((pod for pod in pods if pod["metadata"]["uid"] == uid), None)
        # Kubelet may admit a pod that was deleted meanwhile.
        if pod is None or has_claims(pod):
            return
        node = next(node for node in self._world.nodes if node.name == node_name)
        if self._has_room(node, pod, pods):
            yield f"{self._world.history.name(uid)} is refused, and {node.name} has room for it"

    def _has_room(self, node: SimulatedNode, pod: Json, pods: list[Json]) -> bool:
        """Whether a GPU has room for the whole pod, wherever those are that have been bound and do not run yet."""
        stored = self._world.api.objects.get(("nodes", "", node.name))
        mode = stored["metadata"]["labels"][MODE_LABEL]
        wanted = limits(pod)
        if set(wanted) != RESOURCES.get(mode):
            return False
        coming = self._coming(node, pod, pods)
        free = free_by_gpu(self._world, node, ended_after=kernel().now - ENDED_S)
        return has_room_on(free.values(), wanted, coming)

    def _coming(self, node: SimulatedNode, refused: Json, pods: list[Json]) -> Counter[str]:
        """What other pods of the node ask for that may have GPUs without a container that lives."""
        living = {living.pod_uid for living in self._world.history.on_node(node.name)}
        coming: Counter[str] = Counter()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            is_of_node = pod["spec"].get("nodeName") == node.name
            has_ended = (pod.get("status") or {}).get("phase") in ENDED
            is_another = uid != refused["metadata"]["uid"] and uid not in living
            if is_of_node and is_another and not has_ended:
                coming.update(limits(pod))
        return coming
