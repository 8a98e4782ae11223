"""Text for terminals, without control characters and characters that reorder a line."""

import json
from collections.abc import Sequence


def printable(text: str) -> str:
    """One line of `text`: white space becomes a space, and every other character that is not printable a mark."""
    if text.isprintable():
        return text
    return "".join(map(_printable_char, text))


def _printable_char(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"


def escaped(text: str) -> str:
    r"""`text` with ``\uXXXX`` for characters that are not printable: a JSON string keeps its value."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def error_words(error: object) -> str:
    """An error without its number, and with paths as people write them: ``/x: Permission denied``."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, as many as `most`, and how many more there are."""
    text = ", ".join(names[:most])
    rest = len(names) - most
    return f"{text} and {rest} more" if rest > 0 else text


def _escape(char: str) -> str:
    if char == "\x7f":
        return r"\u007f"  # JSON allows it as it is
    quoted = json.dumps(char)
    return quoted[1:-1]
