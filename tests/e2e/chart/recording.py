"""A recording of a terminal, as asciinema's version 2 has it, of commands that ran and what they printed."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS, ROWS = 100, 32
KEY_S = 0.012
"""Between two keys of a command."""
LINE_S = 0.06
READING_S = 1.2
"""After what a command printed."""
WAITING = ("kubectl wait", "kubectl -n kube-system rollout")
"""Commands whose many equal lines say nothing: the last one is shown."""


@dataclass(slots=True)
class Recording:
    """The times are those of a person who types and reads, not those of the machine that ran the commands."""

    file: Path
    _at: float = 0.5
    _events: list[tuple[float, str, str]] = field(default_factory=list)

    def add(self, command: str, printed: str) -> None:
        """A command and its output."""
        typed = re.sub(r" +# .*$", "", command, flags=re.MULTILINE).replace("\\\n", "\\\r\n>")
        self._show("\x1b[1;32m$\x1b[0m ", 0.2)
        for key in typed:
            self._show(key, KEY_S)
        self._show("\r\n", 0.3)
        lines = printed.splitlines()
        if command.startswith(WAITING):
            lines = lines[-1:]
        for line in lines:
            self._show(f"{line[: COLUMNS - 1]}\r\n", LINE_S)
        self._at += READING_S

    def write(self) -> None:
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Try it on kind"}
        lines = [json.dumps(header), *(json.dumps(event) for event in self._events)]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _show(self, text: str, seconds: float) -> None:
        self._at += seconds
        self._events.append((round(self._at, 3), "o", text))
