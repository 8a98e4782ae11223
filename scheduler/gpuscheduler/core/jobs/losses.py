"""What is known of the pods that a job has lost since it started, and of the eviction of those that are left."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

RETRY_FIRST_S = 10.0
"""Delay before the eviction of a pod is tried again. Each refusal doubles it."""
RETRY_LIMIT_S = 300.0
"""The longest delay."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class EvictionTry:
    """The eviction of one pod.

    Attributes:
        at: when it is tried next; infinite while an answer is awaited.
        delay_s: before the try after that.
        is_said: an Event says that the pod cannot be evicted now.
    """

    at: float
    delay_s: float = RETRY_FIRST_S
    is_said: bool = False

    def asked(self) -> "EvictionTry":
        """The API server is asked now."""
        return replace(self, at=_NEVER)

    def again_at(self, at: float) -> "EvictionTry":
        """It is tried again then, and no refusal has come."""
        return replace(self, at=at)

    def blocked(self, now: float) -> "EvictionTry":
        """The API server has refused, which is said, and is asked again after a delay."""
        delay_s = min(self.delay_s * 2, RETRY_LIMIT_S)
        return EvictionTry(now + self.delay_s, delay_s, is_said=True)


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of one job. Each event makes another value of it.

    Attributes:
        since: since when pods are lost; infinite while none are.
        is_said: an Event says so.
        unwitnessed: how many of them were lost before this scheduler began. They may have succeeded, so no pod is
            evicted for them.
        are_unknown: an object that was not seen yet says how many pods the job has. What it lacks by then was lost
            before.
        evictions: UID to each pod that is being evicted.
    """

    since: float = _NEVER
    is_said: bool = False
    unwitnessed: int = 0
    are_unknown: bool = False
    evictions: Mapping[str, EvictionTry] = field(default_factory=dict)

    def seen(self, lost: int, running: Collection[str], now: float) -> "Losses":
        """The losses while so many pods are lost, and the pods with these UIDs run."""
        if not lost:
            return NO_LOSSES
        evictions = {uid: eviction for uid, eviction in self.evictions.items() if uid in running}
        unwitnessed = min(self.unwitnessed, lost)
        return replace(self, since=min(self.since, now), unwitnessed=unwitnessed, evictions=evictions)

    def starting(self) -> "Losses":
        """The losses while pods are being bound: the others of the job are on their way, and get their time as well."""
        return Losses(unwitnessed=self.unwitnessed)

    def said(self) -> "Losses":
        """An Event says that pods are lost."""
        return replace(self, is_said=True)

    def evicting(self, uids: Iterable[str], now: float) -> "Losses":
        """These pods are to be evicted from now on."""
        return replace(self, evictions={uid: EvictionTry(now) for uid in uids})

    def asked(self, uids: Collection[str]) -> "Losses":
        """The API server is asked to evict these pods now."""
        asked = {uid: self.evictions[uid].asked() for uid in uids}
        return replace(self, evictions={**self.evictions, **asked})

    def tried(self, uid: str, eviction: EvictionTry) -> "Losses":
        """The eviction of a pod has come so far."""
        return replace(self, evictions={**self.evictions, uid: eviction})


NO_LOSSES = Losses()
