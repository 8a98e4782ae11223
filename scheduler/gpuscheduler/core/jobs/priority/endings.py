"""Pods on nodes that are being deleted: what they have becomes free without an eviction.

Pods that are evicted for a job end one after another, and each may take as long as its grace period. As soon as the
first has ended, kube-scheduler tries a pod of the job again, and asks which pods to evict because the others have no
room yet. If those that are about to end did not count as gone by then, more pods would be evicted than the job needs.
"""

from collections import Counter

from gpuscheduler.core.pod_facts import PodFacts

ENDING_S = 600.0
"""How long a pod that is being deleted is expected to end. After that it seems to hang, as with a GPU that hangs."""


class Endings:
    """The pods that are being deleted, as the watch shows them. Times are monotonic seconds.

    Attributes:
        version: changes with the pods.
    """

    def __init__(self) -> None:
        self.version = 0
        self._soon: dict[str, tuple[str, float]] = {}
        """UID of each pod that is expected to end to its node, and since when it is being deleted, in this order."""
        self._hanging: set[str] = set()

    def seen(self, pod: PodFacts, now: float) -> None:
        """Take a pod as it is now."""
        is_known = pod.uid in self._soon or pod.uid in self._hanging
        if pod.node and pod.deleting and not is_known:
            self._soon[pod.uid] = pod.node, now
            self.version += 1

    def forget(self, uid: str) -> None:
        """Take that a pod is gone."""
        if self._soon.pop(uid, None) is not None:
            self.version += 1
        self._hanging.discard(uid)

    def tick(self, now: float) -> None:
        """Expect no longer that pods end which should have ended by now."""
        # Thousands of pods may be deleted together, and only the first ones are due.
        while self._soon:
            uid, (_, since) = next(iter(self._soon.items()))
            if now < since + ENDING_S:
                return
            del self._soon[uid]
            self._hanging.add(uid)
            self.version += 1

    @property
    def any_soon(self) -> bool:
        """Whether a pod is expected to end without an eviction."""
        return bool(self._soon)

    def ends_soon(self, uid: str) -> bool:
        """Whether a pod is expected to end without an eviction."""
        return uid in self._soon

    def hangs(self, uid: str) -> bool:
        """Whether a pod is being deleted, and not expected to end."""
        return uid in self._hanging

    def by_node(self) -> Counter[str]:
        """Node name to how many of its pods are expected to end."""
        return Counter(node for node, _ in self._soon.values())
