"""Sends an Event for each refusal: on its pod, even if the agent identifies the pod later, or else on the node."""

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpuagent.domain.announcement import Announcement, EventSink
from gpuagent.domain.pods.pod import Pod, PodName

WAIT_S = 30.0
"""How long a refusal waits for its pod. Kubelet fails that pod at once; a watch that broke brings it later."""

MOST_WAITING = 64


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`passed` are UIDs of pods that kubelet failed with the same words for another refusal."""

    at: float
    message: str
    pod: PodName | None
    passed: set[str]

    def is_for(self, pod: Pod) -> bool:
        """Kubelet puts the text of a refusal into the status of the pod that it fails for it."""
        if self.pod is not None:
            return pod.name == self.pod
        return pod.rejected is not None and self.message in pod.rejected and pod.uid not in self.passed


class RefusalEvents:
    """Thread-safe. A refusal whose pod the watch has not shown waits for it, for a bounded time."""

    def __init__(self, clock: Callable[[], float], send_event: EventSink) -> None:
        self._clock = clock
        self._send_event = send_event
        self._lock = threading.Lock()
        self._pods: Collection[Pod] = ()
        self._waiting: deque[_Waiting] = deque()

    def add(self, message: str, pod: PodName | None) -> None:
        """Take a refusal; `pod` is the requesting pod, or None if the agent cannot identify it."""
        with self._lock:
            if pod is not None and any(known.name == pod for known in self._pods):
                self._send_event(_refusal(message, pod))
                return
            passed = {known.uid for known in self._pods if known.rejected and message in known.rejected}
            self._waiting.append(_Waiting(self._clock(), message, pod, passed))
            if len(self._waiting) > MOST_WAITING:
                self._send_on_node(self._waiting.popleft())

    def publish(self, pods: Collection[Pod]) -> None:
        """The node's pods as they are now; called at least every few seconds."""
        with self._lock:
            self._pods = pods
            for _ in range(len(self._waiting)):
                one = self._waiting.popleft()
                if found := next(filter(one.is_for, pods), None):
                    self._send_event(_refusal(one.message, found.name))
                    for other in self._waiting:
                        other.passed.add(found.uid)
                elif self._clock() - one.at >= WAIT_S:
                    self._send_on_node(one)
                else:
                    self._waiting.append(one)

    def _send_on_node(self, one: _Waiting) -> None:
        about = f"pod {one.pod}" if one.pod else "a pod"
        text = f"Refused a container of {about} that the API server has not shown: {one.message}"
        self._send_event(_refusal(text))


def _refusal(message: str, *pods: PodName) -> Announcement:
    return Announcement("GPURefused", message, warning=True, pods=pods)
