"""Faults of claims that are put back into the product."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.reconcile import slice_writes
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
    )
}
"""By name, what puts each back. The first two were in the product once."""
