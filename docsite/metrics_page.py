"""docs/reference/metrics.md: every metric of the agent and of the scheduler, from their tables of families."""

from collections.abc import Mapping

from docsite.markdown import MADE, table
from gpuagent.metrics import families
from gpuagent.metrics.family import Family
from gpuscheduler import metrics

Chapters = Mapping[str, tuple[Family, ...]]


def page() -> str:
    """The page."""
    return f"""# Metrics by name

{MADE}

[metrics.md](../metrics.md) says how to read and scrape them, and what used memory is.

## The agent

{_tables(families.CHAPTERS)}
## gpuscheduler

The [scheduler](../gpuscheduler.md) serves `/metrics` on port 9447 (`--http-address`). Each replica has its own series,
and only the leader is called.

{_tables(metrics.CHAPTERS)}"""


def _tables(chapters: Chapters) -> str:
    return "\n".join(f"### {title}\n\n{_table(group)}" for title, group in chapters.items())


def _table(group: tuple[Family, ...]) -> str:
    return table(
        ("metric", "kind", "labels", "meaning"),
        (
            (
                f"`{family.name}`",
                family.kind,
                ", ".join(f"`{label}`" for label in family.labels),
                f"{family.help} {family.more}".strip(),
            )
            for family in group
        ),
    )
