"""The rules of the soak: noise breaks none of them, and each kind of growth breaks its own."""

from dataclasses import replace

import pytest

from bench.soak import MOST_MIB, Minute, broken, row


def minute(rss: float = 80.0, threads: int = 50, files: int = 30, ms: float = 20.0) -> Minute:
    """Threads and files go up and down: requests and watches come and go."""
    return Minute(
        admitted=500, ms=[ms, ms, ms * 9], rss_mib=[rss] * 60, threads=[threads, threads + 4], files=[files, files + 3]
    )


def test_a_run_without_growth_breaks_no_rule():
    rows = [minute(75), minute(78), *(minute(80 + n % 2) for n in range(18))]
    assert broken(rows) == []


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"rss": 83.0}, "memory grew from 80.0 MiB in minute 5 to 83.0"),
        ({"rss": MOST_MIB}, "resident memory was 96.0 MiB"),
        ({"threads": 51}, "threads: 50 in minute 5, 51"),
        ({"files": 31}, "open files: 30 in minute 5, 31"),
    ],
)
def test_each_growth_is_reported(last, expected):
    assert any(expected in text for text in broken([*(minute() for _ in range(10)), minute(**last)]))


def test_slower_admissions_are_reported():
    rows = [*(minute() for _ in range(10)), *(minute(ms=40) for _ in range(6))]
    assert broken(rows) == ["the median admission took 20.0 ms in the first half and 40.0 ms in the second"]


def test_too_few_pods_prove_nothing():
    assert broken([replace(minute(), admitted=250) for _ in range(10)]) == [
        "4.2 pods came each second, and 10 were wanted: the machine is too slow"
    ]


def test_a_minute_is_a_row():
    assert row(7, minute()).split()[:8] == ["7", "500", "0", "80.0", "50", "30", "20.0", "180"]


def test_two_minutes_prove_nothing():
    assert "too short" in broken([minute(), minute()])[0]
