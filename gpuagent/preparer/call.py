"""One call of kubelet about a claim, and the agent's state for which calls wait."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.domain.refusal import Refusal
from gpuagent.domain.state import State

IsWanted = Callable[[], bool]
"""Whether kubelet still waits for the answer of a call."""
WaitsFor = Callable[[Refusal], None]
"""Takes why a call waits, again and again while it does."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call to prepare a claim.

    Attributes:
        uid: of the claim.
        namespace: of the claim.
        name: of the claim.
        is_wanted: whether kubelet still waits for the answer.
        until: monotonic seconds until which the call may wait.
        waits_for: called before each wait for something that keeps the claim from being prepared.
        together: names of further claims in the namespace that kubelet has prepared in the same call.
        of_administrators: the claim may have fenced GPUs, if it tolerates the fence; None if its namespace cannot be
            read.
    """

    uid: str
    namespace: str
    name: str
    is_wanted: IsWanted
    until: float
    waits_for: WaitsFor = lambda _refusal: None
    together: frozenset[str] = frozenset()
    of_administrators: bool | None = False


class LatestState:
    """The agent's state, for calls that wait for a change of it or of the prepared claims.

    Attributes:
        changed: notified after each change of either; held while one of them is read and changed.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._state: State | None = None
        self._stopping = False

    @property
    def state(self) -> State | None:
        """The latest one; None before the first."""
        return self._state

    def publish(self, state: State) -> None:
        with self.changed:
            self._state = state
            self.changed.notify_all()

    def stop(self) -> None:
        """End the waits of all calls."""
        self._stopping = True
        with self.changed:
            self.changed.notify_all()

    def is_over(self, call: Call) -> bool:
        """Whether a call must not wait any longer."""
        is_late = time.monotonic() > call.until
        return self._stopping or is_late or not call.is_wanted() or self._has_only_ending_pods(call)

    def _has_only_ending_pods(self, call: Call) -> bool:
        """Whether all pods that were seen with the claim end. Kubelet ends none of them before it has the answer."""
        pods = self._state.pods.seen if self._state else ()
        users = [pod for pod in pods if pod.name.namespace == call.namespace and call.name in pod.claims]
        return bool(users) and all(pod.ended or pod.deleting for pod in users)

    def wait(self, seconds: float) -> bool:
        """Wait for the next change; whether one came in time."""
        with self.changed:
            return self.changed.wait(seconds)
