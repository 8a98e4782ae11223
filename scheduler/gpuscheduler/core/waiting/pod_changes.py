"""Whether a pod that waits has become another one for the scheduler: authors may edit labels while it waits."""

from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.pod_facts import PodFacts


def has_changed(pod: PodFacts, seen: PodFacts | None) -> bool:
    """Whether kube-scheduler and the watch show a pod differently, or it no longer waits.

    One of the two may not have seen a change yet.

    Args:
        pod: as kube-scheduler's call has it.
        seen: as the watch shows it; None if it has not yet.
    """
    if pod.deleting:
        return True
    if seen is None:
        return False
    asks_for_others = is_elsewhere(seen.job, pod.job) or seen.request != pod.request
    return bool(seen.node) or seen.deleting or asks_for_others


def is_elsewhere(former: Gang | None, gang: Gang | None) -> bool:
    """Whether a pod has gone to another gang, or says another number of pods."""
    if former is None or gang is None:
        return former is not gang
    may_start_alone = former.pods == 1 or gang.pods == 1
    if may_start_alone or not gang.source.is_numbered_by_object:
        return former != gang
    # The object's number is one number for all of its pods: those of a plan that is written stay in it.
    return (former.source, former.name) != (gang.source, gang.name)
