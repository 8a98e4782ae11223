"""How much work the plans of each namespace may take in calls and events, which others wait for.

A plan over thousands of nodes takes a tenth of a second of the only thread. A tenant may write any number of jobs that
can never fit, and change each of them again and again, so that each call about them makes a plan. So the work of a
namespace counts, and is forgiven at a steady rate. A namespace that has done too much has its jobs planned by `tick`
only, which leaves most of the time to calls, and where namespaces take turns.
"""

from dataclasses import dataclass

from gpuscheduler.core.jobs.places.plan import PLAN_TRIES

TRIES_A_SECOND = 10_000
"""Work that is forgiven: one try takes 6 to 9 us, so a namespace that goes on has less than a tenth of the thread."""
MOST_AHEAD = 5 * PLAN_TRIES
"""Work that a namespace may have done beyond that. Most tenants create few jobs at one time, and never come here."""
MOST_NAMESPACES = 1024
"""Namespaces that are kept."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The work of a namespace.

    Attributes:
        tries: that were not forgiven yet.
        at: when that was so.
    """

    tries: float
    at: float

    def left_at(self, now: float) -> float:
        """Tries that are not forgiven then."""
        return max(self.tries - (now - self.at) * TRIES_A_SECOND, 0.0)


class WorkShares:
    """The work of all namespaces. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._done: dict[str, _Done] = {}
        self._tries = 0

    def add(self, tries: int) -> None:
        """Take that work was done, which the next `count` counts."""
        self._tries += tries

    def count(self, namespace: str, now: float) -> None:
        """Count the work since the last call of this for a namespace."""
        tries = self._tries
        if not tries:
            return
        self._tries = 0
        # It goes to the end, so that the namespace that did its last work first is forgotten first.
        former = self._done.pop(namespace, None)
        before = former.left_at(now) if former else 0.0
        self._done[namespace] = _Done(before + tries, now)
        if len(self._done) > MOST_NAMESPACES:
            first = next(iter(self._done))
            del self._done[first]

    def may_go_ahead(self, namespace: str, now: float) -> bool:
        """Whether calls and events may make plans for a namespace."""
        done = self._done.get(namespace)
        return done is None or done.left_at(now) < MOST_AHEAD

    def done(self, namespace: str, now: float) -> float:
        """Tries of a namespace that are not forgiven yet."""
        done = self._done.get(namespace)
        return done.left_at(now) if done else 0.0
