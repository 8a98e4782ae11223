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
        # A pod that was failed for another reason has other words.
        if pod.rejected is None or self.message not in pod.rejected:
            return False
        return pod.uid not in self.passed


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
            if pod is not None and self._knows(pod):
                self._send_event(_refusal(message, pod))
                return
            # Pods that already have these words in their status were failed for an earlier refusal.
            passed = {known.uid for known in self._pods if message in (known.rejected or "")}
            waiting = _Waiting(self._clock(), message, pod, passed)
            self._waiting.append(waiting)
            # A tenant can provoke any number of refusals.
            if len(self._waiting) > MOST_WAITING:
                self._send_on_node(self._waiting.popleft())

    def _knows(self, pod: PodName) -> bool:
        return any(known.name == pod for known in self._pods)

    def publish(self, pods: Collection[Pod]) -> None:
        """The node's pods as they are now; called at least every few seconds."""
        with self._lock:
            self._pods = pods
            for _ in range(len(self._waiting)):
                refusal = self._waiting.popleft()
                pod = next(filter(refusal.is_for, pods), None)
                if pod is not None:
                    self._send_for_pod(refusal, pod)
                elif self._clock() - refusal.at >= WAIT_S:
                    self._send_on_node(refusal)
                else:
                    self._waiting.append(refusal)

    def _send_for_pod(self, refusal: _Waiting, pod: Pod) -> None:
        self._send_event(_refusal(refusal.message, pod.name))
        # Kubelet fails one pod for each refusal, so this pod is not the one of a refusal with the same words.
        for other in self._waiting:
            other.passed.add(pod.uid)

    def _send_on_node(self, refusal: _Waiting) -> None:
        about = f"pod {refusal.pod}" if refusal.pod else "a pod"
        text = f"Refused a container of {about} that the API server has not shown: {refusal.message}"
        self._send_event(_refusal(text))


def _refusal(message: str, *pods: PodName) -> Announcement:
    return Announcement("GPURefused", message, warning=True, pods=pods)
