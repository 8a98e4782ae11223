"""The output of commands: tables for people, JSON and YAML for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill, wrap
from typing import Any

from gpuisolation.preflight_checks import Row

WIDTH = 80


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells).rstrip()


def mib(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / 2**20:.0f} MiB"


def known(value: object) -> str:
    return "?" if value is None else str(value)


def document(value: Any, form: str) -> str:  # noqa: ANN401 (whatever json takes)
    """As ``json`` or ``yaml``."""
    text = json.dumps(value, indent=2, default=str, ensure_ascii=False)
    if form == "json":
        return text
    from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

    return yaml_text.dump(json.loads(text)).rstrip()


def checks(rows: Sequence[Row], forbidding: Sequence[Row]) -> str:
    """The rows as a table, with the required actions below it."""
    table = [["CHECK", "VERDICT", "FOUND"]]
    for row in rows:
        table += _check_lines(row)
    actions = [_action(row) for row in rows if row.todo]
    forbidding_names = ", ".join(row.check for row in forbidding)
    result = f"refused: {forbidding_names}" if forbidding else "nothing forbids it"
    paragraphs = [align(table), "\n".join(actions), result]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _check_lines(row: Row) -> list[list[str]]:
    """The lines of the table for one check: what was found may need several."""
    room = WIDTH - len("cgpu-version  VERDICT  ")
    first, *others = wrap(row.found, room, break_on_hyphens=False)
    return [[row.check, str(row.verdict), first], *(["", "", other] for other in others)]


def _action(row: Row) -> str:
    text = f"{row.check} ({row.verdict}): {row.todo}. Wanted: {row.wanted}"
    return fill(text, WIDTH, subsequent_indent="  ")


def checks_document(rows: Sequence[Row], forbidding: Sequence[Row], form: str) -> str:
    """The same as ``json`` or ``yaml``."""
    page = {"checks": [asdict(row) for row in rows], "refused": [row.check for row in forbidding]}
    return document(page, form)
