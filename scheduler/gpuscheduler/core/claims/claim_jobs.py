"""Jobs whose pods claim GPUs. They do not start whole, and people have to know.

kube-scheduler allots the devices of one pod at a time and binds it, and asks no extender. Only pods of its own pod
groups start together.
"""

from collections import OrderedDict

from gpuscheduler.core.calls import Report
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.gangs.gang import Gang, GangKey, GangSource
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.waiting.scheduler_names import SchedulerNames

MOST_TOLD = 1000
"""Jobs of which it is known that people were told."""


class ClaimJobs:
    """Tells of each job once.

    Args:
        claims: knows which claims are for GPUs.
        schedulers: whose pods count.
    """

    def __init__(self, claims: ClaimNodes, schedulers: SchedulerNames) -> None:
        self._claims = claims
        self._schedulers = schedulers
        self._told: OrderedDict[GangKey, None] = OrderedDict()

    def report(self, pod: PodFacts) -> Report | None:
        """What to say about a pod that was seen; None if nothing."""
        job = pod.job
        has_ended = pod.ended or pod.deleting
        if job is None or has_ended or not self._starts_in_part(pod, job):
            return None
        key = job.key_in(pod.name.namespace)
        if key in self._told:
            return None
        self._told[key] = None
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
        text = (
            f"Pods of {key.title} have ResourceClaims for GPUs, which kube-scheduler serves one pod at a time. "
            "So the job may start in part, and hold GPUs that way. To start it whole, use a PodGroup of "
            "scheduling.k8s.io, or GPUs in the limits of its pods."
        )
        return Report(pod.name, pod.uid, "JobNotWhole", text)

    def _starts_in_part(self, pod: PodFacts, job: Gang) -> bool:
        is_of_another = not self._schedulers.include(pod.scheduler)
        is_alone = job.pods == 1
        # kube-scheduler allots the devices for all pods of such a group before it binds the first.
        is_native = job.source is GangSource.NATIVE_POD_GROUP
        if is_of_another or is_alone or is_native:
            return False
        return self._claims.has_claim(pod.claims)
