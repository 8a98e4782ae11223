"""The pods that wait and may have others moved for them."""

from collections.abc import Iterator, Mapping

from gpuscheduler.core.defragment.surroundings import why_not_served
from gpuscheduler.core.pod_facts import PodFacts

MOST_RESTING = 4096
"""Owners that are kept for a while, and namespaces. Any author of pods may have thousands."""
_NEVER = float("-inf")
Owner = tuple[str, str]


class Waits:
    """Since when kube-scheduler finds no node for pods, and which owners have to wait for another plan.

    Args:
        pods: by UID, as the watch shows them.
    """

    def __init__(self, pods: Mapping[str, PodFacts]) -> None:
        self._pods = pods
        self._since: dict[str, float] = {}
        self._resting: dict[Owner, float] = {}
        self._had_turn_at: dict[str, float] = {}
        """Namespace to when a plan for a pod of it was looked for last."""

    def seen(self, pod: PodFacts, now: float) -> None:
        """Take a pod as it is now."""
        if pod.unscheduled and not why_not_served(pod):
            self._since.setdefault(pod.uid, now)
        else:
            self._since.pop(pod.uid, None)

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        self._since.pop(uid, None)

    def since(self, uid: str, now: float) -> float:
        """For how many seconds a pod waits."""
        return now - self._since.get(uid, now)

    def rest(self, pod: PodFacts, until: float, now: float) -> None:
        """Pass over pods of this owner for a while. A tenant that makes pods which wait must not have all moved."""
        if len(self._resting) >= MOST_RESTING:
            self._resting = {owner: end for owner, end in self._resting.items() if end > now}
        if len(self._resting) >= MOST_RESTING:
            self._resting.clear()
        self._resting[owner_of(pod)] = until
        if len(self._had_turn_at) >= MOST_RESTING:
            self._had_turn_at.clear()
        self._had_turn_at[pod.name.namespace] = now

    def first(self, after_s: float, now: float) -> list[PodFacts]:
        """The pods that have waited for so long, in the order of their turns.

        The highest priority comes first, then the namespace whose turn was longest ago, then the owner of which that is
        so, then the oldest pod. A tenant may have any number of pods for which there is never a plan.
        """
        return sorted(self._waiting(after_s, now), key=self._order)

    def _waiting(self, after_s: float, now: float) -> Iterator[PodFacts]:
        for uid, since in self._since.items():
            pod = self._pods.get(uid)
            if pod is None or now - since < after_s:
                continue
            if self._resting.get(owner_of(pod), now) <= now:
                yield pod

    def _order(self, pod: PodFacts) -> tuple[int, float, float, str]:
        of_namespace = self._had_turn_at.get(pod.name.namespace, _NEVER)
        of_owner = self._resting.get(owner_of(pod), _NEVER)
        return -pod.priority, of_namespace, of_owner, pod.created


def owner_of(pod: PodFacts) -> Owner:
    """Whose pod it is. A tenant may name the controller of another tenant's pods, so the namespace counts, too."""
    return pod.name.namespace, pod.owner
