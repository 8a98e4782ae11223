"""Prepared claims are forgotten that are gone, and that kubelet does not unprepare."""

from typing import Any

import pytest

from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable
from gpuagent.kube.write.forgotten_claims import LOOKS, ForgottenClaims

CLAIM = PreparedClaim(uid="u", namespace="ml", name="c", layer="none", gpus=())
GONE = ApiError(404, "NotFound", "no such claim")


class Api:
    """Has the claim, until a test replaces what it answers."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | Exception = {"metadata": {"uid": "u"}}

    def get(self, path: str) -> dict[str, Any]:
        assert path.endswith("/namespaces/ml/resourceclaims/c")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Looking:
    def __init__(self) -> None:
        self.api, self.forgotten = Api(), list[str]()
        self.writer = ForgottenClaims(self.api, self.forgotten.append)  # type: ignore[arg-type]

    def look(self, times: int) -> None:
        self.writer.desire([CLAIM])
        for _ in range(times):
            self.writer.attempt(CLAIM)


@pytest.fixture
def one() -> Looking:
    return Looking()


@pytest.mark.parametrize("answer", [GONE, {"metadata": {"uid": "another"}}])
def test_a_claim_that_stays_gone_is_forgotten(one: Looking, answer: Any) -> None:  # noqa: ANN401 (JSON)
    one.api.answer = answer
    one.look(LOOKS - 1)
    assert not one.forgotten
    one.look(1)
    assert one.forgotten == ["u"]


def test_a_claim_that_is_there_is_kept(one: Looking) -> None:
    one.api.answer = GONE
    one.look(LOOKS - 1)
    one.api.answer = {"metadata": {"uid": "u"}}
    one.look(1)
    one.api.answer = GONE
    one.look(LOOKS - 1)
    assert not one.forgotten


def test_a_server_that_does_not_answer_says_nothing_of_a_claim(one: Looking) -> None:
    one.api.answer = ApiUnreachable("away")
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
