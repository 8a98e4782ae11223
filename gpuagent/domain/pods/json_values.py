"""Reads decoded JSON of other authors. Values that are absent or of another shape count as empty; nothing raises."""

from collections.abc import Iterator, Mapping
from typing import Any

_NOTHING: Mapping[str, Any] = {}


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NOTHING


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    """A whole number from 0 on; no boolean."""
    return value if type(value) is int and value >= 0 else None
