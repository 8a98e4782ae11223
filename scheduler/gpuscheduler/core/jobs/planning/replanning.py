"""Whether the jobs that wait are planned again at the next tick."""

from gpuscheduler.core.cluster_usage import ClusterUsage


class Replanning:
    """A plan that failed fails again until something changes.

    So the jobs that wait are planned again when units may have become free, or when an event asks for it, for example
    because a job is complete or has changed.

    Args:
        usage: nodes and their users.
    """

    def __init__(self, usage: ClusterUsage) -> None:
        self._usage = usage
        self._frees_before = 0
        self._is_requested = False

    @property
    def is_due(self) -> bool:
        """Whether waiting jobs are to be planned at the next tick."""
        return self._is_requested or self._frees_before != self._usage.frees

    def request(self) -> None:
        """Have waiting jobs planned at the next tick, although no units have become free."""
        self._is_requested = True

    def begins(self) -> None:
        """All jobs that wait are planned from now on. Only what changes after this leads to another time."""
        self._is_requested = False
        self._frees_before = self._usage.frees
