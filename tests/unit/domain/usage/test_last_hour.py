"""The last hour of a GPU: a mean for each minute, gaps where nobody held it, and a bounded size."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.status.hour_page import hour_page
from gpuagent.domain.usage.last_hour import MINUTES, GpuReading, LastHour


def hour(*readings):
    """After readings at these seconds."""
    last_hour = LastHour()
    for at, memory, busy in readings:
        last_hour = last_hour.next({"u": GpuReading(memory, busy)}, at)
    return last_hour


def shown(last_hour, at):
    return hour_page(last_hour, at)["gpus"].get("u")


def test_a_minute_is_the_mean_of_its_readings():
    last_hour = hour((600, 0.5, 0.0), (610, 1.0, 0.5), (650, 0.0, 1.0))
    assert shown(last_hour, 659) == {"memory": [], "busy": []}, "the minute is not over"
    assert shown(last_hour, 660) == {"memory": [50.0], "busy": [50.0]}


def test_minutes_without_a_reading_are_gaps_also_since_the_last_one():
    last_hour = hour((0, 0.1, 0.2), (180, 0.3, 0.4))
    assert shown(last_hour, 300) == {"memory": [10.0, None, None, 30.0, None], "busy": [20.0, None, None, 40.0, None]}


def test_what_the_driver_does_not_report_is_a_gap():
    assert shown(hour((0, None, 0.5)), 60) == {"memory": [None], "busy": [50.0]}


def test_a_reading_beyond_the_memory_of_the_gpu_counts_as_all_of_it():
    assert shown(hour((0, 1.2, -0.1)), 60) == {"memory": [100.0], "busy": [0.0]}


def test_only_an_hour_is_kept():
    last_hour = hour(*((60 * minute, minute / 1000, 0.0) for minute in range(200)))
    found = shown(last_hour, 60 * 200)
    assert len(found["memory"]) == MINUTES
    assert (found["memory"][0], found["memory"][-1]) == (14.0, 20.0)


def test_a_gpu_that_nobody_has_held_for_an_hour_is_forgotten():
    last_hour = hour((0, 0.5, 0.5))
    assert shown(last_hour, 60 * MINUTES) is not None
    assert shown(last_hour, 60 * (MINUTES + 1)) is None
    assert not last_hour.next({}, 60 * (MINUTES + 1)).by_uuid
    assert last_hour.next({}, 60 * MINUTES).by_uuid


def test_a_long_pause_is_no_work():
    last_hour = hour((0, 0.5, 0.5), (1e12, 0.5, 0.5))
    assert shown(last_hour, 1e12 + 60) == {"memory": [None] * 59 + [50.0], "busy": [None] * 59 + [50.0]}


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 1), st.floats(0, 1)), max_size=200))
def test_it_stays_small_whatever_comes(steps):
    at = 0.0
    last_hour = LastHour()
    for seconds, memory, busy in steps:
        at += seconds
        last_hour = last_hour.next({"u": GpuReading(memory, busy)}, at)
    for of_gpu in last_hour.by_uuid.values():
        assert len(of_gpu.memory) == len(of_gpu.busy) <= MINUTES
        assert sys.getsizeof(of_gpu.memory) + sys.getsizeof(of_gpu.busy) < 300
