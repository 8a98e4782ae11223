"""Faults that are put back into the product, one at a time, to see whether a simulation finds them.

Some were in the product once. Each is one decision that is taken away, in the running process only.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuagent.agent import loop
from gpuagent.allocator import allocator_state, requester_queries
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import step
from gpuagent.domain.deviceplugin.admission import fitting_containers, kubelet_listing
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.events import AllocatesSeen
from gpuagent.domain.state import State
from gpuagent.kube.write.annotation_writer import AnnotationWriter
from gpuagent.kube.write.keyed_reconciler import Outcome
from gpuagent.kubelet.deviceplugin.endpoint import Endpoint
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from gpuscheduler.core import pod_facts
from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.jobs.planning.nominations import Nominations
from gpuscheduler.core.jobs.planning.start_plans import StartPlans
from gpuscheduler.core.jobs.turns import Turns
from gpuscheduler.core.reservations import Reservations
from simworld.faults import (
    agent_and_api_server,
    agent_and_kubelet,
    agent_and_scheduler,
    found_in_worlds,
    in_scheduler,
    isolation,
)
from simworld.faults.replacing import put
from simworld.put_back_claims import CLAIM_FAULTS
from simworld.put_back_scheduler import SCHEDULER_FAULTS


def _annotations_of_running_pods_count() -> None:
    put(BoundPods, "as_decided", lambda _self, pod: pod)


def _a2_annotations_of_running_pods_steer_the_scheduler() -> None:
    """As it was: what a running pod's annotations say counts, also if it is more than its limits."""
    _annotations_of_running_pods_count()
    agent_and_scheduler.an_annotation_may_claim_more_than_the_limits()


def _no_wait_for_pods_after_a_restart() -> None:
    put(allocator_state, "FIRST_PODS_S", 0.0)
    put(allocator_state, "DECIDED_PODS_S", 0.0)
    put(requester_queries.ContainerSearch, "_pods_to_read", lambda *_: ())


def _a_former_pods_devices_count_for_its_name() -> None:
    put(fitting_containers, "of_another_pod", lambda *_: False)
    put(kubelet_listing, "of_another_pod", lambda *_: False)
    put(Occupancy, "may_live", lambda *_: True)


def _units_leave_while_a_call_is_open() -> None:
    count = loop.Loop.__init__

    def init(self: Any, state: Any, events: Any, _count: Any, *rest: Any) -> None:  # noqa: ANN401 (the loop's own)
        clock = rest[1]
        count(self, state, events, lambda: AllocatesSeen(0, float("-inf"), clock()), *rest)

    put(loop.Loop, "__init__", init)


def _no_audit_after_a_switch() -> None:
    put(step, "_audited", lambda _before, after, _event: after)


def _held_gpus_are_sold_in_another_mode() -> None:
    put(State, "blocked", property(lambda _self: frozenset()))


def _recent_allocations_are_forgotten() -> None:
    put(Allocator, "recent_ids", lambda _self: frozenset())


def _annotations_are_never_written() -> None:
    put(AnnotationWriter, "attempt", lambda *_: Outcome.DONE)


def _no_registration_with_a_new_kubelet() -> None:
    put(Endpoint, "_loss", lambda *_: None)


def _kubelets_allocations_are_read_once() -> None:
    read = HoldingsWatch._read_now  # noqa: SLF001 (the decision that is taken away)

    def read_once(self: Any) -> Any:  # noqa: ANN401 (the watch)
        known = vars(self).setdefault("_first", None)
        if known is None:
            known = read(self)
            vars(self)["_first"] = known
        return replace(known, at=self._clock(), started_at=self._clock()) if known else None

    put(HoldingsWatch, "_read_now", read_once)


def _nothing_is_reserved() -> None:
    put(Reservations, "keep", lambda *_args, **_kwargs: None)


def _g1_gated_pods_are_there() -> None:
    """As before two decisions: a gate of others holds a pod back, and only pods that were asked about are planned."""
    put(pod_facts, "_foreign_gate", lambda _: "")
    _pods_nobody_asked_about_are_planned()


def _g2_nominations_of_gated_pods_stay() -> None:
    """The same in a large cluster, where pods of a plan are nominated, and nothing takes that back."""
    _g1_gated_pods_are_there()
    put(Nominations, "end", lambda *_: None)


def _g3_a_tenant_holds_gpus_with_jobs_that_cannot_start() -> None:
    """GPUs are reserved for pods that kube-scheduler never asks about, and nothing counts against their namespace."""
    _pods_nobody_asked_about_are_planned()
    put(StartPlans, "note_lapse", lambda *_: None)


def _pods_nobody_asked_about_are_planned() -> None:
    put(Turns, "came", lambda *_: None)


FAULTS: dict[str, Callable[[], None]] = (
    {
        work.__name__.removeprefix("_"): work
        for work in (
            _annotations_of_running_pods_count,
            _no_wait_for_pods_after_a_restart,
            _a_former_pods_devices_count_for_its_name,
            _units_leave_while_a_call_is_open,
            _no_audit_after_a_switch,
            _held_gpus_are_sold_in_another_mode,
            _recent_allocations_are_forgotten,
            _annotations_are_never_written,
            _no_registration_with_a_new_kubelet,
            _kubelets_allocations_are_read_once,
            _nothing_is_reserved,
            *agent_and_kubelet.FAULTS,
            *agent_and_api_server.FAULTS,
            *agent_and_scheduler.FAULTS,
            *in_scheduler.FAULTS,
            *found_in_worlds.FAULTS,
            *isolation.FAULTS,
            _a2_annotations_of_running_pods_steer_the_scheduler,
            _g1_gated_pods_are_there,
            _g2_nominations_of_gated_pods_stay,
            _g3_a_tenant_holds_gpus_with_jobs_that_cannot_start,
            _pods_nobody_asked_about_are_planned,
        )
    }
    | SCHEDULER_FAULTS
    | CLAIM_FAULTS
)
"""By name, what puts each back."""

SYMPTOMS = {
    "g1_gated_pods_are_there": "which has a scheduling gate",
    "g2_nominations_of_gated_pods_stay": "and has a scheduling gate",
    "g3_a_tenant_holds_gpus_with_jobs_that_cannot_start": "which cannot start",
}
"""Words of the sentence with which a fault is found, where another promise may be broken first.

These three were possible because pods were planned about which kube-scheduler had not asked. That is a promise of its
own now, and a fault of its own above.
"""
