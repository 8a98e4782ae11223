"""The pods of a job that have ended on a node, for as long as the API server has them.

Pods that come again need not wait for those that have done their part. If the last worker of a job fails while the
others have succeeded, its successor must not wait for them.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpuscheduler.core.jobs.pods.latest_run import run_of
from gpuscheduler.core.jobs.pods.start import MOST_PODS, Start
from gpuscheduler.core.pod_facts import PodEnd, PodFacts


class EndedPods:
    """The pods of one job, at most `MOST_PODS`: if pods fail again and again, they leave any number of them behind."""

    def __init__(self) -> None:
        self._pods: dict[str, PodFacts] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __iter__(self) -> Iterator[PodFacts]:
        return iter(self._pods.values())

    def put(self, pod: PodFacts, former: PodFacts | None) -> None:
        """Take that a pod has ended, or changed since. `former` is the pod as it was while it lived, if that is known.

        A pod that is evicted may save its state and exit with 0, so that kubelet says it has succeeded. However, its
        controller makes another one, unless that is a Job. So it has not done its part.
        """
        known = self._pods.get(pod.uid)
        had_to_end = former is not None and former.deleting
        comes_again = had_to_end and not pod.is_made_by_job
        if known:
            # Pods that have ended are deleted later.
            pod = replace(pod, end=known.end)
        elif comes_again and pod.end is PodEnd.SUCCEEDED:
            pod = replace(pod, end=PodEnd.FAILED)
        self._pods[pod.uid] = pod
        if len(self._pods) > MOST_PODS:
            first = next(iter(self._pods))
            del self._pods[first]

    def forget(self, uid: str) -> PodFacts | None:
        """Forget a pod, which is returned if there is one."""
        return self._pods.pop(uid, None)

    def of_living(
        self,
        living: Collection[PodFacts],
        start: Start,
        most: int,
        *,
        failed: bool,
    ) -> int:
        """How many of them are of the job that lives, all of whose pods come in the place of others.

        Without a record of the start, such as after a restart, they need to have a controller in common. If a whole job
        has succeeded, the pods that live are the next one.

        Args:
            living: the pods of the job that lives.
            start: what is known of its start.
            most: how many pods it has.
            failed: pods that failed count as well, and not only those that succeeded.
        """
        done = [pod for pod in self if failed or pod.end is PodEnd.SUCCEEDED]
        if not done:
            return 0
        runs = {run_of(pod) for pod in living}
        if len(runs) == 1 and "" not in runs:
            # All Jobs of a JobSet and all of their completions are of one run, so nothing has to be concluded.
            return sum(run_of(pod) in runs for pod in done)
        before = len(_of_start(done, living, start))
        is_next_job = before + len(living) > most
        if is_next_job and not failed:
            return 0
        return before


def _of_start(done: Collection[PodFacts], living: Collection[PodFacts], start: Start) -> list[PodFacts]:
    """The pods among those that have ended that the job which lives now has started with."""
    recorded = [pod for pod in done if pod.uid in start.uids]
    if recorded and start.has_all(living):
        return recorded
    owners = {pod.owner for pod in living}
    has_one_controller = len(owners) == 1
    if not has_one_controller:
        return []
    return [pod for pod in done if pod.owner in owners]
