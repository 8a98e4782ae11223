"""Which pods of a job kube-scheduler has come to.

kube-scheduler asks about a pod only when a node passes all of its own checks. A pod that it has not come to may never
start, for example because of a volume or a selector. So nothing is reserved for its job before.
"""

from collections.abc import Collection, Iterable

from gpuscheduler.core.gangs.gang import GangKey
from gpuscheduler.core.pod_facts import PodFacts

EARLY_S = 10.0
"""How far the watch may be behind kube-scheduler."""
MOST_EARLY = 10_000
"""Pods of all jobs that kube-scheduler may ask about before the watch shows them."""


class EarlyCalls:
    """Pods of jobs about which kube-scheduler has asked before the watch shows them, by UID.

    The watch may never show some of them. They are not kept with their job, which is not there before its first pod is.
    """

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}

    def add(self, uid: str) -> None:
        """Take that kube-scheduler asks about a pod. If there are too many, the first one is forgotten."""
        self._uids[uid] = None
        if len(self._uids) > MOST_EARLY:
            first = next(iter(self._uids))
            del self._uids[first]

    def take(self, uid: str) -> bool:
        """Forget a pod; whether kube-scheduler has asked about it."""
        is_known = uid in self._uids
        self._uids.pop(uid, None)
        return is_known


class EarlyVictimCalls:
    """Pods of jobs for which kube-scheduler has asked for victims before the watch shows them.

    It does not ask again by itself. As a pod may be gone by then, it counts for a while only.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, GangKey] = {}
        """UID of each pod to its job, the last one at the end."""
        self._pods: dict[GangKey, dict[str, tuple[PodFacts, float]]] = {}
        """The pods of each job by UID, with the time until when they count."""

    def add(self, pod: PodFacts, job: GangKey, now: float) -> None:
        """Take that kube-scheduler asks for a pod of a job. If there are too many, the first one is forgotten."""
        self.take(pod.uid)
        self._jobs[pod.uid] = job
        of_job = self._pods.setdefault(job, {})
        of_job[pod.uid] = pod, now + EARLY_S
        if len(self._jobs) > MOST_EARLY:
            first = next(iter(self._jobs))
            self.take(first)

    def take(self, uid: str) -> bool:
        """Forget a pod, which the watch shows; whether kube-scheduler has asked for it."""
        job = self._jobs.pop(uid, None)
        if job is None:
            return False
        of_job = self._pods[job]
        del of_job[uid]
        if not of_job:
            del self._pods[job]
        return True

    def pods(self, job: GangKey, now: float) -> list[PodFacts]:
        """The pods of a job that count."""
        pods: list[PodFacts] = []
        for pod, until in list(self._pods.get(job, {}).values()):
            if now < until:
                pods.append(pod)
            else:
                self.take(pod.uid)
        return pods


class Turns:
    """The pods of one job that wait, by UID.

    Attributes:
        unasked: kube-scheduler has not come to them yet, or not again since they failed to come into bind.
        uncalled: those of them for which it was not woken either.
        short: those of `unasked` that fit once pods of lower priority are evicted, as kube-scheduler has found.
    """

    def __init__(self) -> None:
        self.unasked: set[str] = set()
        self.uncalled: set[str] = set()
        self.short: set[str] = set()

    def came(self, uid: str) -> None:
        """Take that a pod waits from now on, about which kube-scheduler has not asked."""
        self.unasked.add(uid)
        self.uncalled.add(uid)

    def asked(self, uids: Collection[str]) -> None:
        """Take that kube-scheduler asks about pods that wait."""
        self.unasked.difference_update(uids)
        self.uncalled.difference_update(uids)
        self.short.difference_update(uids)

    def wants_victims(self, uid: str) -> None:
        """Take that kube-scheduler asks which pods to evict for a pod: it has come to it, and found no free node."""
        if uid in self.unasked:
            self.short.add(uid)

    def call_again(self) -> None:
        """Take that what was woken before may not have been heard: another scheduler led until now."""
        self.uncalled = set(self.unasked)

    def called(self, uids: Iterable[str]) -> None:
        """Take that kube-scheduler was woken for these pods."""
        self.uncalled.difference_update(uids)

    def failed_to_come(self, uids: Iterable[str]) -> None:
        """Take that these pods have not come into bind, and that kube-scheduler was woken for them."""
        self.unasked.update(uids)

    def forget(self, uid: str) -> None:
        """Take that a pod does not wait any more."""
        self.asked([uid])
