"""Text in columns: printable, of the width that a terminal gives it, colored on request."""

import enum
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuagent.system.printable import printable

GAP = "  "


class Style(enum.StrEnum):
    """Terminal codes for text that stands out."""

    PLAIN = ""
    HEAD = "1"
    ILL = "31"
    PENDING = "33"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; `text` is what others wrote, too."""

    text: str
    style: Style = Style.PLAIN


Row = Sequence[Cell]


def row(*texts: str, style: Style = Style.PLAIN) -> list[Cell]:
    return [Cell(text, style) for text in texts]


def width(text: str) -> int:
    """Columns of a terminal that it takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in ("W", "F") else 1 for one in text
    )


def align(rows: Iterable[Row], *, colour: bool) -> list[str]:
    """Lines with columns as wide as their widest cell; the last cell of a row widens no column."""
    found = [[(printable(cell.text), cell.style) for cell in one] for one in rows]
    widths: dict[int, int] = {}
    for cells in found:
        for at, (text, _) in enumerate(cells[:-1]):
            widths[at] = max(widths.get(at, 0), width(text))
    return [_line(cells, widths, colour=colour) for cells in found]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Plain text in columns."""
    return "\n".join(align([row(*texts) for texts in rows], colour=False))


def _line(cells: Sequence[tuple[str, Style]], widths: dict[int, int], *, colour: bool) -> str:
    parts, pad = [], 0
    for at, (text, style) in enumerate(cells):
        if text:
            parts.append(" " * pad)
            parts.append(painted(text, style, colour=colour))
            pad = 0
        pad += widths.get(at, 0) - width(text) + len(GAP)
    return "".join(parts)


def painted(text: str, style: Style, *, colour: bool) -> str:
    """The text, in the style's color where colors are on."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style else text


def models(gpus: Sequence[dict[str, Any]]) -> str:
    """``8 x Tesla V100-SXM2-16GB``; of unequal GPUs every model."""
    return ", ".join(f"{count} x {model}" for model, count in Counter(gpu["model"] for gpu in gpus).items())
