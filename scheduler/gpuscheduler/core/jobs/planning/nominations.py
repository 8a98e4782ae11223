"""Has kube-scheduler try pods of jobs again, on the nodes that are planned for them.

kube-scheduler tries a pod again by itself only minutes later, so an annotation of the pod is changed to wake it. Among
many nodes it may stop before it comes to the planned one, so the pod is nominated for that node: it tries this one
first. It counts a nominated pod on its node, so a nomination is taken back when its plan ends.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuscheduler.core.calls import Action, Nominate, Nudge
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.pod_facts import PodFacts


class Nominations:
    """The nominations of all jobs. `job.nominated` has the UIDs of those pods that were nominated.

    Args:
        actions: to which writes are added.
        is_large: whether kube-scheduler may look at a part of the nodes only.
    """

    def __init__(self, actions: list[Action], is_large: Callable[[], bool]) -> None:
        self._actions = actions
        self._is_large = is_large

    def wake(
        self,
        job: Job,
        plan: StartPlan,
        pods: Iterable[PodFacts],
        calling: str = "",
    ) -> None:
        """Have kube-scheduler try pods of a plan, each on its node.

        `calling` is the UID of the pod about which it is asking: that one needs no wake-up.
        """
        if plan.in_order:
            # All others would be refused, and kube-scheduler waits longer each time before it tries a pod again.
            next_uid = plan.next_in_order()
            pods = [job.members[next_uid]] if next_uid else []
        pods = [pod for pod in pods if pod.uid != calling]
        # Pods that are nominated already would count where they were nominated.
        if self._is_large() or job.nominated:
            self._nominate_as_planned(job, plan, pods)
        self._actions += nudges(pods)

    def wake_deferred(self, job: Job) -> None:
        """Have kube-scheduler try pods again whose places depend on the pods of the plan that it has placed since."""
        plan = job.plan
        if plan is None or not (plan.deferred or plan.in_order):
            return
        pods = [job.members[uid] for uid in sorted(plan.deferred)]
        # They are to come again, so that others may wait for them.
        job.plan = replace(plan, deferred=frozenset())
        self.wake(job, job.plan, pods)

    def wake_attached(self, job: Job) -> None:
        """Have kube-scheduler try the pods for which others of the plan had to be placed before.

        It tries them anyway when those are bound. Until then, their nodes are kept for them.
        """
        plan = job.plan
        if plan is None or not plan.attached:
            return
        pods = [job.members[uid] for uid in sorted(plan.attached & plan.places.keys())]
        self._nominate_as_planned(job, plan, pods)
        self._actions += nudges(pods)

    def _nominate_as_planned(self, job: Job, plan: StartPlan, pods: Iterable[PodFacts]) -> None:
        for pod in pods:
            node, _ = plan.places[pod.uid]
            self.nominate(job, pod, node)

    def nominate(self, job: Job, pod: PodFacts, node: str) -> None:
        """Have kube-scheduler try the node first for a pod, and count the pod there, as long as it is planned there."""
        job.nominated.add(pod.uid)
        self._actions.append(Nominate(pod.name, pod.uid, node))

    def end(self, job: Job) -> None:
        """Take nominations back: kube-scheduler would count the pods on these nodes for as long as they wait."""
        for pod in job.members.pending.values():
            if pod.uid in job.nominated or pod.nominated:
                self._actions.append(Nominate(pod.name, pod.uid, ""))
        job.nominated.clear()


def nudges(pods: Iterable[PodFacts]) -> list[Nudge]:
    """kube-scheduler does not try gated pods, so these are left out."""
    return [Nudge(pod.name, pod.uid) for pod in pods if not pod.gated]
