"""Whether a plan still holds: from its search to its last eviction, the cluster changes."""

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.defragment.acceptance import Acceptance, has_resources
from gpuscheduler.core.defragment.move_plan import Move, MovePlan
from gpuscheduler.core.defragment.new_places import as_made_again
from gpuscheduler.core.defragment.surroundings import Surroundings, why_not_served
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts


def obstacle(
    plan: MovePlan,
    cluster: Surroundings,
    now: float,
    evicted: int = 0,
) -> str:
    """Why a plan cannot be carried out now, in words; empty if it can.

    The first `evicted` of its pods have been evicted, and places are kept for all of its pods once there are any.
    """
    waiting = cluster.pods.get(plan.pod.uid)
    if waiting is None or waiting.request != plan.pod.request:
        return "the pod that waits has changed"
    why_not = why_not_served(waiting)
    if why_not:
        return f"pod {waiting.name} {why_not}"
    if plan.node not in cluster.usage.nodes:
        return f"node {plan.node} is gone"
    # Pods in place of those that were evicted may be on nodes by now, in their places or in others.
    remaining = plan.moves[evicted:]
    why_not = _obstacle_of_moves(remaining, waiting, cluster, now)
    return why_not or _Check(cluster, now).obstacle_of_places(plan, waiting, remaining)


def _obstacle_of_moves(
    moves: tuple[Move, ...],
    waiting: PodFacts,
    cluster: Surroundings,
    now: float,
) -> str:
    evicted = [move.pod for move in moves]
    for planned in evicted:
        pod = cluster.pods.get(planned.uid)
        if pod is None or pod.node != planned.node or pod.used != planned.used:
            return f"pod {planned.name} has changed"
        why_not = cluster.why_not_moved(pod, waiting, now)
        if why_not:
            return f"pod {pod.name} {why_not}"
    return cluster.budgets.obstacle(evicted)


class _Check:
    """Places all pods of a plan on copies of the nodes."""

    def __init__(self, cluster: Surroundings, now: float) -> None:
        self._cluster = cluster
        self._now = now
        self._acceptance = Acceptance(cluster.usage)
        self._nodes: dict[str, NodeUsage] = {}

    def obstacle_of_places(
        self,
        plan: MovePlan,
        waiting: PodFacts,
        remaining: tuple[Move, ...],
    ) -> str:
        for move in remaining:
            if self._node(move.pod.node) is None:
                return f"node {move.pod.node} is gone"
        for pod in plan.evicted:
            self._leave(pod, pod.node)
        # What is kept for pods of the plan must not count against the plan.
        made_again = {move.pod.uid: as_made_again(move.pod) for move in remaining}
        self._leave(waiting, plan.node)
        for move in remaining:
            self._leave(made_again[move.pod.uid], move.node)
        why_not = self._place(waiting, plan.node, plan.choice)
        for move in remaining:
            why_not = why_not or self._place(made_again[move.pod.uid], move.node, move.choice)
        return why_not or self._unbound_on(plan)

    def _leave(self, pod: PodFacts, name: str) -> None:
        """Count a pod no longer on a node, if it is there."""
        node = self._node(name)
        if node is not None and pod.uid in node.users:
            node.release(pod.uid)
            node.used -= pod.requests

    def _place(self, pod: PodFacts, name: str, choice: Choice) -> str:
        node = self._node(name)
        is_accepted = (
            node is not None
            and name not in self._cluster.passed_over(pod, self._now)
            and self._acceptance.accepts(pod, node)
        )
        if node is None or not is_accepted:
            return f"node {name} no longer takes pod {pod.name}"
        if not has_resources(pod, node) or not node.has_room(choice.used):
            return f"node {name} has no room for pod {pod.name} any more"
        node.use(pod.uid, choice.used)
        node.used += pod.requests
        return ""

    def _unbound_on(self, plan: MovePlan) -> str:
        """That another pod is about to be bound to a GPU of the plan, which must not lose its reservation."""
        minors = {minor for minor, _ in plan.choice.used}
        own = {plan.pod.uid, *(as_made_again(pod).uid for pod in plan.evicted)}
        for uid, use in self._cluster.usage.nodes[plan.node].users.items():
            pod = self._cluster.pods.get(uid)
            is_bound = pod is not None and pod.node == plan.node
            if is_bound or uid in own or not isinstance(use, tuple):
                continue
            if not minors.isdisjoint(minor for minor, _ in use):
                return f"a pod is about to be bound to a GPU of node {plan.node}"
        return ""

    def _node(self, name: str) -> NodeUsage | None:
        """A copy of a node, one for the whole check."""
        copy = self._nodes.get(name)
        node = self._cluster.usage.nodes.get(name)
        if copy is None and node is not None:
            copy = node.copy()
            self._nodes[name] = copy
        return copy
