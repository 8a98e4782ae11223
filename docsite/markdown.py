"""Markdown of the pages that are made from the code."""

from collections.abc import Iterable, Sequence

MADE = "<!-- Made from the code by `make generate`: do not edit. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells may contain `|`."""
    lines = [
        _line(head),
        f"|{'---|' * len(head)}\n",
        *(_line([cell.replace("|", "\\|") for cell in row]) for row in rows),
    ]
    return "".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
