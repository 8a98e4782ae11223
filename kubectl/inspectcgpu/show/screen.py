"""Where reports go: drawn over each other on a terminal, one after the other elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

_TOP_AND_CLEAR = "\x1b[H\x1b[2J"


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal, unless NO_COLOR is set or the terminal is a dumb one."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Screen:
    """Shows a report whenever it is another than before.

    Args:
        stream: to write to.
        over: draw over what was there.
        now: the time as people read it, which stands above each report.
        heading: what stands there, with the time for ``{}``; "" for nothing, as in streams for programs.
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
