"""Keeps the places of a plan: those of pods that their controllers are about to make again, and of the waiting pod."""

from collections.abc import Mapping

from gpuscheduler.core.defragment.move_plan import Move, MovePlan
from gpuscheduler.core.defragment.new_places import as_made_again
from gpuscheduler.core.defragment.surroundings import is_in_gang
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations


class HeldPlaces:
    """Reservations for pods that do not exist yet. The first pod that is like an evicted one gets its place.

    Args:
        reservations: of all pods.
        pods: by UID, as the watch shows them.
    """

    def __init__(self, reservations: Reservations, pods: Mapping[str, PodFacts]) -> None:
        self._reservations = reservations
        self._pods = pods
        self._expected: dict[str, PodFacts] = {}

    def keep(self, plan: MovePlan, until: float) -> None:
        """Reserve all places of a plan. The GPUs of the waiting pod are in use until the evicted pods have ended."""
        self._forget_lapsed()
        self.keep_for_waiting(plan, until)
        for move in plan.moves:
            made_again = as_made_again(move.pod)
            self._expected[made_again.uid] = made_again
            self._reservations.keep(made_again, {move.node: move.choice}, until)

    def keep_for_waiting(self, plan: MovePlan, until: float) -> None:
        """Reserve the place of the waiting pod, unless another one is reserved for it."""
        pod = self._pods.get(plan.pod.uid)
        if pod is not None and not pod.node and self._reservations.get(pod.uid) is None:
            self._reservations.keep(pod, {plan.node: plan.choice}, until)

    def take(self, pod: PodFacts) -> bool:
        """Give a pod that was not seen before the place of an evicted one that it is like; whether there was one."""
        for uid, expected in self._expected.items():
            is_alike = (pod.name.namespace, pod.owner) == (expected.name.namespace, expected.owner)
            if is_alike and pod.request == expected.request:
                del self._expected[uid]
                self._hand_over(uid, pod)
                return True
        return False

    def _hand_over(self, uid: str, pod: PodFacts) -> None:
        """Reserve what is kept under `uid` for the pod itself. kube-scheduler may ask about others before."""
        kept = self._reservations.get(uid)
        self._reservations.end([uid])
        may_start = not (pod.node or pod.deleting or pod.gated or is_in_gang(pod))
        if kept is not None and may_start:
            self._reservations.keep(pod, kept.choices, kept.until)

    def _forget_lapsed(self) -> None:
        """Forget pods that did not come before the end of their reservation."""
        for uid in list(self._expected):
            if self._reservations.get(uid) is None:
                del self._expected[uid]

    def end(self, plan: MovePlan) -> None:
        """Give the place of the waiting pod back, unless it is about to be bound."""
        self._reservations.give_back([plan.pod.uid])

    def end_moves(self, moves: tuple[Move, ...]) -> None:
        """Give back the places of pods that are not evicted, or do not come."""
        uids = [as_made_again(move.pod).uid for move in moves]
        for uid in uids:
            self._expected.pop(uid, None)
        self._reservations.end(uids)
