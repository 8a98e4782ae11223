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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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
    lines = [["CHECK", "VERDICT", "FOUND"]]
    room = WIDTH - len("cgpu-version  VERDICT  ")
    for row in rows:
        first, *others = wrap(row.found, room, break_on_hyphens=False)
        lines += [[row.check, str(row.verdict), first], *(["", "", other] for other in others)]
    todo = [
        fill(f"{row.check} ({row.verdict}): {row.todo}. Wanted: {row.wanted}", WIDTH, subsequent_indent="  ")
        for row in rows
        if row.todo
    ]
    last = f"refused: {', '.join(row.check for row in forbidding)}" if forbidding else "nothing forbids it"
    return "\n\n".join(part for part in (align(lines), "\n".join(todo), last) if part)


def checks_document(rows: Sequence[Row], forbidding: Sequence[Row], form: str) -> str:
    """The same as ``json`` or ``yaml``."""
    found = {"checks": [asdict(row) for row in rows], "refused": [row.check for row in forbidding]}
    return document(found, form)
