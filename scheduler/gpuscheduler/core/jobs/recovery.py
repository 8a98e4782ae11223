"""Begins where a former run of the scheduler, or a former leader, has ended.

What that one has planned is lost, unless it has written the plan on a pod. If pods of a written plan are bound, the
GPUs of the others are reserved again, so that the job does not start in part.
"""

from collections.abc import Iterable, Mapping

from gpuscheduler.core.jobs.broken_jobs import BrokenJobs
from gpuscheduler.core.jobs.commit import committed_places
from gpuscheduler.core.jobs.due_jobs import DueJobs
from gpuscheduler.core.jobs.job import Job, JobKey, key_of
from gpuscheduler.core.jobs.places.plan import Places
from gpuscheduler.core.jobs.planning.planning import Planning
from gpuscheduler.core.pod_facts import PodFacts


class Recovery:
    """Takes the jobs as they are when this scheduler begins, or begins to lead.

    Args:
        jobs: by name.
        planning: makes plans from then on.
        due_jobs: the times of jobs.
        broken_jobs: watches which pods jobs lose.
    """

    def __init__(
        self,
        jobs: Mapping[JobKey, Job],
        planning: Planning,
        due_jobs: DueJobs,
        broken_jobs: BrokenJobs,
    ) -> None:
        self._jobs = jobs
        self._planning = planning
        self._due_jobs = due_jobs
        self._broken_jobs = broken_jobs

    def begin(self, pods: Iterable[PodFacts], now: float) -> None:
        """Begin to plan, or lead. First reserve what written plans have for jobs that are bound in part.

        `pods` are all members, with those that have ended on a node.
        """
        is_first = not self._planning.ready
        self._planning.ready = True
        self._planning.replanning.request()
        # A list, because to settle a job may remove it.
        for job in list(self._jobs.values()):
            self._take_over(job, now)
        for key, members in _by_job(pods).items():
            texts = [pod.commit for pod in members.values() if pod.commit]
            if key in self._jobs and texts:
                self.reserve_written(self._jobs[key], members, texts, now)
        if is_first:
            for job in list(self._jobs.values()):
                self._broken_jobs.begin(job)
                self._due_jobs.settle(job, now)

    def _take_over(self, job: Job, now: float) -> None:
        """Have kube-scheduler come to the pods of a job again, and end what another leader has begun."""
        job.turns.call_again()
        # kube-scheduler has tried its pods before, and comes to them by itself only minutes later.
        job.call_at = now if job.turns.uncalled else float("inf")
        job.attempt = None
        if job.plan is None:
            self._planning.nominations.end(job)
        self._due_jobs.settle(job, now)

    def reserve_written(
        self,
        job: Job,
        members: Mapping[str, PodFacts],
        texts: Iterable[str],
        now: float,
    ) -> None:
        """Reserve what the written plans of a job have for its pods that are not bound yet."""
        self._planning.plans.forget_unwritten(job)
        plans = [committed_places(text) for text in texts]
        begun = [places for places in plans if _is_bound(places, members)]
        job.members.started_before(begun, members)
        self._planning.plans.recover(job, begun, now)
        self._due_jobs.settle(job, now)


def _by_job(pods: Iterable[PodFacts]) -> dict[JobKey, dict[str, PodFacts]]:
    """Job to its pods by UID."""
    jobs: dict[JobKey, dict[str, PodFacts]] = {}
    for pod in pods:
        members = jobs.setdefault(key_of(pod), {})
        members[pod.uid] = pod
    return jobs


def _is_bound(places: Places, members: Mapping[str, PodFacts]) -> bool:
    """Whether pods of a written plan are on nodes, or have ended there."""
    return any(uid in members and members[uid].node for uid in places)
