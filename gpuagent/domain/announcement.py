"""Messages of the core for people."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.pods.pod import Controller, PodName


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message for people: a log line and a Kubernetes Event on the node, or on `pods` if any.

    With `owner`, it is about that controller in the namespace of `pods`.
    """

    reason: EventReason
    message: str
    warning: bool = False
    pods: tuple[PodName, ...] = ()
    owner: Controller | None = None


EventSink = Callable[[Announcement], None]
"""Sends an announcement as Kubernetes Events; never blocks."""
