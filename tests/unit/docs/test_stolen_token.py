"""docs/security.md: each line about a stolen token is tried by a test of `make e2e`."""

import ast
from collections.abc import Iterator

import pytest

from tests.unit.docs.test_docs import ROOT, section

PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
TRIED_IN = {
    "What the agent's token can do": ("tests/e2e/chart/test_admission_policy.py", "tests/e2e/chart/test_rbac.py"),
    "What the scheduler's token can do": ("tests/e2e/scheduler/test_chart.py",),
}


def stated(heading: str) -> list[str]:
    """The lines of a list, each in one piece."""
    text = section(PAGE, heading).partition("\n- ")[2].partition("\n\n")[0]
    return [" ".join(line.split()) for line in text.split("\n- ")]


def tried(*paths: str) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "tries":
                        yield from (ast.literal_eval(line) for line in decorator.args)


@pytest.mark.parametrize("heading", TRIED_IN)
def test_each_line_is_tried_and_each_try_is_a_line(heading: str) -> None:
    assert set(tried(*TRIED_IN[heading])) == set(stated(heading))


@pytest.mark.parametrize("heading", TRIED_IN)
def test_a_line_says_what_the_token_can_or_cannot_do(heading: str) -> None:
    lines = stated(heading)
    assert len(lines) > 5
    assert all(line.startswith(("It can ", "It cannot ")) for line in lines)
