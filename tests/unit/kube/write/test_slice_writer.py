"""ResourceSlices are written, and the API server is asked which of their fields it keeps."""

from typing import Any

import pytest

from gpuagent.domain.reconcile.slice_probe import probe_spec
from gpuagent.domain.reconcile.slice_writes import SliceWrite
from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable, KubeError
from gpuagent.kube.write.keyed_reconciler import Outcome
from gpuagent.kube.write.slice_writer import SliceWriter

SPEC = probe_spec("n", counters=False)
PROBE = SliceWrite("n-probe", "probe", {"spec": SPEC})


class Api:
    """Answers a creation with this."""

    def __init__(self) -> None:
        self.answer: KubeError | dict[str, Any] = {"spec": SPEC}

    def create(self, path: str, _body: object) -> dict[str, Any]:
        assert path.endswith("/resourceslices?dryRun=All")
        if isinstance(self.answer, KubeError):
            raise self.answer
        return self.answer


class Probing:
    """A writer, and what the agent learns by it."""

    def __init__(self) -> None:
        self.api, self.answers = Api(), list[object]()
        self.writer = SliceWriter(self.api, on_probed=lambda _, stored: self.answers.append(stored))  # type: ignore[arg-type]


@pytest.fixture
def one() -> Probing:
    return Probing()


def test_what_is_stored_of_a_dry_run_is_the_answer(one: Probing) -> None:
    assert one.writer.attempt(PROBE) is Outcome.DONE
    assert one.answers == [SPEC]


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_a_dry_run_that_is_refused_is_an_answer_too(one: Probing, status: int) -> None:
    """The slices would wait for another one, which never comes. A refusal of theirs has a sentence of its own."""
    one.api.answer = ApiError(status, "Refused", "an admission webhook denied the request")
    assert one.writer.attempt(PROBE) is Outcome.DONE
    assert one.answers == [None]


@pytest.mark.parametrize("status", [404, 408, 429, 500, 503, 504])
def test_a_dry_run_that_may_succeed_later_is_tried_again(one: Probing, status: int) -> None:
    """404 may be of one API server of several, which is not upgraded yet."""
    one.api.answer = ApiError(status, "", "try again")
    with pytest.raises(ApiError):
        one.writer.attempt(PROBE)
    assert one.answers == []


def test_a_dry_run_without_an_answer_is_tried_again(one: Probing) -> None:
    one.api.answer = ApiUnreachable("a webhook is slow")
    with pytest.raises(ApiUnreachable):
        one.writer.attempt(PROBE)
    assert one.answers == []
