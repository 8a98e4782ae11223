"""When the limits of a pod with a new container are looked at once more."""

import heapq
import threading
from collections.abc import Callable

LOOK_AGAIN_S = (0.2, 1.0)
"""NVIDIA's hook may set a limit from a container's environment a little after the container's cgroup was made."""


class LooksAgain:
    """The pods to look at, by time. For several threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: list[tuple[float, str]] = []

    def add(self, uid: str) -> None:
        """Look at this pod twice in the next second."""
        now = self._clock()
        with self._lock:
            for pause_s in LOOK_AGAIN_S:
                heapq.heappush(self._looks, (now + pause_s, uid))

    def next_at(self) -> float:
        """When the next pod is due; infinity if none is."""
        with self._lock:
            if not self._looks:
                return float("inf")
            at, _ = self._looks[0]
            return at

    def due(self) -> set[str]:
        """UIDs of the pods that are due now, which are not due again."""
        due: set[str] = set()
        with self._lock:
            while self._looks and self._looks[0][0] <= self._clock():
                _, uid = heapq.heappop(self._looks)
                due.add(uid)
        return due
