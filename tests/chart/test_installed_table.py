"""docs/install.md: its table of what is installed names what Helm makes of the chart, and nothing else."""

import re
from typing import Any

from tests.chart.conftest import Chart
from tests.chart.test_render import EVERYTHING, ROOT

OPTIONS = ("driver", "networkPolicy", "limits", "mps", "cgpu")
UNNAMED = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
"""Kinds whose objects the table counts with their account."""
CONTAINERS = {"memory-limits"}
"""Names of the table that are of containers."""


def installed(chart: Chart) -> set[tuple[str, str]]:
    """Kinds and names with every option that adds an object."""
    values: dict[str, Any] = {option: EVERYTHING[option] for option in OPTIONS}
    values["scheduler"] = {"enabled": True, "setSchedulerName": True}
    values["dra"] = {"enabled": True}
    pod_monitor = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    service_monitor = {"serviceMonitor": {"enabled": True}}
    objects = chart.render(namespace="gpu", with_test=True, metrics=pod_monitor, **values)
    objects += chart.render(namespace="gpu", metrics=service_monitor, **values)
    names = {(item["kind"], item["metadata"]["name"]) for item in objects}
    return {(kind, name) for kind, name in names if kind not in UNNAMED and not kind.endswith("PolicyBinding")}


def first_column(page: str, header: str) -> list[str]:
    """Its cells in the table with this line of headings."""
    _, _, lines = page.partition(f"{header}\n")
    body, _, _ = lines.partition("\n\n")
    return [line.split("|")[1] for line in body.splitlines()]


def names_in(cell: str) -> set[str]:
    return set(re.findall("`([^`]+)`", cell))


def test_the_table_names_what_is_installed(chart: Chart) -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    rows = first_column(page, "| object | when |")
    objects = installed(chart)
    for kind, name in objects:
        singular = kind.removesuffix("y")  # Policy and Policies begin alike
        assert any(singular in row and name in names_in(row) for row in rows), f"no row has {kind} {name}"
    in_table = {name for row in rows for name in names_in(row)}
    assert in_table - {name for _, name in objects} == CONTAINERS
