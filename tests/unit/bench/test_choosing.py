"""What the questions of the benchmark are, and that a wrong answer to one ends it."""

import pytest

from bench.node import BenchError
from bench.placement import choosing
from gpuagent.domain.placement.best_sets import BestSets


def test_every_free_set_is_asked_for_every_size():
    asked = list(choosing.questions(4))
    assert len(asked) == len(set(asked)) == 4 * 2**3
    assert all(1 <= size <= len(free) for free, size in asked)


def test_a_sample_is_the_same_every_time_and_of_those_questions():
    asked = list(choosing.questions(5, 50))
    assert asked == list(choosing.questions(5, 50))
    assert set(asked) <= set(choosing.questions(5))


def test_answers_are_compared_with_trying_every_set():
    assert choosing.compare(30) == 30


def test_a_wrong_answer_ends_the_measurement_and_is_shown(monkeypatch):
    monkeypatch.setattr(BestSets, "choose", lambda _self, free, size, _must: tuple(free)[-size:])
    with pytest.raises(BenchError, match="trying every set finds"):
        choosing.compare(30)
