"""Faults in what the agent makes of kubelet's calls, lists and files."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuagent.agent import first_state
from gpuagent.allocator import allocator_state, preferred_allocation
from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.allocator.requester_queries import ContainerSearch
from gpuagent.domain import snapshot_indexes, usable_gpus
from gpuagent.domain.deviceplugin import advertise
from gpuagent.domain.deviceplugin.admission import (
    admission_tracker,
    fitting_containers,
    kubelet_listing,
    recent_allocations,
)
from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.kubelet_listing import KubeletListing
from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocations
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.node_state.allocations import Holdings, LivingHoldings
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.pod import Pod
from gpuagent.kubelet import checkpoint
from simworld.faults.replacing import put


def j1_decided_pods_get_any_gpu_after_a_restart() -> None:
    """As it was: the wait for pods counts from the start, and nothing tells that a scheduler decides here.

    And while the pods are not known, none of them counts as unseen.
    """
    make = AllocatorState.__init__
    to_read = ContainerSearch._pods_to_read  # noqa: SLF001 (the decision that is taken away)

    def init(self: AllocatorState, clock: Callable[[], float]) -> None:
        make(self, clock)
        self._registered_at = clock()

    def none_before_the_list(self: ContainerSearch, requester: Any, query: Any, occupancy: Occupancy) -> Any:  # noqa: ANN401
        return () if occupancy.snapshot.unread_pods else to_read(self, requester, query, occupancy)

    put(AllocatorState, "__init__", init)
    put(ContainerSearch, "_pods_to_read", none_before_the_list)
    put(first_state, "_stored_pods", lambda *_: Pods())


def j2_a_name_is_the_pod_that_has_it_now() -> None:
    """As it was: what kubelet lists under a name is taken for the pod that the agent knows, whatever its sizes."""
    put(fitting_containers, "of_another_pod", lambda *_: False)
    put(kubelet_listing, "of_another_pod", lambda *_: False)
    put(snapshot_indexes, "of_another_pod", lambda *_: False)
    put(KubeletListing, "_was_given_up", lambda *_: False)


def the_checkpoint_is_not_read() -> None:
    """Only the checkpoint has the UIDs of pods, what init containers hold, and what old kubelets were given."""
    put(checkpoint, "read", lambda _directory: ())


def init_containers_are_listed_like_others() -> None:
    """Kubelet's list has no ordinary init containers, and kubelet gives their units to the containers after them."""
    put(Pod, "init_names", property(lambda _self: frozenset()))


def what_a_pod_has_does_not_count_for_its_next_container() -> None:
    """The units of an init container are those of another container, and a sidecar's GPU is any GPU."""
    put(fitting_containers, "_gpus_of", lambda *_: frozenset())


def a_list_counts_from_its_end() -> None:
    """An Allocate during a list then looks older than the list, which does not have it."""
    read = Holdings._read  # noqa: SLF001

    def read_late(self: Holdings, event: Any) -> Holdings:  # noqa: ANN401 (an event)
        return read(self, replace(event, started_at=event.at))

    put(Holdings, "_read", read_late)


def allocations_are_forgotten_before_they_are_read() -> None:
    """An allocation is kept for a second, whether kubelet's list shows it by then or not."""
    put(recent_allocations, "REMEMBER_S", 1.0)
    put(admission_tracker, "REMEMBER_S", 1.0)

    def fresh(self: RecentAllocations, at: float, _snap: object) -> RecentAllocations:
        young = [allocation for allocation in self.allocations if allocation.at > at - recent_allocations.REMEMBER_S]
        return self if len(young) == len(self.allocations) else RecentAllocations.of(young)

    put(RecentAllocations, "fresh", fresh)


def a_restarted_kubelet_is_the_former_one() -> None:
    """Pods that the former kubelet rejected are never admitted again, and half an admission goes on."""
    put(AllocatorState, "serving", lambda *_: None)
    put(AdmissionTracker, "restarted", lambda self, _snap: self)


