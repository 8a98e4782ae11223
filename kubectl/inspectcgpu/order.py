"""The order of what is listed, by a column."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Value = str | float | None
"""What stands in a column; None for what is not known."""


def in_order(listed: Iterable[T], value_of: Callable[[T], Value]) -> tuple[T, ...]:
    """Texts from A, numbers from the largest, what is not known last. Equal ones keep the order that they have."""
    return tuple(sorted(listed, key=lambda thing: _place(value_of(thing))))


def _place(value: Value) -> tuple[bool, float, str]:
    if isinstance(value, str):
        return (False, 0.0, value)
    return (value is None, -(value or 0.0), "")
