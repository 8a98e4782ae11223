"""Capped exponential delays with jitter."""

import random
from collections.abc import Callable


class Backoff:
    """Delays in seconds: ``first_s``, then doubling to ``limit_s``, each spread by a quarter either way.

    Args:
        first_s: the first delay after ``reset``.
        limit_s: the longest delay before the spread.
        spread: returns a number in [0, 1); it keeps the agents of all nodes from retrying at the same time.
    """

    def __init__(
        self, first_s: float = 0.5, limit_s: float = 30.0, spread: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._spread = spread
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now, and make the following delay longer."""
        delay_s = self._next_s
        self._next_s = min(self._limit_s, delay_s * 2)
        return delay_s * (0.75 + self._spread() / 2)

    def reset(self) -> None:
        """Start with the first delay again, after a success."""
        self._next_s = self._first_s
