"""Faults of claims that are put back into the product."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpuagent.domain.dra import gpu_sets, ledger, prepare, resource_slice
from gpuagent.domain.dra.containers import environments, union, uses
from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.reconcile import slice_writes
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.state import State
from gpuagent.preparer import gpu_hold
from gpuagent.preparer.prepared_claims import PreparedClaims
from simworld.faults.replacing import put


def _f0_claims_get_gpus_that_others_have() -> None:
    put(gpu_hold, "conflict", lambda *_: None)


def _f1_dropped_fields_are_sent_again() -> None:
    put(Claims, "_answered", lambda self, _event: self)
    put(Claims, "_probed", lambda self, _event: replace(self, probes=False, probed=True))
    put(slice_writes, "_is_answered", lambda *_: False)


def _claims_get_gpus_of_units() -> None:
    put(PreparedClaims, "check_other_front_end", lambda *_: None)
    put(State, "barred_to_claims", property(lambda _self: {}))


def _claims_are_never_unprepared() -> None:
    put(PreparedClaims, "remove", lambda *_: None)


def _a_container_gets_all_requests_of_its_claim() -> None:
    def parts(self: uses.ClaimUses, names: Iterable[uses.Named]) -> Iterator[uses.Part]:
        for named in names:
            for place, _ in enumerate(self.claims[named.claim].gpus):
                yield uses.Part(named.claim, place)

    put(uses.ClaimUses, "_parts", parts)


def _a_monitor_counts_as_use() -> None:
    put(PreparedClaim, "used", property(lambda self: self.gpus))


def _compute_of_claims_is_not_compared() -> None:
    put(ledger, "CORE_PERCENT_PER_GPU", 100_000)


def _two_shares_of_a_gpu_are_not_added() -> None:
    put(union, "_sum", lambda _first, second: second)


def _mixed_up_variables_are_not_refused() -> None:
    put(environments, "_check", lambda *_: None)


def _a_claim_for_a_set_gets_its_first_gpu() -> None:
    members = prepare._members  # noqa: SLF001 (the decision that is taken away)
    put(prepare, "_members", lambda device, gpus: members(device, gpus)[:1])


def _all_gpus_are_in_one_domain() -> None:
    put(resource_slice._Devices, "_domain", lambda *_: "linked")  # noqa: SLF001 (the same)


def _sets_without_links_are_published() -> None:
    put(gpu_sets, "_is_linked", lambda *_: True)


def _sets_of_lost_gpus_have_no_taint() -> None:
    device_of = resource_slice._Devices._set  # noqa: SLF001 (the same)

    def without_taints(*given: Any) -> Any:  # noqa: ANN401 (the devices of a node, and a set)
        device = device_of(*given)
        device.pop("taints", None)
        return device

    put(resource_slice._Devices, "_set", without_taints)  # noqa: SLF001 (the same)


def _a_set_uses_the_counter_of_one_gpu() -> None:
    consumed = resource_slice._consumed  # noqa: SLF001 (the same)
    put(resource_slice, "_consumed", lambda uuids: consumed(list(uuids)[:1]))


def _sets_are_published_without_counters() -> None:
    put(resource_slice._Devices, "_keeps_counters", property(lambda _self: True))  # noqa: SLF001 (the same)


def _gpus_of_claims_are_offered_as_units() -> None:
    put(Claims, "held", property(lambda _self: frozenset()))


def _sets_of_claims_are_left_out() -> None:
    put(resource_slice._Devices, "claimed_sets", property(lambda _self: {}))  # noqa: SLF001 (the same)


def _gpus_use_counters_that_are_not_there() -> None:
    device_of = resource_slice._Devices._gpu  # noqa: SLF001 (the same)

    def with_counter(devices: Any, gpu: Any) -> Any:  # noqa: ANN401 (the devices of a node, and a GPU)
        device = device_of(devices, gpu)
        if devices.offers_sets:
            device["consumesCounters"] = [resource_slice._consumed([gpu.uuid])]  # noqa: SLF001 (the same)
        return device

    put(resource_slice._Devices, "_gpu", with_counter)  # noqa: SLF001 (the same)


def _gpus_that_need_a_taint_are_published_without_it() -> None:
    put(resource_slice, "left_out", lambda _state: [])


def _answers_do_not_show_that_a_gate_is_off() -> None:
    answered = Claims._answered  # noqa: SLF001 (the same)
    put(Claims, "_answered", lambda self, event: replace(answered(self, event), gates_off=self.gates_off))


def _gpus_are_not_looked_at_again_after_a_wait() -> None:
    put(gpu_hold, "unusable_gpu", lambda *_, **__: None)


def _a_claim_does_not_keep_a_fenced_gpu() -> None:
    put(PreparedClaims, "kept_by", lambda *_: frozenset())


CLAIM_FAULTS: dict[str, Callable[[], None]] = {
    work.__name__.removeprefix("_"): work
    for work in (
        _f0_claims_get_gpus_that_others_have,
        _f1_dropped_fields_are_sent_again,
        _claims_get_gpus_of_units,
        _claims_are_never_unprepared,
        _a_container_gets_all_requests_of_its_claim,
        _a_monitor_counts_as_use,
        _compute_of_claims_is_not_compared,
        _two_shares_of_a_gpu_are_not_added,
        _mixed_up_variables_are_not_refused,
        _a_claim_for_a_set_gets_its_first_gpu,
        _all_gpus_are_in_one_domain,
        _sets_without_links_are_published,
        _sets_of_lost_gpus_have_no_taint,
        _a_set_uses_the_counter_of_one_gpu,
        _sets_are_published_without_counters,
        _gpus_of_claims_are_offered_as_units,
        _sets_of_claims_are_left_out,
        _gpus_use_counters_that_are_not_there,
        _gpus_that_need_a_taint_are_published_without_it,
        _answers_do_not_show_that_a_gate_is_off,
        _gpus_are_not_looked_at_again_after_a_wait,
        _a_claim_does_not_keep_a_fenced_gpu,
    )
}
"""By name, what puts each back. The first two were in the product once."""
