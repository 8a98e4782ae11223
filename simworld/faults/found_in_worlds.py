"""Faults that the product had until a simulated world found them."""

from typing import Any

from gpuagent.allocator.requester_queries import ContainerSearch
from gpuagent.domain.deviceplugin.admission.requester import UnseenPod
from gpuscheduler.core import pod_facts
from gpuscheduler.core.jobs.job import Job
from gpuscheduler.core.pod_facts import PodFacts
from simworld.faults.replacing import put


def a_list_that_has_failed_is_waited_for() -> None:
    """As it was: after a list of pods has failed, none of them is read before the list is tried again."""
    pods_to_read = ContainerSearch._pods_to_read  # noqa: SLF001 (the decision that is taken away)

    def none_yet(self: Any, requester: Any, query: Any, occupancy: Any) -> Any:  # noqa: ANN401 (the product's)
        snap = occupancy.snapshot
        is_not_listed = not snap.pod_list.known
        if is_not_listed and not snap.schedulers.may_have_decided:
            return ()
        return pods_to_read(self, requester, query, occupancy)

    put(ContainerSearch, "_pods_to_read", none_yet)


def a_rejected_pod_is_taken_for_an_unseen_one() -> None:
    """As it was: a pod that an old kubelet lists after it has rejected it is the one that asks."""
    put(ContainerSearch, "_others_to_read", lambda *_, **__: set())


def a_known_name_is_of_the_pod_that_had_it() -> None:
    """As it was: if no known pod asks for an amount, none of their names is looked up again."""
    others_to_read = ContainerSearch._others_to_read  # noqa: SLF001 (the decision that is taken away)

    def without_known(self: Any, requester: Any, query: Any, snap: Any) -> Any:  # noqa: ANN401 (the product's)
        return set() if isinstance(requester, UnseenPod) else others_to_read(self, requester, query, snap)

    put(ContainerSearch, "_others_to_read", without_known)


def pods_of_a_plan_that_has_ended_start() -> None:
    """As it was: pods whose plan was written start, also if the plan has ended and none of them was bound."""
    missing = Job.missing

    def none_missing(self: Job, pod: PodFacts, of_others: str = "") -> str:
        return "" if pod.uid in self.members.start.uids else missing(self, pod, of_others)

    def may_start(self: Job) -> list[PodFacts]:
        if self.problem():
            return []
        waiting = self.members.to_place()
        if self.is_complete:
            return waiting
        return [pod for pod in waiting if pod.uid in self.members.start.uids]

    put(Job, "missing", none_missing)
    put(Job, "may_start", may_start)


def limits_that_a_claim_provides_count() -> None:
    """As it was: a pod's limits count as GPUs of a device plugin, also if kube-scheduler made a claim for them."""
    put(pod_facts, "_has_claim_for_limits", lambda _: False)


FAULTS = (
    a_list_that_has_failed_is_waited_for,
    a_rejected_pod_is_taken_for_an_unseen_one,
    a_known_name_is_of_the_pod_that_had_it,
    pods_of_a_plan_that_has_ended_start,
    limits_that_a_claim_provides_count,
)
