"""Which pods with claims wait, and when each is told why: after a moment, and again if the reason changes."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.domain.pods.json_values import mapping, text
from gpuscheduler.core.calls import Report
from gpuscheduler.core.explain.claim_facts import ClaimingPod, read_claiming_pod

REASON = "WaitingForGPUs"
FIRST_S = 2.0
"""A pod that kube-scheduler has refused is explained after this long: most fit when a claim has ended or is written."""
UNTRIED_S = 15.0
"""The same for one that kube-scheduler has not tried, for example because its claim is not created."""
AGAIN_S = 60.0
"""Pause until a pod is explained again. It doubles up to `AGAIN_LIMIT_S`: amounts that change make few Events."""
AGAIN_LIMIT_S = 600.0
REPEATED_S = 3000.0
"""An equal reason is told again after this long. The API server keeps an Event for an hour."""
MOST_PODS = 2000
"""Pods that are kept. Later ones are told why when others have ended or started."""
MOST_OF_NAMESPACE = 200
"""The same of one namespace."""
MOST_AT_ONCE = 32
"""Pods that are explained with one look at the cluster."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A pod, and what it was told.

    Attributes:
        pod: as it was seen last.
        scheduler: that places it.
        due_at: when it is explained next.
        pause_s: until it is explained once more after that.
        text: that it was told last; empty for nothing.
        told_at: when.
    """

    pod: ClaimingPod
    scheduler: str
    due_at: float
    pause_s: float = AGAIN_S
    text: str = ""
    told_at: float = 0.0


class ClaimWaits:
    """The pods with claims that wait. Times are monotonic seconds.

    Args:
        is_told: whether pods that name this scheduler are told now.
    """

    def __init__(self, is_told: Callable[[str], bool]) -> None:
        self._is_told = is_told
        self._waiting: dict[str, _Waiting] = {}
        self._of_namespace: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def seen(self, pod: Mapping[str, Any], now: float) -> None:
        """Take a Pod object (decoded JSON) as it is now."""
        spec = mapping(pod.get("spec"))
        uid = text(mapping(pod.get("metadata")).get("uid"))
        # Hardly any pod has claims, and tens of thousands are seen.
        may_wait = spec.get("resourceClaims") and not spec.get("nodeName") and not spec.get("schedulingGates")
        waiting = read_claiming_pod(pod) if may_wait else None
        if waiting is None:
            self.gone(uid)
            return
        former = self._waiting.get(uid)
        due_at = now + (FIRST_S if waiting.unscheduled else UNTRIED_S)
        if former:
            # kube-scheduler has refused it now. If it was explained before, that time stands.
            sooner = due_at if former.pause_s == AGAIN_S else former.due_at
            self._waiting[uid] = replace(former, pod=waiting, due_at=min(former.due_at, sooner))
        elif self._has_room(waiting.name.namespace):
            scheduler = text(spec.get("schedulerName"))
            self._waiting[uid] = _Waiting(waiting, scheduler, due_at)
            self._of_namespace[waiting.name.namespace] += 1

    def gone(self, uid: str) -> None:
        """Forget a pod that does not wait any more."""
        waiting = self._waiting.pop(uid, None)
        if waiting:
            namespace = waiting.pod.name.namespace
            self._of_namespace[namespace] -= 1
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]

    def due(self, now: float) -> list[ClaimingPod]:
        """Pods that are to be explained now: in turn one of each namespace, so that no tenant keeps others back."""
        due = [waiting for waiting in self._waiting.values() if self._is_due(waiting, now)]
        due.sort(key=lambda waiting: waiting.due_at)
        turns: Counter[str] = Counter()
        in_turn: list[tuple[int, ClaimingPod]] = []
        for waiting in due:
            namespace = waiting.pod.name.namespace
            in_turn.append((turns[namespace], waiting.pod))
            turns[namespace] += 1
        in_turn.sort(key=lambda turn_and_pod: turn_and_pod[0])
        return [pod for _, pod in in_turn[:MOST_AT_ONCE]]

    def _is_due(self, waiting: _Waiting, now: float) -> bool:
        return waiting.due_at <= now and self._is_told(waiting.scheduler)

    def _has_room(self, namespace: str) -> bool:
        return len(self._waiting) < MOST_PODS and self._of_namespace[namespace] < MOST_OF_NAMESPACE

    def explained(self, uid: str, reason: str, now: float) -> Report | None:
        """Take why a pod waits; its Event, if it needs one. The reason is empty if its claims do not keep it."""
        waiting = self._waiting.get(uid)
        if waiting is None:
            return None
        pause_s = min(waiting.pause_s * 2, AGAIN_LIMIT_S)
        waiting = replace(waiting, due_at=now + waiting.pause_s, pause_s=pause_s)
        is_known = reason == waiting.text and now - waiting.told_at < REPEATED_S
        if not reason or is_known:
            self._waiting[uid] = waiting
            return None
        self._waiting[uid] = replace(waiting, text=reason, told_at=now)
        return Report(waiting.pod.name, uid, REASON, reason)
