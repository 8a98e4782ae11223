"""docs/reference/chart-values.md: every value of the chart, with its default and its comment in values.yaml."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from docsite.markdown import MADE, table

(VALUES,) = (Path(__file__).parents[1] / "manifests" / "helm").glob("*/values.yaml")


def page() -> str:
    """The page."""
    text = VALUES.read_text(encoding="utf-8")
    values = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(values, yaml.MappingNode):
        raise TypeError(f"{VALUES} has no values")
    rows = _rows(values, text.splitlines())
    return f"""# Chart values

{MADE}

All values of the chart, by path: `--set http.port=9445`. The [page of the chart](../install.md#values) has the reasons
and what depends on what. The chart refuses a value that is not here, or one of another type.

{table(("value", "default", "meaning"), rows)}"""


def _rows(group: yaml.MappingNode, lines: Sequence[str], path: str = "") -> Iterator[tuple[str, str, str]]:
    """A row for each value, and for each group of values that has a comment."""
    for key, value in group.value:
        name, comment = f"{path}{key.value}", _comment(key, lines)
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if comment:
                yield f"`{name}`", "", comment
            yield from _rows(value, lines, f"{name}.")
        else:
            yield f"`{name}`", _default(value), comment


def _default(value: yaml.Node) -> str:
    found = yaml.SafeLoader("").construct_object(value, deep=True)
    return "none" if found in ("", None) else f"`{found if isinstance(found, str) else json.dumps(found)}`"


def _comment(key: yaml.Node, lines: Sequence[str]) -> str:
    """The comment right above a key, as Markdown."""
    last = first = key.start_mark.line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.strip().removeprefix("#").strip() for line in lines[first:last]).replace("<", "&lt;")
