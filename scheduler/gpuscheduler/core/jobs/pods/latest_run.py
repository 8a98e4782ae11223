"""Which start of its object a gang is in: pods of a former start may live on beside the first ones of the next."""

from gpuscheduler.core.pod_facts import PodFacts


class LatestRun:
    """The latest start, as far as the pods that were seen tell it.

    A JobSet that restarts makes the pods of the next attempt while those of the former one end. These are no members of
    the gang that starts: beside them, a single pod of the next attempt would look like one that was replaced.
    """

    def __init__(self) -> None:
        self._run = ""
        self._since = ""

    def is_former(self, pod: PodFacts) -> bool:
        """Whether the pod is of an earlier start."""
        run = run_of(pod)
        return bool(run) and run != self._run

    def begins_with(self, pod: PodFacts) -> bool:
        """Take a pod; whether a later start begins with it, so that the pods before it are of a former one."""
        run = run_of(pod)
        if not run or run == self._run or not self._is_later(run, pod.created):
            return False
        is_first = not self._run
        self._run = run
        self._since = pod.created
        return not is_first

    def _is_later(self, run: str, created: str) -> bool:
        former_object, _, former_attempt = self._run.rpartition("/")
        that_object, _, attempt = run.rpartition("/")
        is_same_object = former_object == that_object
        are_numbers = former_attempt.isdecimal() and attempt.isdecimal()
        if is_same_object and are_numbers:
            # Longer ones are higher: controllers write no zeros before them.
            return (len(attempt), attempt) > (len(former_attempt), former_attempt)
        return created >= self._since


def run_of(pod: PodFacts) -> str:
    """Which start of its object the pod is of, as `object/attempt`; empty if no controller writes that."""
    return pod.gang_ref.run if pod.gang_ref else ""
