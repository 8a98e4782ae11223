"""When something is due for which job, the earliest first: there may be thousands of jobs."""

from heapq import heappop, heappush

from gpuscheduler.core.jobs.job import JobKey


class Agenda:
    """One time for each job that has something due."""

    def __init__(self) -> None:
        self._times: dict[JobKey, float] = {}
        self._heap: list[tuple[float, JobKey]] = []
        """Entries whose time has changed since stay here until they come up, and count no longer."""

    def put(self, key: JobKey, at: float) -> None:
        """Something is due for the job then, and nothing earlier; infinite for nothing at all."""
        if at == float("inf"):
            self._times.pop(key, None)
        elif self._times.get(key) != at:
            # The former entry stays: to take it out of the heap would mean to look through all of them.
            self._times[key] = at
            heappush(self._heap, (at, key))

    def pop_due(self, now: float) -> JobKey | None:
        """The next job for which something is due by now. It is taken off."""
        at = self.next_at()
        if at is None or at > now:
            return None
        _, key = heappop(self._heap)
        del self._times[key]
        return key

    def next_at(self) -> float | None:
        """When the next is due; None if nothing is."""
        while self._heap:
            at, key = self._heap[0]
            if self._times.get(key) == at:
                return at
            heappop(self._heap)
        return None
