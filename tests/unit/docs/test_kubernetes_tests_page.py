"""docs/reference/kubernetes-dra-tests.md: every test that it names exists, and says which test of Kubernetes it follows."""

import ast
import re
from functools import cache

from tests.unit.docs.test_docs import ROOT, table

PAGE = ROOT / "docs/reference/kubernetes-dra-tests.md"
ROW = re.compile(r"^\| `([^|]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NOT_OURS = "## Tests that do not apply to a driver\n"


def rows():
    """Kubernetes' test, and the tests here that show the same."""
    applying, _, _ = PAGE.read_text(encoding="utf-8").partition(NOT_OURS)
    return [(name, re.findall(r"`(tests/[^`]+)`", tests)) for name, _, tests in ROW.findall(applying)]


def names_that_do_not_apply():
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(NOT_OURS)
    return re.findall(r"`([^`]+)`", rest)


@cache
def functions_in(path):
    """Names of the tests in a file, with their docstrings."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def test_every_test_that_is_named_exists():
    named = [test for _, tests in rows() for test in tests]
    assert len(named) > 80
    missing = [test for test in named if test.partition("::")[2] not in functions_in(test.partition("::")[0])]
    assert missing == []


def test_every_behavior_that_applies_is_shown_and_stands_once():
    names = [name for name, _ in rows()]
    assert all(tests for _, tests in rows())
    assert len(names) == len(set(names))
    assert not set(names) & set(names_that_do_not_apply())


def test_checks_that_quote_a_test_of_kubernetes_are_in_its_row():
    shown_by = dict(rows())
    quoting = 0
    for path in sorted((ROOT / "tests/contract").glob("test_dra_*.py")):
        relative = str(path.relative_to(ROOT))
        for test, docstring in functions_in(relative).items():
            for name in re.findall(r"`([^`]+)`", " ".join(docstring.split())):
                if name in shown_by:
                    quoting += 1
                    assert f"{relative}::{test}" in shown_by[name], name
    assert quoting >= 40


def test_everything_that_the_document_refuses_is_shown():
    page = PAGE.read_text(encoding="utf-8")
    shown = table(page, "refused")
    refused = table((ROOT / "docs/dra.md").read_text(encoding="utf-8"), "refused")
    assert [row[0] for row in shown] == [row[0] for row in refused]
    named = [test for row in shown for test in re.findall(r"`(tests/[^`]+)`", row[1])]
    assert all("tests/" in row[1] for row in shown)
    assert [test for test in named if test.partition("::")[2] not in functions_in(test.partition("::")[0])] == []
