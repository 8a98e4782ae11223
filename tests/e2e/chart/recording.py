"""A recording of a terminal, as asciinema's version 2 has it, of commands that ran and what they printed."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS, ROWS = 110, 32
COMMAND_S = 0.8
"""From a command to what it prints. Each moment is a picture of the whole screen, so keys do not have one each."""
READING_S = 1.5
"""After what a command printed."""
WAITING = ("kubectl wait", "kubectl -n kube-system rollout")
"""Commands whose many equal lines say nothing: the last one is shown."""
BETWEEN = {"helm install": ("NAME:", "NOTES:"), "helm test": ("POD LOGS:", "")}
"""Commands of which a part is shown: from the line that begins so, to the next one that does."""


@dataclass(slots=True)
class Recording:
    """The times are those of a person who types and reads, not those of the machine that ran the commands."""

    file: Path
    _at: float = -1.0
    _events: list[tuple[float, str, str]] = field(default_factory=list)

    def add(self, command: str, printed: str) -> None:
        """A command and its output."""
        typed = re.sub(r" +# .*$", "", command, flags=re.MULTILINE).replace("\\\n", "\\\r\n>")
        self._show(f"\x1b[32m$\x1b[0m {typed}\r\n", READING_S)
        lines = [f"{line}\r\n" for line in _shown(command, printed.splitlines())]
        if lines:
            self._show("".join(lines), COMMAND_S)

    def write(self) -> None:
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Try it on kind"}
        lines = [json.dumps(header), *(json.dumps(event) for event in self._events)]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _show(self, text: str, seconds: float) -> None:
        self._at += seconds
        self._events.append((round(self._at, 3), "o", text))


def _shown(command: str, lines: list[str]) -> list[str]:
    if command.startswith(WAITING):
        return lines[-1:]
    for name, (first, after) in BETWEEN.items():
        if command.startswith(name):
            begins = [number for number, line in enumerate(lines) if line.startswith(first)]
            ends = [number for number, line in enumerate(lines) if after and line.startswith(after)]
            return lines[begins[0] : ends[0] if ends else None]
    return lines
