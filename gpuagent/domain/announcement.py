"""Messages of the core for people."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.pods.pod import PodName


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message for people: a log line and a Kubernetes Event on the node, or on `pods` if any."""

    reason: EventReason
    message: str
    warning: bool = False
    pods: tuple[PodName, ...] = ()


EventSink = Callable[[Announcement], None]
"""Sends an announcement as Kubernetes Events; never blocks."""
