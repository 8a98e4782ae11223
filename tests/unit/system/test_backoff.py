"""Delays double to the limit, are spread, and start small again."""

from gpuagent.system.backoff import Backoff


def test_doubles_to_the_limit_and_resets() -> None:
    backoff = Backoff(0.5, 30, spread=lambda: 0.5)
    assert [backoff.next_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_is_spread_by_a_quarter() -> None:
    assert Backoff(4, 30, spread=lambda: 0.0).next_s() == 3
    assert Backoff(4, 30, spread=lambda: 1.0).next_s() == 5
