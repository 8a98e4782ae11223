"""Pods of Kubernetes' own pod groups (`spec.schedulingGroup`), which kube-scheduler tries again without a pause.

kube-scheduler 1.36 tries all pods of a group in one cycle. If the group cannot start, its pods come back after a
back-off, whatever they wait for. However, kube-scheduler takes pods out of that back-off when it has nothing else to
do. So a group that waits costs a thousand calls a second, and its trial placements keep others from theirs. The one
back-off that it respects is that after an error, and an error also ends the cycle. So these pods get an error.

A pod that is tried again at once gets an error as well if it was placed: then kube-scheduler itself refused the rest of
its group. With the policy `basic`, pods of a group start alone. There, the first refusal is no error, so that the cycle
goes on with pods that fit.
"""

from dataclasses import replace

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.core.pod_facts import PodFacts

AT_ONCE_S = 0.5
"""A pod that is asked about again within this time did not go through a back-off, whose shortest is 1 s."""
AGAIN = "the pod had a node a moment ago, and its pod group did not start; kube-scheduler tries it again"


class GroupCycles:
    """When kube-scheduler last asked about each pod of a group that is not bound."""

    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}

    def paced(
        self,
        pod: PodFacts,
        answer: FilterAnswer,
        now: float,
        *,
        starts_whole: bool,
    ) -> FilterAnswer:
        """The answer for a pod of a group, as an error where kube-scheduler would not wait otherwise.

        `starts_whole` says that no pod of its group starts while this one waits.
        """
        before = self._asked_at.get(pod.uid)
        self._asked_at[pod.uid] = now
        is_asked_at_once = before is not None and now - before < AT_ONCE_S
        if answer.nodes:
            return FilterAnswer(error=AGAIN) if is_asked_at_once else answer
        if answer.error or not (starts_whole or is_asked_at_once):
            return answer
        return replace(answer, failed={}, unresolvable={}, error=_reason(answer))

    def forget(self, uid: str) -> None:
        """Take that the pod is bound or gone."""
        self._asked_at.pop(uid, None)


def _reason(answer: FilterAnswer) -> str:
    """One of the reasons. Those of a pod whose group waits are all the same."""
    reasons = [*answer.unresolvable.values(), *answer.failed.values()]
    return reasons[0] if reasons else "no node has room for the pod"
