"""Faults of gpuscheduler's edges that are put back: its lease, its watches, its writers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuscheduler import app
from gpuscheduler.cluster_api import list_watch
from gpuscheduler.cluster_api.lease import Lease
from gpuscheduler.cluster_api.list_watch import ListWatch
from gpuscheduler.cluster_api.writes import BindResult, Writes
from gpuscheduler.core.bindings import Bindings
from gpuscheduler.core.calls import BindOutcome, BindWrite, Nudge
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.service import Service
from simworld.faults.replacing import put


def _a_new_leader_does_not_wait_for_its_watch() -> None:
    put(Service, "_is_behind", lambda _self: False)


def _calls_of_a_former_leader_are_answered() -> None:
    put(Lease, "problem", lambda _self: "")


def _a_broken_watch_is_not_noticed() -> None:
    put(app, "GAP_S", float("inf"))


def _gpuscheduler_reads_the_first_page_of_a_list() -> None:
    read_page = list_watch.list_page

    async def without_more(*args: Any) -> Any:  # noqa: ANN401 (a page)
        page, following = await read_page(*args)
        page.metadata.pop("continue", None)
        return page, following

    put(list_watch, "list_page", without_more)


def _a_lost_answer_to_a_binding_counts_as_a_refusal() -> None:
    bind = Writes.bind

    async def refused(self: Writes, write: BindWrite) -> BindResult:
        result = await bind(self, write)
        is_unknown = result.outcome is BindOutcome.UNKNOWN
        return replace(result, outcome=BindOutcome.REFUSED) if is_unknown else result

    put(Writes, "bind", refused)


def _a_binding_that_meets_a_conflict_counts_as_done() -> None:
    bind = Writes.bind

    async def bound(self: Writes, write: BindWrite) -> BindResult:
        result = await bind(self, write)
        is_conflict = result.outcome is BindOutcome.REFUSED
        return BindResult(BindOutcome.BOUND) if is_conflict else result

    put(Writes, "bind", bound)


def _the_plan_of_a_job_is_not_written() -> None:
    async def committed(_self: Writes, _action: object) -> bool:
        return True

    put(Writes, "commit", committed)


def _a_pod_is_bound_without_its_decision() -> None:
    create = Writes._bind  # noqa: SLF001 (the decision that is taken away)

    async def bind(self: Writes, write: BindWrite) -> bool:
        return await create(self, BindWrite(write.pod, write.uid, write.node, {}))

    put(Writes, "_bind", bind)


def _a_sent_binding_reserves_nothing() -> None:
    answered = Bindings.answered

    def end(self: Any, uid: str, pod: Any, outcome: BindOutcome) -> None:  # noqa: ANN401 (the product's)
        answered(self, uid, pod, outcome)
        self._reservations.end([uid])

    put(Bindings, "answered", end)


def _nobody_is_woken() -> None:
    add = Writes.add

    def add_others(self: Writes, action: Any) -> None:  # noqa: ANN401 (any action)
        if not isinstance(action, Nudge):
            add(self, action)

    put(Writes, "add", add_others)


def _pods_that_are_gone_stay_in_mind() -> None:
    put(Scheduling, "pod_gone", lambda *_: None)


def _a_new_list_drops_nothing() -> None:
    read_list = ListWatch._list  # noqa: SLF001 (the decision that is taken away)

    async def without_former(self: ListWatch) -> None:
        self._keys = set()
        await read_list(self)

    put(ListWatch, "_list", without_former)


SCHEDULER_FAULTS: dict[str, Callable[[], None]] = {
    work.__name__.removeprefix("_"): work
    for work in (
        _a_new_leader_does_not_wait_for_its_watch,
        _calls_of_a_former_leader_are_answered,
        _a_broken_watch_is_not_noticed,
        _gpuscheduler_reads_the_first_page_of_a_list,
        _a_lost_answer_to_a_binding_counts_as_a_refusal,
        _a_binding_that_meets_a_conflict_counts_as_done,
        _the_plan_of_a_job_is_not_written,
        _a_pod_is_bound_without_its_decision,
        _a_sent_binding_reserves_nothing,
        _nobody_is_woken,
        _pods_that_are_gone_stay_in_mind,
        _a_new_list_drops_nothing,
    )
}
"""By name, what puts each back."""