def a_rejected_container_still_waits_for_its_other_resource() -> None:
    """After a refusal, the next pod's second resource is taken for that of the pod that kubelet has rejected."""

    def end_admission(self: Any) -> None:  # noqa: ANN401 (the state)
        self._answered = None

    put(AllocatorState, "_end_admission", end_admission)

    def refusing(self: AdmissionTracker, *_: object) -> AdmissionTracker:
        return self

    put(AdmissionTracker, "refusing", refusing)


def a_deleted_pod_is_in_admission_no_longer() -> None:
    """Kubelet may go on with a pod whose deletion the agent has seen."""
    put(AdmissionTracker, "after_pod_changes", lambda self, *_: self)


def the_first_of_several_listed_pods_asks() -> None:
    """Kubelet lists rejected pods for a while; the one that asks came last."""

    def first_of(_self: object, listed: Any, *, is_only_one: bool) -> Any:  # noqa: ANN401 (requesters)
        return replace(listed[0], certain=is_only_one)

    put(KubeletListing, "_last_of", first_of)


def ended_pods_hold_their_units() -> None:
    """Kubelets up to 1.33 list the devices of pods that have ended."""

    def everything(self: LivingHoldings) -> Any:  # noqa: ANN401 (holdings)
        return tuple(self.allocations.listed or ())

    put(LivingHoldings, "all", property(everything))


def units_leave_the_list_at_once() -> None:
    """Kubelet 1.34 and later end if a device vanishes while they wait for its Allocate."""
    put(advertise, "SETTLE_S", 0.0)
    put(advertise, "_may_drop", lambda *_: True)


def an_unhealthy_gpu_is_sold() -> None:
    """The list shows every GPU that the mode has units of as healthy."""

    def all_gpus(state: Any) -> Any:  # noqa: ANN401 (the state, and its GPUs)
        return tuple(gpu for gpu in state.gpus.by_index if usable_gpus.gives_units(gpu, state))

    put(advertise, "usable_gpus", all_gpus)


def units_that_kubelet_offers_are_free() -> None:
    """Kubelet can lose a reservation, and offers units that a living pod has."""
    put(Occupancy, "suspect_ids", property(lambda _self: frozenset()))


def unseen_pods_are_not_read() -> None:
    """Kubelet often sees a pod before the agent's watch shows it, with its decision."""
    put(ContainerSearch, "_pods_to_read", lambda *_: ())


def a_read_without_an_answer_refuses_later_pods() -> None:
    """As it was: while one read of a pod waits for its answer, pods that the watch shows a moment later are refused."""
    put(ContainerSearch, "_wait_for_watch", lambda *_: None)


def nobody_waits_for_the_pods() -> None:
    """Calls are answered before the first list of pods, which has the schedulers' decisions."""
    put(allocator_state, "FIRST_PODS_S", 0.0)
    put(allocator_state, "DECIDED_PODS_S", 0.0)


def units_of_unnamed_containers_are_nobodys() -> None:
    """A GPU that seems full is not looked at again with the names that kubelet has by now."""
    put(preferred_allocation.PreferredAllocation, "_with_named_containers", lambda _self, _request, occupied: occupied)


FAULTS = (
    j1_decided_pods_get_any_gpu_after_a_restart,
    j2_a_name_is_the_pod_that_has_it_now,
    the_checkpoint_is_not_read,
    init_containers_are_listed_like_others,
    what_a_pod_has_does_not_count_for_its_next_container,
    a_list_counts_from_its_end,
    allocations_are_forgotten_before_they_are_read,
    a_restarted_kubelet_is_the_former_one,
    a_rejected_container_still_waits_for_its_other_resource,
    a_deleted_pod_is_in_admission_no_longer,
    the_first_of_several_listed_pods_asks,
    ended_pods_hold_their_units,
    units_leave_the_list_at_once,
    an_unhealthy_gpu_is_sold,
    units_that_kubelet_offers_are_free,
    unseen_pods_are_not_read,
    a_read_without_an_answer_refuses_later_pods,
    nobody_waits_for_the_pods,
    units_of_unnamed_containers_are_nobodys,
)
