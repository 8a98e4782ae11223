"""Faults that are put back into the product, one at a time, to see whether a search of a small world finds them.

Each is one decision of the product that is taken away, in the running process only. With it comes the scope in which
the search begins.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuagent.allocator import allocator_state, requester_queries
from gpuagent.domain import snapshot
from gpuscheduler.core.bindings import Bindings
from gpuscheduler.core.calls import BindOutcome
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.scheduling import Scheduling
from simworld.faults.replacing import put
from simworld.small.model import Scope


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the small world to look for it in.

    Attributes:
        put_back: changes the product in this process.
        scope: where the search begins.
    """

    put_back: Callable[[], None]
    scope: Scope


def _bound_pods_are_not_read_after_a_restart() -> None:
    """A scheduler that has restarted goes by its watch alone, which shows later changes only."""
    take = Scheduling.pod_seen

    def pod_seen(self: Scheduling, pod: PodFacts, now: float) -> None:
        if self._ready or not pod.node:
            take(self, pod, now)

    put(Scheduling, "pod_seen", pod_seen)


def _a_reservation_ends_with_the_answer_to_its_binding() -> None:
    """Before the watch has shown the pod on its node, so that nothing counts it for a while."""
    answered = Bindings.answered

    def answered_and_ended(self: Bindings, uid: str, pod: PodFacts | None, outcome: BindOutcome) -> None:
        answered(self, uid, pod, outcome)
        if pod is None or not pod.node:
            self._reservations.end([uid])

    put(Bindings, "answered", answered_and_ended)


def _a_reservation_outlives_its_pod() -> None:
    """What is reserved for a pod that was deleted is never given back."""
    put(Reservations, "end", lambda _self, _uids: None)
    put(Reservations, "lapse", lambda _self, _now: None)
    put(Reservations, "next_end", lambda _self: None)


def _the_agent_takes_the_first_pod_of_that_amount() -> None:
    """It does not ask kubelet which pod is admitted."""
    put(requester_queries.KubeletQuery, "__call__", lambda _self, _pods: None)


def _the_agent_follows_no_decision() -> None:
    put(snapshot, "read", lambda *_: None)


def _no_wait_for_the_pods_after_a_restart() -> None:
    """The agent answers kubelet before it has read the pods, and with them what was decided."""
    put(allocator_state, "FIRST_PODS_S", 0.0)
    put(allocator_state, "DECIDED_PODS_S", 0.0)
    put(requester_queries.ContainerSearch, "_pods_to_read", lambda *_: ())


_ONE_NODE = Scope(nodes=1, gpus=2, pods=(3, 3), crashes=0, ends=0, slow=0)
_FULL = Scope(nodes=1, gpus=1, pods=(3, 3), crashes=0, ends=1, slow=0, begins="waiting")
_MIXED_PODS = (1, 3, 3)
_SCHEDULER_RESTARTS = Scope(nodes=1, gpus=1, pods=_MIXED_PODS, ends=0, slow=0, begins="running")
_AGENT_RESTARTS = Scope(nodes=1, gpus=2, pods=(3, 3), ends=0, begins="running")

_ALL = (
    (_bound_pods_are_not_read_after_a_restart, _SCHEDULER_RESTARTS),
    (_a_reservation_ends_with_the_answer_to_its_binding, _ONE_NODE),
    (_a_reservation_outlives_its_pod, _FULL),
    (_the_agent_takes_the_first_pod_of_that_amount, _AGENT_RESTARTS),
    (_the_agent_follows_no_decision, _ONE_NODE),
    (_no_wait_for_the_pods_after_a_restart, _AGENT_RESTARTS),
)

FAULTS: dict[str, Fault] = {}
"""By name."""
for _work, _scope in _ALL:
    _name = _work.__name__.removeprefix("_")
    FAULTS[_name] = Fault(_work, _scope)
