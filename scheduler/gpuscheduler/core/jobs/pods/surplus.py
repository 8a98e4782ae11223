"""Pods beyond the number of a job, which another job of the same name seems to have."""

from collections.abc import Collection

from gpuscheduler.core.pod_facts import PodFacts


def surplus_pods(living: Collection[PodFacts], wanted: int, started: Collection[str]) -> frozenset[str]:
    """UIDs of the pods that are beyond the job's number, and whose controller has no pod within it.

    Bound and older pods come first. Several controllers may create the pods of one job, and one controller may add pods
    to a job that runs. Of pods without a controller it is not known.

    Args:
        living: more pods than are wanted.
        wanted: the number of the job.
        started: UIDs of the pods with which the job has started.
    """
    # All of them are of one source. The order of their ages takes long to find where there are many.
    any_gang = next(iter(living)).job
    if any_gang and any_gang.source.is_numbered_by_object:
        # It may have a smaller number than it has pods.
        return frozenset()
    by_age = _by_age(living, started)
    own = by_age[:wanted]
    gang = own[0].job
    if gang and (gang.minimum or gang.has_no_namesake):
        # The same is true of these.
        return frozenset()
    own_owners = {pod.owner for pod in own}
    surplus: set[str] = set()
    for pod in by_age[wanted:]:
        has_controller = pod.owner != pod.uid
        if has_controller and pod.owner not in own_owners:
            surplus.add(pod.uid)
    return frozenset(surplus)


def _by_age(pods: Collection[PodFacts], started: Collection[str]) -> list[PodFacts]:
    """Bound pods first, then those that have started, then by the age of the oldest pod of their controller."""
    since: dict[str, str] = {}
    for pod in pods:
        earliest = since.get(pod.owner, pod.created)
        since[pod.owner] = min(pod.created, earliest)

    def rank(pod: PodFacts) -> tuple[bool, bool, str, str, str]:
        is_waiting = not pod.node
        is_late = pod.uid not in started
        owner_since = since[pod.owner]
        return is_waiting, is_late, owner_since, pod.owner, pod.created

    return sorted(pods, key=rank)
