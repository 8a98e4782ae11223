"""Shows reports: each replaces the last on a terminal; elsewhere they follow each other."""

from collections.abc import Callable, Sequence
from typing import TextIO

_TOP_AND_CLEAR = "\x1b[H\x1b[2J"


class Screen:
    """Shows a report whenever it differs from the last one.

    Args:
        stream: to write to.
        over: draw over the last report.
        now: returns the time for people, which is shown above each report.
        heading: the line above each report, with the time for ``{}``; "" for none, as in streams for programs.
    """

    def __init__(self, stream: TextIO, *, over: bool, now: Callable[[], str], heading: str) -> None:
        self._stream = stream
        self._over = over
        self._now = now
        self._heading = heading
        self._shown: list[str] | None = None

    def show(self, lines: Sequence[str]) -> None:
        if self._shown == list(lines):
            return
        self._shown = list(lines)
        head = [self._heading.format(self._now())] if self._heading else []
        between = _TOP_AND_CLEAR if self._over else ""
        self._stream.write(between + "\n".join((*head, *lines)) + "\n")
        self._stream.flush()
