"""Which known word was probably meant by a mistyped one."""

from collections.abc import Iterable
from difflib import get_close_matches

MISTYPED = 0.6
"""From this likeness on, one name may be a mistyped other one."""


def most_like(written: str, known: Iterable[str], least: float = MISTYPED) -> str:
    """The known name that is most like a written one; empty if none has at least this likeness, as difflib has it."""
    # Upper and lower case are often mistaken, and cost most of the likeness.
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(written.lower(), by_lower, n=1, cutoff=least)
    return by_lower[close[0]] if close else ""


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: what was probably meant; empty if it is like no known one."""
    meant = most_like(written, known)
    return f"; did you mean {meant}?" if meant else ""
