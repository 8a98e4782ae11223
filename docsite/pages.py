"""The reference pages that are made from the code."""

from collections.abc import Callable
from pathlib import Path

from docsite import (
    chart_page,
    environment_page,
    events_page,
    metrics_page,
    names_page,
    packages_page,
    problems_page,
    settings_page,
)

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PROBLEMS = FOLDER.parent / "problems.md"
README = chart_page.VALUES.parent / "README.md"


PAGES: dict[str, Callable[[], str]] = {
    str(PROBLEMS): problems_page.page,
    str(README): chart_page.readme,
    "chart-values.md": chart_page.page,
    "container-environment.md": environment_page.page,
    "events.md": events_page.page,
    "labels-and-annotations.md": names_page.page,
    "metrics.md": metrics_page.page,
    "packages.md": packages_page.page,
    "settings.md": settings_page.page,
}
"""What makes each page, by its path from `FOLDER`."""
