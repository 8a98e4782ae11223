"""Why a job whose pods are all there waits."""

from collections.abc import Collection

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.jobs.job import RETRY_LIMIT_S, Job
from gpuscheduler.core.jobs.plan import PLAN_TRIES
from gpuscheduler.core.reasons import main_reason, short_in_all


def why_waiting(job: Job, names: Collection[str], usage: ClusterUsage) -> str:
    """Why a complete job has no place for a pod. `names` are of the nodes that kube-scheduler asks about."""
    if job.absent:
        return f"job {job.name}: {len(job.absent)} of its pods did not come in time, and were not tried since"
    if job.plan:
        return f"job {job.name} is planned without this pod, which comes next"
    # Each pod of a job asks, and to work it out takes a look at all nodes.
    made_of = usage.version, job.members.version, job.fitting, job.gave_up, job.ask_at, len(names)
    if job.reason[0] != made_of:
        job.reason = made_of, _why_no_plan(job, names, usage)
    return job.reason[1]


def _why_no_plan(job: Job, names: Collection[str], usage: ClusterUsage) -> str:
    pending = job.members.to_place()
    if job.gave_up:
        requests = len({pod.request for pod in pending})
        why = f"{requests} different requests, for which no plan was found in {PLAN_TRIES} tries"
        return f"job {job.name}: its {len(pending)} pods have {why}"
    if job.fitting >= len(pending):
        return f"job {job.name}: its last plan failed, and it is planned again within {RETRY_LIMIT_S:.0f} s"
    pods = [*pending, *job.members.bound()]
    short = short_in_all([pod.request for pod in pods], *usage.in_all())
    if short:
        resource, wanted, there = short
        return f"job {job.name} asks for {wanted} of {resource}, and the cluster has {there}"
    where = " on the nodes that kube-scheduler names" if job.ask_at < float("inf") else ""
    fitting = f"at most {job.fitting} of them do now{where}"
    largest = max(pending, key=lambda pod: (pod.request.gpus, pod.request.need))
    reason = main_reason(largest.request, names, usage.nodes)
    lead = f"job {job.name}: its {len(pending)} pods do not fit together"
    return f"{lead}, {fitting} ({largest.name.name}: {reason})"
