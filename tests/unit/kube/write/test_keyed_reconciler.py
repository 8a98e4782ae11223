"""Each key gets its desired value, with delays of its own; an unreachable server delays all keys, until it is seen."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from gpuagent.kube.api.api_errors import ApiError, ApiStarting, ApiUnreachable, KubeError
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome
from gpuagent.system.backoff import Backoff
from standin.waiting import PATIENCE_S

AT_ONCE = partial(Backoff, 0.0, 0.0)
NEVER = partial(Backoff, 3600.0, 3600.0)


class Value(NamedTuple):
    name: Any
    text: str


class Objects(KeyedReconciler[Value]):
    """Objects by name. An attempt has the outcome that a test sets for the name, or raises it."""

    def __init__(self, delays: Delays) -> None:
        self.problems: list[str | None] = []
        self.attempts: list[Value] = []
        self.outcomes: dict[Any, Outcome | Exception] = {}
        self.during: Callable[[], object] = lambda: None
        self._changed = threading.Condition()
        super().__init__("kube-objects", delays, self.problems.append)

    def key(self, value: Value) -> Any:
        return value.name

    def attempt(self, value: Value) -> Outcome:
        self.during()
        with self._changed:
            self.attempts.append(value)
            self._changed.notify_all()
        outcome = self.outcomes.get(value.name, Outcome.DONE)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def describe(self, value: Value, err: KubeError) -> str:
        return f"{value.name}: {err}"

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.attempts) >= count, PATIENCE_S), self.attempts


@pytest.fixture
def make() -> Iterator[Callable[..., Objects]]:
    made: list[Objects] = []

    def make(**delays: Any) -> Objects:
        made.append(Objects(Delays(**{"backoff": AT_ONCE, "pace": AT_ONCE, **delays})))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop(PATIENCE_S)


def refusal(text: str = "no") -> ApiError:
    return ApiError(403, "Forbidden", text, text)


def test_each_value_is_attempted_once(make: Callable[..., Objects]) -> None:
    objects = make()
    first = [Value("a", "1"), Value("b", "1")]
    objects.desire(first)
    assert objects.flush(PATIENCE_S)
    objects.desire([Value("a", "1"), Value("b", "2")])
    assert objects.flush(PATIENCE_S)
    assert objects.attempts == [*first, Value("b", "2")]
    assert objects.problems == []


def test_of_two_values_with_one_key_the_last_counts(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.desire([Value("a", "1"), Value("a", "2")])
    assert objects.flush(PATIENCE_S)
    assert objects.attempts == [Value("a", "2")]


def test_another_value_of_a_key_waits_for_its_pace_and_other_keys_do_not(make: Callable[..., Objects]) -> None:
    objects = make(pace=NEVER)
    objects.desire([Value("a", "1")])
    assert objects.flush(PATIENCE_S)
    objects.desire([Value("a", "2"), Value("b", "1")])
    objects.wait(2)
    assert objects.attempts == [Value("a", "1"), Value("b", "1")]
    assert not objects.flush(0.0)


def test_a_key_that_comes_back_keeps_its_pace(make: Callable[..., Objects]) -> None:
    objects = make(pace=NEVER)
    objects.desire([Value("a", "1")])
    assert objects.flush(PATIENCE_S)
    objects.desire([])
    objects.desire([Value("a", "1"), Value("b", "1")])
    objects.wait(2)
    assert objects.attempts == [Value("a", "1"), Value("b", "1")]


def test_a_refused_key_delays_no_other(make: Callable[..., Objects]) -> None:
    objects = make(backoff=NEVER)
    objects.outcomes["a"] = refusal()
    objects.desire([Value(name, "1") for name in "abc"])
    objects.wait(3)
    assert [value.name for value in objects.attempts] == ["a", "b", "c"]
    objects.desire([Value("a", "2"), Value("d", "1")])
    objects.wait(4)
    assert objects.attempts[-1] == Value("d", "1"), "another value does not shorten the delay"


def test_a_refused_key_is_attempted_until_it_is_done(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = refusal()
    objects.desire([Value("a", "1")])
    objects.wait(4)
    assert not objects.flush(0.0)
    objects.outcomes.clear()
    assert objects.flush(PATIENCE_S)
    assert objects.problems == ["a: no", None]
    assert objects.problem == ""


def test_all_keys_wait_for_a_server_that_cannot_be_reached_until_it_is_seen(make: Callable[..., Objects]) -> None:
    objects = make(backoff=NEVER)
    objects.outcomes["a"] = ApiUnreachable("no answer")
    objects.desire([Value("a", "1"), Value("b", "1")])
    objects.wait(1)
    assert not objects.flush(0.05)
    assert objects.attempts == [Value("a", "1")]
    objects.outcomes.clear()
    objects.nudge()
    assert objects.flush(PATIENCE_S)
    assert sorted(objects.attempts) == [Value("a", "1"), Value("a", "1"), Value("b", "1")]
    assert objects.problems == ["a: no answer", None]


def test_a_server_that_has_not_read_its_roles_is_asked_again_and_is_no_problem(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = ApiStarting()
    objects.desire([Value("a", "1")])
    objects.wait(3)
    objects.outcomes.clear()
    assert objects.flush(PATIENCE_S)
    assert objects.problems == []


def test_a_nudge_does_not_shorten_the_delay_of_a_refused_key(make: Callable[..., Objects]) -> None:
    objects = make(backoff=NEVER)
    objects.outcomes["a"] = refusal()
    objects.desire([Value("a", "1")])
    objects.wait(1)
    objects.nudge()
    assert not objects.flush(0.05)
    assert objects.attempts == [Value("a", "1")]


def test_the_same_key_is_reported_as_long_as_it_fails(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes = {"a": refusal(), "b": refusal()}
    objects.desire([Value("a", "1"), Value("b", "1")])
    objects.wait(6)
    del objects.outcomes["a"]
    objects.desire([Value("b", "1")])
    objects.outcomes["b"] = refusal("never")
    objects.wait(len(objects.attempts) + 2)
    objects.outcomes.clear()
    assert objects.flush(PATIENCE_S)
    assert objects.problems == ["a: no", "b: no", "b: never", None]


def test_a_problem_ends_with_the_value_that_had_it(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = refusal()
    objects.desire([Value("a", "1")])
    objects.wait(2)
    objects.desire([])
    assert objects.problems == ["a: no", None]
    assert objects.flush(PATIENCE_S)


def test_an_outdated_value_waits_for_the_next_one(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = Outcome.OUTDATED
    objects.desire([Value("a", "1")])
    objects.wait(1)
    objects.desire([Value("a", "1"), Value("b", "1")])
    objects.wait(2)
    assert objects.attempts == [Value("a", "1"), Value("b", "1")]
    assert not objects.flush(0.0)
    objects.outcomes.clear()
    objects.desire([Value("a", "2"), Value("b", "1")])
    assert objects.flush(PATIENCE_S)
    assert objects.attempts[2:] == [Value("a", "2")]
    assert objects.problems == []


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_recheck_attempts_the_same_value_again(make: Callable[..., Objects], outcome: Outcome) -> None:
    objects = make(recheck_s=0.01)
    objects.outcomes["a"] = outcome
    objects.desire([Value("a", "1")])
    objects.wait(3)
    assert set(objects.attempts) == {Value("a", "1")}


def test_a_value_that_is_desired_during_an_attempt_is_not_lost(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.during = lambda: objects.desire([Value("a", "2")])
    objects.desire([Value("a", "1")])
    assert objects.flush(PATIENCE_S)
    assert objects.attempts == [Value("a", "1"), Value("a", "2")]


def test_a_failure_of_a_value_that_is_withdrawn_during_the_attempt_is_no_problem(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = refusal()
    objects.during = lambda: objects.desire([])
    objects.desire([Value("a", "1")])
    assert objects.flush(PATIENCE_S)
    assert objects.attempts == [Value("a", "1")]
    assert objects.problems == []


def test_a_bug_does_not_end_the_thread(make: Callable[..., Objects]) -> None:
    objects = make()
    objects.outcomes["a"] = RuntimeError("a bug")
    objects.desire([Value("a", "1"), Value("b", "1")])
    objects.wait(4)
    objects.outcomes.clear()
    assert objects.flush(PATIENCE_S)
    assert objects.problems == ["a: RuntimeError: a bug", None]


def test_keys_of_yesterday_are_forgotten(make: Callable[..., Objects]) -> None:
    class Name:
        pass

    objects, name = make(quiet_s=0.0), Name()
    objects.desire([Value(name, "1")])
    assert objects.flush(PATIENCE_S)
    objects.desire([])
    objects.attempts.clear()
    left = weakref.ref(name)
    del name
    objects.desire([Value("last", "1")])
    assert objects.flush(PATIENCE_S)  # the thread has let go of the key as well
    gc.collect()
    assert left() is None


def test_a_silent_server_does_not_delay_the_stop(make: Callable[..., Objects]) -> None:
    objects, began, answer = make(), threading.Event(), threading.Event()
    objects.during = lambda: (began.set(), answer.wait(PATIENCE_S))
    objects.desire([Value("a", "1")])
    assert began.wait(PATIENCE_S)
    objects.stop(0.0)
    assert objects.attempts == [], "the request has no answer yet"
    answer.set()


def test_stop_before_start_is_harmless() -> None:
    Objects(Delays()).stop()
