"""Pods that have to be near others of their job, and that kube-scheduler accepts only when those are on nodes.

For example, the workers of a job have to be near its leader, whose labels they do not have. kube-scheduler refuses each
worker before it asks about the worker. It tries the worker again when the leader is bound. So such pods are planned
unasked, and the others of the plan are bound before them.
"""

from collections.abc import Collection, Iterable

from gpuscheduler.core.constraints.affinity import AffinityTerm
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.pod_facts import PodFacts

MOST_STEPS = 20_000
"""Comparisons of terms with pods: any author of pods may write many of both."""


def attached(refused: Iterable[PodFacts], asked: Iterable[PodFacts]) -> list[PodFacts]:
    """Those pods that kube-scheduler accepts one after another, once others are on nodes; in this order.

    Args:
        refused: the pods that it refuses because of their affinity.
        asked: pods that wait as well, and about which it has asked.
    """
    tries = Tries(MOST_STEPS)
    before = list(asked)
    remaining = list(refused)
    followers: list[PodFacts] = []
    while remaining:
        next_ones = [pod for pod in remaining if _follows(pod, before, remaining, tries)]
        if not next_ones or tries.gave_up:
            break
        before += next_ones
        followers += next_ones
        uids = {pod.uid for pod in next_ones}
        remaining = [pod for pod in remaining if pod.uid not in uids]
    return followers


def _follows(
    pod: PodFacts,
    before: Collection[PodFacts],
    remaining: Collection[PodFacts],
    tries: Tries,
) -> bool:
    """Whether kube-scheduler accepts the pod once those before it are on nodes.

    Each term that selects pods of the job selects one of these. Whether other pods meet the other terms, the plan says.
    """
    terms_met = 0
    for term in pod.rules.affinity:
        if _selects_some(term, before, tries):
            terms_met += 1
        elif _selects_some(term, remaining, tries):
            return False
    return terms_met > 0


def _selects_some(term: AffinityTerm, pods: Iterable[PodFacts], tries: Tries) -> bool:
    for pod in pods:
        if not tries.spend(term.size):
            return False
        if term.matches(pod.name.namespace, pod.labels):
            return True
    return False
