"""Prepared claims are forgotten that are gone, and that kubelet does not unprepare."""

from typing import Any

import pytest

from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable
from gpuagent.kube.write.forgotten_claims import LOOKS, ForgottenClaims
from tests.unit.domain.builders import box
from tests.unit.domain.dra.prepared_claims import prepared

CLAIM = prepared("c", box(1)[0])
GONE = ApiError(404, "NotFound", "no such claim")


def claim_json(uid: str = CLAIM.uid, device: str = CLAIM.gpus[0].device, pool: str = "n") -> dict[str, Any]:
    results = [{"driver": DRA_DRIVER, "pool": pool, "device": device}]
    return {"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": results}}}}


OTHERS = [
    GONE,
    claim_json(uid="another"),
    claim_json(device="gpu-other"),
    claim_json(pool="m"),
    {"metadata": {"uid": CLAIM.uid}},
]
"""Answers of which none has the claim with its devices."""


class Api:
    """Has the claim, until a test replaces what it answers."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | Exception = claim_json()

    def get(self, path: str, _keep: object = None) -> dict[str, Any]:
        assert path.endswith("/namespaces/ml/resourceclaims/c")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Looking:
    """`kubelets` are the claims in kubelet's state; None if it cannot be read."""

    def __init__(self) -> None:
        self.api, self.forgotten = Api(), list[str]()
        self.kubelets: frozenset[str] | None = None
        self.writer = ForgottenClaims(self.api, self.forgotten.append, lambda: self.kubelets)  # type: ignore[arg-type]

    def look(self, times: int) -> None:
        self.writer.desire([CLAIM])
        for _ in range(times):
            self.writer.attempt(CLAIM)


@pytest.fixture
def one() -> Looking:
    return Looking()


@pytest.mark.parametrize("answer", OTHERS)
def test_a_claim_that_stays_gone_is_forgotten(one: Looking, answer: Any) -> None:  # noqa: ANN401 (JSON)
    one.api.answer = answer
    one.look(LOOKS - 1)
    assert not one.forgotten
    one.look(1)
    assert one.forgotten == [CLAIM.uid]


@pytest.mark.parametrize("answer", OTHERS)
def test_a_claim_that_kubelet_does_not_have_either_is_forgotten_at_once(one: Looking, answer: Any) -> None:  # noqa: ANN401 (JSON)
    one.api.answer, one.kubelets = answer, frozenset({"another"})
    assert one.writer.is_forgotten(CLAIM)
    one.look(1)
    assert one.forgotten == [CLAIM.uid]


@pytest.mark.parametrize("kubelets", [None, frozenset({CLAIM.uid})])
def test_a_claim_that_kubelet_may_have_is_not_forgotten(one: Looking, kubelets: frozenset[str] | None) -> None:
    """Its container may still run: the pod was deleted by force."""
    one.api.answer, one.kubelets = GONE, kubelets
    assert not one.writer.is_forgotten(CLAIM)
    one.look(1)
    assert not one.forgotten


def test_a_claim_that_is_there_is_kept(one: Looking) -> None:
    one.api.answer = GONE
    one.look(LOOKS - 1)
    one.api.answer, one.kubelets = claim_json(), frozenset()
    assert not one.writer.is_forgotten(CLAIM)
    one.look(1)
    one.api.answer, one.kubelets = GONE, None
    one.look(LOOKS - 1)
    assert not one.forgotten


def test_a_server_that_does_not_answer_says_nothing_of_a_claim(one: Looking) -> None:
    one.api.answer, one.kubelets = ApiUnreachable("away"), frozenset()
    assert not one.writer.is_forgotten(CLAIM)
    for _ in range(2 * LOOKS):
        with pytest.raises(ApiUnreachable):
            one.look(1)
    assert not one.forgotten


def test_looks_count_in_a_row(one: Looking) -> None:
    """A pod has it again, or kubelet did not answer."""
    one.api.answer = GONE
    one.look(LOOKS - 1)
    one.writer.desire([])
    one.look(LOOKS - 1)
    assert not one.forgotten
