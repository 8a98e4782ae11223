"""The nominations by which refused pods are woken. Each ends if kube-scheduler does not place its pod in time.

kube-scheduler counts a nominated pod on its node, and so keeps others from the room. It takes the nomination back when
it finds no node for the pod, but not from a pod that may evict no others (`preemptionPolicy: Never`).
"""

NOMINATED_S = 10.0
"""How long a pod stays nominated. kube-scheduler tries it first within its back-off, of 10 s by default at most."""


class TrialNominations:
    """UID to the node of each nomination, and when that ends; the first one that ends comes first."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[str, float]] = {}

    def begin(self, uid: str, node: str, now: float) -> None:
        """Take that a pod is nominated. If it is for this node already, that ends when it would have ended."""
        former_node, _ = self._all.get(uid, ("", 0.0))
        if former_node != node:
            self._all.pop(uid, None)
            self._all[uid] = node, now + NOMINATED_S

    def forget(self, uid: str) -> None:
        """Take that a nomination is another's by now."""
        self._all.pop(uid, None)

    def take_over(self, now: float) -> dict[str, str]:
        """UID to node of those that are over; they are forgotten."""
        over = {uid: node for uid, (node, until) in self._all.items() if until <= now}
        for uid in over:
            del self._all[uid]
        return over

    def next_end(self) -> float | None:
        """When the next one ends, in monotonic seconds; None without any."""
        return next((until for _, until in self._all.values()), None)
