"""Text for terminals, without control characters and characters that reorder a line."""

import json


def printable(text: str) -> str:
    """One line of `text`: white space becomes a space, and every other character that is not printable a mark."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}" for one in text)


def escaped(text: str) -> str:
    r"""`text` with ``\uXXXX`` for characters that are not printable: a JSON string keeps its value."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def error_words(error: object) -> str:
    """An error without its number, and with paths as people write them: ``/x: Permission denied``."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else r"\u007f"
