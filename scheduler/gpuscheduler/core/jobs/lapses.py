"""Namespaces whose jobs are planned less often, because plans of theirs lapsed.

A plan holds GPUs for seconds until all pods of its job are in bind. A tenant may write jobs whose pods never come
there, or delete them meanwhile. Each job is delayed by its own failures, but a new job would be planned at once. So
the failures of a namespace count together. The pauses between its plans become so long that it holds GPUs for a small
part of the time.
"""

from dataclasses import dataclass

PAUSE_FIRST_S = 1.0
"""Pause of a namespace after a plan of it lapsed. Each further one doubles it."""
PAUSE_LIMIT_S = 60.0
"""The longest pause. A plan holds GPUs for 15 s, so lapsed plans of a namespace do for a fifth of the time at most."""
FORGET_S = 600.0
"""Without a lapsed plan for so long, the next one is a first one again."""
MOST_NAMESPACES = 1024
"""Namespaces that are kept."""


@dataclass(frozen=True, slots=True)
class _Lapsed:
    """What is known of a namespace.

    Attributes:
        at: when the last plan lapsed.
        pause_s: how long no further one is made.
    """

    at: float
    pause_s: float


class Lapses:
    """The namespaces whose plans lapsed."""

    def __init__(self) -> None:
        self._lapsed: dict[str, _Lapsed] = {}

    def count(self, namespace: str, made_at: float, now: float) -> None:
        """Count a plan that lapsed, and was made at that time."""
        # It goes to the end, so that the namespace whose plans lapsed least recently is forgotten first.
        former = self._lapsed.pop(namespace, None)
        pause_s = PAUSE_FIRST_S
        if former and now - former.at < FORGET_S:
            # Plans that were made at one time may lapse together, such as while kube-scheduler starts again.
            is_after_pause = made_at > former.at
            pause_s = min(former.pause_s * 2, PAUSE_LIMIT_S) if is_after_pause else former.pause_s
        self._lapsed[namespace] = _Lapsed(now, pause_s)
        if len(self._lapsed) > MOST_NAMESPACES:
            first = next(iter(self._lapsed))
            del self._lapsed[first]

    def until(self, namespace: str) -> float:
        """When jobs of a namespace may be planned again."""
        lapsed = self._lapsed.get(namespace)
        return lapsed.at + lapsed.pause_s if lapsed else float("-inf")
