"""Why a job whose pods are all there waits."""

from collections.abc import Collection

from gpuagent.domain.sharing.mode import GPU_MEM
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.jobs.job import RETRY_LIMIT_S, Job
from gpuscheduler.core.jobs.lapses import PAUSE_LIMIT_S
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import common_unit, main_reason, memory_words, short_in_all

FEW_REQUIREMENTS = 16
"""Requirements about nodes and other pods that a pod may have without being named for it. Kubernetes adds some."""


def why_waiting(job: Job, names: Collection[str], usage: ClusterUsage) -> str:
    """Why a complete job has no place for a pod, after the job's title.

    `names` are of the nodes that kube-scheduler asks about.
    """
    if job.plan:
        return "it is planned without this pod, which comes next"
    # Each pod of a job asks, and to work it out takes a look at all nodes.
    made_of = (
        usage.version,
        job.members.version,
        len(job.turns.unasked),
        job.searched,
        job.is_paused,
        job.is_postponed,
        job.ask_at,
        len(names),
    )
    made_of_before, reason = job.reason
    if made_of != made_of_before:
        reason = _why_no_plan(job, names, usage)
        job.reason = made_of, reason
    return reason


def _why_no_plan(job: Job, names: Collection[str], usage: ClusterUsage) -> str:
    pending = job.members.to_place()
    count = len(pending)
    too_much = _more_than_the_cluster(job, pending, usage)
    if too_much:
        return too_much
    # Where kube-scheduler finds too few GPUs on any node, the text below says more.
    to_come = [pod for pod in job.to_come() if not pod.is_short_in_sum]
    if to_come and not job.to_plan():
        first = to_come[0]
        why = f"kube-scheduler has found no node yet for {len(to_come)} of its pods, such as {first.name.name}"
        if first.is_kept_from_others:
            why = f"{why}, which has to be near pods that are not there or wait for it; change its affinity to pods"
        return why
    why_later = _why_planned_later(job)
    if why_later:
        return why_later
    if job.searched.gave_up:
        what = f"{len({(pod.request, pod.requests) for pod in pending})} different requests"
        size = sum(pod.rules.size for pod in pending)
        if size > count * FEW_REQUIREMENTS:
            what = f"{what} and {size} requirements about nodes and other pods"
        return f"its {count} pods have {what}, for which no plan was found in {PLAN_TRIES} tries"
    # Other nodes may have room: the job waits until kube-scheduler names its nodes again.
    waits_for_names = job.ask_at < float("inf")
    where = " on the nodes that kube-scheduler names" if waits_for_names else ""
    fitting = f"at most {job.searched.fitting} of them do now{where}"
    if job.searched.shortage:
        return f"its {count} pods do not fit together, {fitting}; {job.searched.shortage}"
    # The reason of the largest pod: where that one fits, the others usually do.
    largest = max(pending, key=_size)
    reason = main_reason(largest.request, names, usage.nodes)
    example = f"{largest.name.name}: {reason}"
    return f"its {count} pods do not fit together, {fitting} ({example})"


def _why_planned_later(job: Job) -> str:
    """Why the job is planned after a delay, whatever room there is; empty if it is not."""
    if job.is_paused:
        return f"pods of its namespace did not come to their GPUs, and it is planned within {PAUSE_LIMIT_S:.0f} s"
    if job.to_plan() and job.searched.fitting >= job.needed and not job.searched.gave_up:
        return f"its last plan failed, and it is planned again within {RETRY_LIMIT_S:.0f} s"
    if job.to_plan() and job.is_postponed:
        return "its turn to be planned comes next, after jobs of other namespaces"
    return ""


def _more_than_the_cluster(
    job: Job,
    pending: Collection[PodFacts],
    usage: ClusterUsage,
) -> str:
    """That the job asks for more than all nodes have, in use or not; empty if it does not."""
    # Of those that wait, the rest may follow when there is room.
    least = sorted(pending, key=_size)[: job.needed]
    pods = [*least, *job.members.bound()]
    requests = [pod.request for pod in pods]
    units, whole = usage.in_all()
    short = short_in_all(requests, units, whole)
    if not short:
        return ""
    resource, wanted, there = short
    if resource != GPU_MEM:
        return f"it asks for {wanted} of {resource}, and the cluster has {there}"
    unit_mib = common_unit(usage.nodes.values())
    in_all = memory_words(there, unit_mib)
    return f"it asks for {memory_words(wanted, unit_mib)}, and the GPUs of the cluster have {in_all}"


def _size(pod: PodFacts) -> tuple[int, Amounts]:
    return pod.request.gpus, pod.request.need
