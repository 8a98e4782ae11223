"""The output of commands: tables for people, JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpuisolation.preflight_checks import Row


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


def as_json(value: Any) -> str:  # noqa: ANN401 (whatever json takes)
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)


def checks(rows: Sequence[Row], forbidding: Sequence[Row]) -> str:
    """The rows as a table, with the required actions below it."""
    lines = [["CHECK", "VERDICT", "FOUND", "WANTED"]]
    lines += [[row.check, str(row.verdict), row.found, row.wanted] for row in rows]
    todo = [f"{row.check} ({row.verdict}): {row.todo}" for row in rows if row.todo]
    last = f"refused: {', '.join(row.check for row in forbidding)}" if forbidding else "nothing forbids it"
    return "\n\n".join(part for part in (align(lines), "\n".join(todo), last) if part)


def checks_json(rows: Sequence[Row], forbidding: Sequence[Row]) -> str:
    return as_json({"checks": [asdict(row) for row in rows], "refused": [row.check for row in forbidding]})
