"""How many pods of a job are there, as the pods say that wait for more.

kube-scheduler shows what it was told when it last asked about a pod. With each pod that comes or goes, the pods before
it say a former number, and kube-scheduler asks again after five minutes. So those that do are woken.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuscheduler.core.pod_facts import PodFacts

REFRESH_S = 5.0
"""Time from a change of the number until pods are woken: most controllers create all pods of a job in less."""
MOST_WOKEN = 16
"""Pods of a job that are woken at a time. Any author of pods may have the number of a large job change for ever."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class SaidCount:
    """What the pods of one job say. Each event makes another value of it.

    Attributes:
        text: that they are to say; empty while none of them waits for more pods.
        due_at: monotonic seconds when those that say another are woken; infinite if all say this one.
        looked_for: the text at the last look at the pods.
        woken: UIDs of those that were woken for this text.
    """

    text: str = ""
    due_at: float = _NEVER
    looked_for: str = ""
    woken: frozenset[str] = frozenset()

    def noted(self, text: str, now: float) -> "SaidCount":
        """The pods are to say this text from now on."""
        if text == self.text:
            return self
        if not text:
            return NOTHING_SAID
        due_at = min(self.due_at, now + REFRESH_S)
        return replace(self, text=text, due_at=due_at, woken=frozenset())

    def outdated(self, pods: Iterable[PodFacts]) -> list[PodFacts]:
        """Some of these pods that wait and say something else."""
        outdated: list[PodFacts] = []
        for pod in pods:
            # Without a text, kube-scheduler has yet to ask about it, or is writing what it was told.
            says_another = bool(pod.unscheduled) and self.text not in pod.unscheduled
            if says_another and not pod.gated and pod.uid not in self.woken:
                outdated.append(pod)
            if len(outdated) == MOST_WOKEN:
                break
        return outdated

    def looked(self, woken: Iterable[PodFacts], now: float) -> "SaidCount":
        """These pods are woken now."""
        uids = frozenset(pod.uid for pod in woken)
        # A pod may have been told the former text just before the last change, which was written after this look.
        is_last_look = not uids and self.looked_for == self.text
        due_at = _NEVER if is_last_look else now + REFRESH_S
        return SaidCount(self.text, due_at, self.text, self.woken | uids)


NOTHING_SAID = SaidCount()
