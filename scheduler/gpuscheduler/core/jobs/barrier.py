"""The bind calls of a job's pods: each waits until all of them are in bind, and the plan is written."""

from collections.abc import Mapping

from gpuscheduler.core.calls import BindRefused, BindWait, CommitJob
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.jobs.commit import commit_text
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.jobs.planning.planning import Planning
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.pod_facts import PodFacts


def entered(
    job: Job,
    pod: PodFacts,
    node: str,
    planning: Planning,
    now: float,
) -> Choice | BindWait | BindRefused:
    """The GPUs of a member whose job is complete in bind and written; otherwise it waits. The plan may break."""
    place = job.place_of(pod.uid)
    if job.plan is None or place is None:
        return BindRefused(f"{job.title} has no plan for this pod any more; kube-scheduler tries it again")
    planned_node, choice = place
    if planned_node != node:
        return BindRefused(f"{job.title} is planned with this pod on node {planned_node}")
    if job.plan.until <= now:
        planning.plans.note_absent(job)
        planning.plans.note_lapse(job, now)
        planning.plans.drop(job, {pod.uid}, now)
        return BindRefused(f"not all pods of {job.title} came within {BARRIER_S:.0f} s")
    was_in_bind = pod.uid in job.plan.in_bind
    plan = job.plan.entered(pod.uid)
    job.plan = plan
    if not planning.plans.still_fit(job, _to_check(plan, pod.uid)):
        planning.plans.drop(job, {pod.uid}, now)
        return BindRefused(f"GPUs that {job.title} was planned on are not free any more")
    if plan.is_written:
        return choice
    if plan.is_gathered:
        # Written before any pod is bound: a scheduler that starts again must not leave part of the job waiting.
        job.plan = plan.writing()
        text = commit_text(plan.places)
        planning.actions.append(CommitJob(pod.name, pod.uid, pod.version, job.key, text))
    elif not was_in_bind:
        planning.nominations.wake_deferred(job)
    return BindWait(job.key, plan.until)


def _to_check(plan: StartPlan, uid: str) -> Mapping[str, tuple[str, Choice]]:
    """The places that must still be free when a pod comes into bind: all before the plan is written, later its own."""
    if plan.is_gathered:
        return plan.places
    if plan.is_written:
        return {uid: plan.places[uid]}
    return {}
