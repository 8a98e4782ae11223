"""A core as a text: equal for cores that behave alike, so that a search takes worlds for one that differ in names only.

Everything that a core keeps is in the text, also what it has worked out and the order of its dictionaries. So two cores
with one text cannot differ in what they do next; two with different texts may still be alike, which costs time only.
Moments are written by their order and by whole seconds before or after the core's now: no decision depends on more.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from simworld.small.slots import slots_of

EARLIEST = 1_000_000.0
"""Moments of a small world are later than this, so that no other number looks like one."""
_MOMENT = "\x01{:.6f}\x01"

_texts: dict[int, tuple[object, str]] = {}
"""Texts of frozen values by identity, and the values, so that none of them is collected and its identity used again."""


def text_of(root: object) -> str:
    """The text of a core with its moments still in it, see `with_moments`."""
    return "".join(_Writing().write(root))


def with_moments(text: str, now: float) -> str:
    """The text with each moment as its place among all of them, and its distance from now in seconds."""
    pieces = text.split("\x01")
    moments = sorted({float(piece) for piece in pieces[1::2]})
    places = {moment: f"<{place}:{round(moment - now)}>" for place, moment in enumerate(moments)}
    pieces[1::2] = [places[float(piece)] for piece in pieces[1::2]]
    return "".join(pieces)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with other names, all at once, so that two may change places."""
    changed = {former: name for former, name in names.items() if former != name and former in text}
    if not changed:
        return text
    for number, former in enumerate(changed):
        text = text.replace(former, f"\x02{number}\x02")
    for number, name in enumerate(changed.values()):
        text = text.replace(f"\x02{number}\x02", name)
    return text


class _Writing:
    """One text. An object that is reached again is written as its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def write(self, value: Any) -> Iterator[str]:  # noqa: ANN401, C901 (one case for each type)
        match value:
            case str():
                yield repr(value)
            case Enum():
                yield str(value)
            case bool() | None | bytes():
                yield repr(value)
            case float():
                yield _MOMENT.format(value) if EARLIEST <= value < float("inf") else repr(value)
            case int() | np.generic():
                yield repr(value)
            case set() | frozenset():
                texts = sorted("".join(self.write(item)) for item in value)
                yield "{" + ",".join(texts) + "}"
            case FunctionType() | BuiltinFunctionType():
                yield value.__qualname__
            case type():
                yield value.__qualname__
            case _ if _is_frozen(value):
                yield self._frozen(value)
            case tuple():
                yield "("
                for item in value:
                    yield from self.write(item)
                    yield ","
                yield ")"
            case _:
                yield from self._changing(value)

    def _frozen(self, value: Any) -> str:  # noqa: ANN401
        known = _texts.get(id(value))
        if known is not None:
            return known[1]
        pieces = [type(value).__name__, "("]
        for name in _compared(type(value)):
            pieces.extend(self.write(getattr(value, name)))
            pieces.append(",")
        text = "".join([*pieces, ")"])
        _texts[id(value)] = value, text
        return text

    def _changing(self, value: Any) -> Iterator[str]:  # noqa: ANN401
        number = self._numbers.get(id(value))
        if number is not None:
            yield f"@{number}"
            return
        self._numbers[id(value)] = len(self._numbers)
        yield type(value).__name__
        match value:
            case dict():
                yield "{"
                for key, item in value.items():
                    yield from self.write(key)
                    yield ":"
                    yield from self.write(item)
                    yield ","
                yield "}"
            case np.ndarray():
                yield repr(value.tolist())
            case itertools.count():
                yield repr(value)
            case MethodType():
                yield value.__func__.__qualname__
                yield from self.write(value.__self__)
            case partial():
                yield from self.write((value.func, value.args, tuple(value.keywords.items())))
            case list() | deque():
                yield "["
                for item in value:
                    yield from self.write(item)
                    yield ","
                yield "]"
            case _:
                yield from self._object(value)

    def _object(self, value: Any) -> Iterator[str]:  # noqa: ANN401
        yield "("
        for name in slots_of(type(value)):
            if hasattr(value, name):
                yield f"{name}="
                yield from self.write(getattr(value, name))
                yield ","
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{name}="
            yield from self.write(item)
            yield ","
        yield ")"


_FROZEN: dict[type, bool] = {}
_FIELDS: dict[type, tuple[str, ...]] = {}


def _is_frozen(value: object) -> bool:
    kind = type(value)
    if kind not in _FROZEN:
        _FROZEN[kind] = is_dataclass(kind) and bool(vars(kind)["__dataclass_params__"].frozen)
    return _FROZEN[kind]


def _compared(kind: type) -> tuple[str, ...]:
    """The fields of a frozen value that tell it from others: what it has worked out follows from these."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(field.name for field in fields(kind) if field.compare)
    return _FIELDS[kind]
