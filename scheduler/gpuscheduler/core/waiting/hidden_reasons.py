"""Why a pod waits about which kube-scheduler does not ask.

kube-scheduler compares what a pod asks for with the node's total first. Where the total is short, it says
``Insufficient aliyun.com/gpu-mem`` for as long as the pod waits: also of a pod that is larger than any GPU, and of one
whose job is not complete. An Event says what is missing then.

To leave these resources out of kube-scheduler's comparison (`ignoredByScheduler`) would show the reason, too. But
kube-scheduler then finds no pod to evict, and no GPU pod could preempt any more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuscheduler.core.calls import Report
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import main_reason

AGAIN_S = 600.0
"""How long a pod does not get the same Event again."""
KEPT_S = 2.0
"""How long a reason counts for all pods with an equal request that pass over equal nodes.

Thousands may wait, and it takes a look at all nodes.
"""
EXPLAINED_A_TICK = 8
"""Pods that waited at the start whose reason one tick works out."""


class HiddenReasons:
    """The Events of pods that wait.

    Args:
        nodes: by name, with their users.
        why_in_job: why a member of a job waits; empty if it does not wait, or is no member.
        fitting: names of the nodes where a pod may fit at a time.
        passed_over: names of the nodes that `fitting` leaves out for a pod at a time.

    Attributes:
        unexplained: UIDs of pods that waited at the start, and whose reason is not worked out yet.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeUsage],
        why_in_job: Callable[[PodFacts], str],
        fitting: Callable[[PodFacts, float], Iterator[str]],
        passed_over: Callable[[PodFacts, float], frozenset[str]],
    ) -> None:
        self._nodes = nodes
        self._why_in_job = why_in_job
        self._fitting = fitting
        self._passed_over = passed_over
        self.unexplained: list[str] = []
        self._sent: dict[str, tuple[str, float]] = {}
        self._reasons: dict[tuple[GpuRequest, frozenset[str]], tuple[str, float]] = {}

    def begin(self, pods: Iterable[PodFacts]) -> None:
        """Note which pods wait at the start."""
        self.unexplained = [pod.uid for pod in pods if pod.is_short_in_sum]

    def explain_some(self, pods: Mapping[str, PodFacts], now: float) -> list[Report]:
        """Events of some pods that waited at the start. Each may take a look at all nodes, and calls come between."""
        uids = self.unexplained[:EXPLAINED_A_TICK]
        self.unexplained = self.unexplained[EXPLAINED_A_TICK:]
        reports: list[Report] = []
        for uid in uids:
            pod = pods.get(uid)
            # It may be gone by now.
            if pod:
                reports += self.seen(pod, now)
        return reports

    def seen(self, pod: PodFacts, now: float) -> list[Report]:
        """The Event of a pod as it is now, if it needs one."""
        if not pod.is_short_in_sum:
            return []
        text = self._why_in_job(pod) or self._why(pod, now)
        if not text:
            return []
        former, until = self._sent.get(pod.uid, ("", now))
        is_known = text == former and now < until
        if is_known:
            return []
        self._sent[pod.uid] = text, now + AGAIN_S
        return [Report(pod.name, pod.uid, "WaitingForGPUs", text)]

    def forget(self, uid: str) -> None:
        """Take that a pod is gone or has a node."""
        self._sent.pop(uid, None)

    def _why(self, pod: PodFacts, now: float) -> str:
        """Why a single pod waits; empty if there is room by now, as kube-scheduler tries it again then."""
        request = pod.request
        if request.problem:
            return f"the pod {request.problem}"
        key = request, self._passed_over(pod, now)
        text, until = self._reasons.get(key, ("", now))
        if now < until:
            return text
        self._forget_old(now)
        # The first node is enough to know.
        fits = any(True for _ in self._fitting(pod, now))
        text = "" if fits else main_reason(request, self._nodes, self._nodes)
        self._reasons[key] = text, now + KEPT_S
        return text

    def _forget_old(self, now: float) -> None:
        """Forget reasons that count no longer. Any author of pods may ask for thousands of different amounts."""
        kept = {}
        for key, reason in self._reasons.items():
            _, until = reason
            if now < until:
                kept[key] = reason
        self._reasons = kept
