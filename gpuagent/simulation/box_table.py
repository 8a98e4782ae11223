"""A table of a box file, read strictly."""

import re
from collections.abc import Iterable
from typing import Any

BUS_ID = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0")


class BoxError(ValueError):
    """A box cannot be used: unknown name, malformed file, impossible contents."""


_REQUIRED = object()


class BoxTable:
    """A TOML table that is emptied key by key, each of a certain type; nothing may be left."""

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, dict):
            raise BoxError(f"{where}: must be a table")
        self.where = where
        self._values = dict(values)

    def take(self, key: str, kind: type, default: object = _REQUIRED) -> Any:
        value = self._values.pop(key, default)
        if value is _REQUIRED:
            raise BoxError(f"{self.where}: {key} is missing")
        is_default = value is default
        # Not isinstance: for Python, true and false are numbers.
        if not is_default and type(value) is not kind:
            raise BoxError(f"{self.where}: {key} must be {kind.__name__}, not {value!r}")
        return value

    def items(self, key: str, kind: type, default: object = _REQUIRED) -> list[Any]:
        values: list[Any] = self.take(key, list, default)
        for value in values:
            if type(value) is not kind:
                raise BoxError(f"{self.where}: {key} must be a list of {kind.__name__}, not {value!r}")
        return values

    def check(self, key: str, texts: Iterable[str], pattern: re.Pattern[str]) -> None:
        """Check that every text of `key` matches `pattern`. Raises BoxError."""
        for text in texts:
            if not pattern.fullmatch(text):
                raise BoxError(f"{self.where}: {key}: {text!r} is not like {pattern.pattern}")

    def end(self) -> None:
        if self._values:
            raise BoxError(f"{self.where}: unknown key {min(self._values)!r}")
