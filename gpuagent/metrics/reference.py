"""`python -m gpuagent.metrics.reference FILE`: writes the tables of docs/metrics.md from the families."""

import re
import sys
from pathlib import Path

from gpuagent.metrics.families import CHAPTERS, Family

_BEGIN, _END = "<!-- tables: written by `make generate` -->", "<!-- end of tables -->"


def tables() -> str:
    """One table for each chapter, as Markdown."""
    return "\n".join(f"### {title}\n\n{_table(families)}" for title, families in CHAPTERS.items())


def _table(families: tuple[Family, ...]) -> str:
    head = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {_meaning(one)} |\n"
        for one in families
    )


def _meaning(family: Family) -> str:
    return f"{family.help} {family.more}".strip().replace("|", "\\|")


def written(page: str) -> str:
    """The page with tables as they should be. Raises ValueError if it has no place for them."""
    if _BEGIN not in page or _END not in page:
        raise ValueError(f"the page has no {_BEGIN} and {_END}")
    pattern = f"{re.escape(_BEGIN)}.*{re.escape(_END)}"
    return re.sub(pattern, lambda _: f"{_BEGIN}\n\n{tables()}\n{_END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
