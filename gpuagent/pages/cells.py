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
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    is_wide = unicodedata.east_asian_width(char) in {"W", "F"}
    return 2 if is_wide else 1


def align(rows: Iterable[Row], *, colour: bool) -> list[str]:
    """Lines with columns as wide as their widest cell; the last cell of a row widens no column."""
    # Before the widths: a character that a terminal does not show would shift the columns after it.
    printable_rows = [_printable(cells) for cells in rows]
    widths: dict[int, int] = {}
    for cells in printable_rows:
        for column, cell in enumerate(cells[:-1]):
            known = widths.get(column, 0)
            widths[column] = max(known, width(cell.text))
    return [_line(cells, widths, colour=colour) for cells in printable_rows]


def _printable(cells: Row) -> Row:
    return [Cell(printable(cell.text), cell.style) for cell in cells]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Plain text in columns."""
    cells = [row(*texts) for texts in rows]
    return "\n".join(align(cells, colour=False))


def _line(cells: Row, widths: dict[int, int], *, colour: bool) -> str:
    parts = []
    pad = 0
    for column, cell in enumerate(cells):
        if cell.text:
            parts.append(" " * pad)
            parts.append(painted(cell.text, cell.style, colour=colour))
            pad = 0
        # Blanks are written before the next text only, so that no line ends with them.
        pad += widths.get(column, 0) - width(cell.text) + len(GAP)
    return "".join(parts)


def painted(text: str, style: Style, *, colour: bool) -> str:
    """The text, in the style's color where colors are on."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style else text


def models(gpus: Sequence[dict[str, Any]]) -> str:
    """``8 x Tesla V100-SXM2-16GB``; of unequal GPUs every model."""
    counts = Counter(gpu["model"] for gpu in gpus)
    parts = [f"{count} x {model}" for model, count in counts.items()]
    return ", ".join(parts)
