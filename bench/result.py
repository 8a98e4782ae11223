"""The results of a measurement: samples, rows of the table, and the machine that took them."""

import datetime as dt
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("grpcio", "protobuf", "kubernetes", "nvidia-ml-py", "prometheus-client")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `holds` is None where there is no bar."""

    what: str
    bar: str
    value: str
    holds: bool | None = None


@dataclass(slots=True)
class Results:
    """Everything measured so far."""

    rows: list[Row] = field(default_factory=list)
    samples: dict[str, dict[str, float]] = field(default_factory=dict)

    def keep(self, name: str, values: Sequence[float]) -> dict[str, float]:
        """Keep the percentiles of `values` under `name`, and return them."""
        self.samples[name] = spread(values)
        return self.samples[name]

    def row(self, what: str, value: str, bar: str = "", holds: bool | None = None) -> None:
        self.rows.append(Row(what, bar, value, holds))

    def reaction(self, what: str, name: str, values_ms: Sequence[float], below_ms: float | None = None) -> None:
        """A row of median and worst, in ms, whose bar is for the worst."""
        got = self.keep(name, values_ms)
        value = f"{got['p50']:.0f} ms, worst {got['max']:.0f} ms of {len(values_ms)}"
        if below_ms is None:
            self.row(what, value)
        else:
            self.row(what, value, f"< {below_ms:.0f} ms", got["max"] < below_ms)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles by the nearest rank, and how many values there were."""
    ranked = sorted(values)
    at = {f"p{p}": ranked[min(len(ranked) - 1, len(ranked) * p // 100)] for p in (10, 90, 95, 99)}
    ends = {"min": ranked[0], "p50": statistics.median(ranked), "max": ranked[-1]}
    return {name: round(value, 4) for name, value in (ends | at).items()} | {"count": len(ranked)}


def table(rows: Sequence[Row]) -> str:
    """The rows, aligned."""
    verdict = {True: "ok", False: "MISSED", None: ""}
    cells = [("what", "bar", "measured", ""), *((r.what, r.bar, r.value, verdict[r.holds]) for r in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def machine() -> dict[str, Any]:
    """Facts that the numbers depend on."""
    cpu = _first("/proc/cpuinfo", "model name")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "memory_mib": int(_first("/proc/meminfo", "MemTotal").split()[0]) // 1024,
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def load() -> tuple[float, ...]:
    return tuple(round(value, 2) for value in os.getloadavg())


def _first(path: str, key: str) -> str:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "0")


def commit() -> str:
    """The commit measured; with a + where agent or stand-ins differ from it. Empty outside a git checkout."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if head and _git("status", "--porcelain", "--", "gpuagent", "standin") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *arguments],  # noqa: S607 (whichever git the developer has)
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def write(results: Results, path: Path, facts: dict[str, Any]) -> None:
    """Write everything as JSON."""
    page = facts | {"rows": [asdict(row) for row in results.rows], "samples": results.samples}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


Say = Callable[[str], None]
