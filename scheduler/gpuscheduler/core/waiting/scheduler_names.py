"""Which pods are placed here, by the scheduler that they name. Pods of others count once they are on a node.

Every part that tells our pods from those of other schedulers asks here.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gpuscheduler.core.gangs.gang import GangSource
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER


@dataclass(frozen=True, slots=True)
class SchedulerNames:
    """The schedulers whose pods are placed here.

    Attributes:
        names: `spec.schedulerName` of these pods; empty for any.
    """

    names: Collection[str]

    def include(self, scheduler: str) -> bool:
        """Whether pods that name this scheduler are placed here. No scheduler places placeholders."""
        is_left_out = bool(self.names) and scheduler not in self.names
        return not is_left_out and scheduler != PLACEHOLDER_SCHEDULER

    def leave_out(self, pod: PodFacts) -> bool:
        """Whether another scheduler places the pod, which has not done so yet."""
        return not pod.node and not self.include(pod.scheduler)

    def is_anothers(self, pod: PodFacts) -> bool:
        """Whether the pod waits for another scheduler. Placeholders wait for none."""
        return self.leave_out(pod) and pod.scheduler != PLACEHOLDER_SCHEDULER

    def count_without_gpus(self, member: PodFacts) -> bool:
        """Whether a member of a job that asks for no GPUs counts among the pods that start together."""
        if member.job is None:
            return False
        # Its author may not know of this scheduler, so a group of another one is left alone.
        waits_with_labels = member.gang_ref is not None and member.gang_ref.fallback is not None
        is_by_labels = member.job.source is GangSource.LABELS or waits_with_labels
        return is_by_labels or self.include(member.scheduler)
