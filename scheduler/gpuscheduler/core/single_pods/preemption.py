"""Which pods are evicted for a pod of higher priority, and what they free is kept for it."""

from collections.abc import Callable, Collection, Mapping, Sequence

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.single_pods.victims import Ending, cost_of, victims

EVICTED_S = 30.0
"""How long no more pods are evicted for a pod whose victims were not seen to end."""
FREED_S = 30.0
"""How long GPUs that victims freed stay reserved for the pod that they went for."""
PREEMPT_TRIES = 2000
"""Tries of one preempt call. kube-scheduler proposes a hundred nodes or more; the first that help are enough."""


class Preemption:
    """The victims of pods that wait.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        pods: by UID, as the watch shows them.
        ending: how many pods end with their jobs.
        choice: the GPUs for a pod on a node, by its name; None if there are none.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        pods: Mapping[str, PodFacts],
        ending: Ending,
        choice: Callable[[PodFacts, str], Choice | None],
    ) -> None:
        self._usage = usage
        self._reservations = reservations
        self._pods = pods
        self._ending = ending
        self._choice = choice
        self._evictions: dict[str, tuple[dict[str, list[str]], float]] = {}
        """UID of a pod that waits to its victims by node, and until when they may be on their way."""

    def victims(
        self,
        pod: PodFacts,
        proposed: Mapping[str, Sequence[str]],
        violations: Mapping[str, int],
        now: float,
    ) -> dict[str, list[str]]:
        """Choose victims by GPU. A node where evictions do not help is left out.

        kube-scheduler takes one of the nodes, and counts the victims there alone. So a node where a job would end is
        left out as well if fewer pods end on another one.

        Args:
            pod: the pod that waits.
            proposed: node name to the UIDs that kube-scheduler would evict there.
            violations: node name to how many disruption budgets forbid that.
            now: monotonic seconds.
        """
        if pod.request.problem or self._are_ending(pod, now):
            return {}
        chosen: dict[str, list[str]] = {}
        tries = Tries(PREEMPT_TRIES)
        for name, uids in proposed.items():
            if tries.gave_up:
                # The nodes so far are enough.
                break
            node = self._usage.nodes.get(name)
            by_gpu = (
                victims(
                    pod,
                    node,
                    self._pods,
                    uids,
                    self._ending,
                    tries,
                )
                if node
                else None
            )
            if node and by_gpu is not None:
                others = self._others(pod, node, uids, by_gpu)
                chosen[name] = [*others, *sorted(by_gpu.difference(others))]
        chosen = self._without_jobs(chosen, violations)
        # kube-scheduler may take any of these nodes.
        self._evictions[pod.uid] = chosen, now + EVICTED_S
        return chosen

    def _without_jobs(
        self,
        chosen: Mapping[str, list[str]],
        violations: Mapping[str, int],
    ) -> dict[str, list[str]]:
        """The nodes without those where a job ends, and another one is cheaper by all that counts before."""
        costs = {name: cost_of(uids, self._pods, self._ending) for name, uids in chosen.items()}

        def rank(name: str) -> tuple[int, int]:
            return violations.get(name, 0), costs[name].highest

        fewest: dict[tuple[int, int], int] = {}
        for name, cost in costs.items():
            ended = fewest.get(rank(name), cost.ended)
            fewest[rank(name)] = min(ended, cost.ended)
        # What kube-scheduler ranks behind others is not looked at, so only equal ranks are compared.
        return {
            name: uids
            for name, uids in chosen.items()
            if not costs[name].breaks_jobs or costs[name].ended <= fewest[rank(name)]
        }

    def keep_freed(self, victim: str, now: float) -> None:
        """Reserve what a victim freed for the pod that it went for, until kube-scheduler tries that pod again."""
        for uid, (by_node, until) in self._evictions.items():
            pod = self._pods.get(uid)
            if pod is None or pod.node or until <= now:
                continue
            if victim not in by_node.get(pod.nominated, ()):
                continue
            choice = self._choice(pod, pod.nominated)
            # Without one, other victims have to end first.
            if choice:
                self._reservations.keep(pod, {pod.nominated: choice}, now + FREED_S)

    def _are_ending(self, pod: PodFacts, now: float) -> bool:
        """Whether the victims of an earlier call are enough for the pod, and are ending or gone."""
        self._forget_old(now)
        if pod.uid not in self._evictions:
            return False
        by_node, _ = self._evictions[pod.uid]
        ending = by_node.get(pod.nominated)
        if not ending:
            return False
        # There may be room already: kube-scheduler has not seen yet that they are gone.
        has_room = self._choice(pod, pod.nominated) is not None
        any_lives = not self._pods.keys().isdisjoint(ending)
        return has_room or any_lives

    def _forget_old(self, now: float) -> None:
        """Forget victims that were not seen to end in time, so that others are evicted."""
        kept = {}
        for uid, eviction in self._evictions.items():
            _, until = eviction
            if now < until:
                kept[uid] = eviction
        self._evictions = kept

    def _others(
        self,
        pod: PodFacts,
        node: NodeUsage,
        uids: Sequence[str],
        by_gpu: Collection[str],
    ) -> list[str]:
        """The proposed pods that have to go for CPU or memory.

        Those with GPUs may have been proposed for the sum of the node's GPUs alone.
        """
        evicted = [self._pods[uid] for uid in by_gpu if uid in self._pods]
        used = node.used
        for victim in evicted:
            used -= victim.requests
        is_short = not pod.requests.times_in(node.facts.allocatable, used, 1)
        if is_short:
            return list(uids)
        return [uid for uid in uids if uid not in node.users]
