"""Reads decoded JSON of other authors. Values that are absent or of another shape count as empty; nothing raises."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_SENTENCE = 2048
"""Characters of a sentence that are shown. Kubernetes sets no limit to messages of pods, nodes and workloads."""
_NOTHING: Mapping[str, Any] = {}


def decoded(value: object) -> Any:  # noqa: ANN401 (whatever the text has)
    """The value of a JSON text; None if `value` is not one."""
    if not isinstance(value, str):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NOTHING


def mapping_at(value: object, *keys: str) -> Mapping[str, Any]:
    """The object below these keys, each inside the one before."""
    for key in keys:
        value = mapping(value).get(key)
    return mapping(value)


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list."""
    if not isinstance(value, list):
        return iter(())
    return (item for item in value if isinstance(item, dict))


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def sentence(value: object, most: int = _MOST_SENTENCE) -> str:
    """A text for people. Of one that is longer than `most` characters, the beginning, and how long it is."""
    whole = text(value)
    if len(whole) <= most:
        return whole
    return f"{whole[:most]}… (cut: it has {len(whole)} characters)"


def number(value: object) -> int | None:
    """A whole number from 0 on; no boolean."""
    # The type itself is compared, because True is an int, too.
    if type(value) is not int:
        return None
    return value if value >= 0 else None
