"""Faults of claims that are put back into the product."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpuagent.domain.dra import ledger
from gpuagent.domain.dra.containers import environments, union, uses
from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.reconcile import slice_writes
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.state import State
from gpuagent.preparer import gpu_hold
from gpuagent.preparer.prepared_claims import PreparedClaims


def _f0_claims_get_gpus_that_others_have() -> None:
    _set(gpu_hold, "conflict", lambda *_: None)


def _f1_dropped_fields_are_sent_again() -> None:
    _set(Claims, "_answered", lambda self, _event: self)
    _set(Claims, "_probed", lambda self, _event: replace(self, probes=False, probed=True))
    _set(slice_writes, "_is_answered", lambda *_: False)


def _claims_get_gpus_of_units() -> None:
    _set(PreparedClaims, "check_other_front_end", lambda *_: None)
    _set(State, "barred_to_claims", property(lambda _self: {}))


def _claims_are_never_unprepared() -> None:
    _set(PreparedClaims, "remove", lambda *_: None)


def _a_container_gets_all_requests_of_its_claim() -> None:
    def parts(self: uses.ClaimUses, names: Iterable[uses.Named]) -> Iterator[uses.Part]:
        for named in names:
            for place, _ in enumerate(self.claims[named.claim].gpus):
                yield uses.Part(named.claim, place)

    _set(uses.ClaimUses, "_parts", parts)


def _a_monitor_counts_as_use() -> None:
    _set(PreparedClaim, "used", property(lambda self: self.gpus))


def _compute_of_claims_is_not_compared() -> None:
    _set(ledger, "CORE_PERCENT_PER_GPU", 100_000)


def _two_shares_of_a_gpu_are_not_added() -> None:
    _set(union, "_sum", lambda _first, second: second)


def _mixed_up_variables_are_not_refused() -> None:
    _set(environments, "_check", lambda *_: None)


def _set(owner: Any, name: str, value: Any) -> None:  # noqa: ANN401 (any module or class)
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: the fault has to be put back in another place")
    setattr(owner, name, value)


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
    )
}
"""By name, what puts each back. The first two were in the product once."""
