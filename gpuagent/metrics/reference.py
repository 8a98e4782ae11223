"""`python -m gpuagent.metrics.reference FILE MODULE...`: writes the tables of docs/metrics.md from each `CHAPTERS`."""

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuagent.metrics.family import Family

Chapters = Mapping[str, tuple[Family, ...]]


def tables(chapters: Chapters) -> str:
    """One table for each chapter, as Markdown."""
    return "\n".join(f"### {title}\n\n{_table(families)}" for title, families in chapters.items())


def _table(families: tuple[Family, ...]) -> str:
    head = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {_meaning(one)} |\n"
        for one in families
    )


def _meaning(family: Family) -> str:
    return f"{family.help} {family.more}".strip().replace("|", "\\|")


def written(page: str, program: str, chapters: Chapters) -> str:
    """The page with the tables of a program as they should be. Raises ValueError if it has no place for them."""
    begin, end = f"<!-- tables of {program}: written by `make generate` -->", f"<!-- end of the tables of {program} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} and {end}")
    pattern = f"{re.escape(begin)}.*{re.escape(end)}"
    return re.sub(pattern, lambda _: f"{begin}\n\n{tables(chapters)}\n{end}", page, flags=re.DOTALL)


if __name__ == "__main__":
    path, modules = Path(sys.argv[1]), sys.argv[2:]
    for name in modules:
        text = written(path.read_text(encoding="utf-8"), name.partition(".")[0], importlib.import_module(name).CHAPTERS)
        path.write_text(text, encoding="utf-8")
