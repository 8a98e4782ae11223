"""Pods that another scheduler is to place. They are only shown, because that scheduler may not exist."""

from collections.abc import Collection

from gpuscheduler.core.explain.scheduler_name import STOCK_SCHEDULER, untried
from gpuscheduler.core.pod_facts import PodFacts


class OtherSchedulers:
    """Pods that ask for GPUs, have no node, and name another scheduler.

    Args:
        schedulers: `spec.schedulerName` of the pods that are placed here.

    Attributes:
        pods: by UID.
    """

    def __init__(self, schedulers: Collection[str]) -> None:
        self._schedulers = schedulers
        self.pods: dict[str, PodFacts] = {}

    def wait(self, pod: PodFacts) -> None:
        """Take such a pod as it is now."""
        self.pods[pod.uid] = pod

    def forget(self, uid: str) -> None:
        """Take that a pod has a node, or is gone."""
        self.pods.pop(uid, None)

    def why(self, pod: PodFacts) -> str:
        """Why a pod waits, in the words of its scheduler; that it has not tried the pod if it has said nothing.

        Of a pod that is placed here, it is empty before kube-scheduler has said anything.
        """
        if pod.unscheduled or pod.uid not in self.pods:
            return pod.unscheduled
        return untried(pod.scheduler or STOCK_SCHEDULER, self._schedulers)
