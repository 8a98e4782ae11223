"""docs/troubleshooting.md: every text in which the agent refuses and every warning of its log can be found there.

The refusals are provoked (`refusalcases.py`), and where each was made is noted: a new one in the code fails here until
it has a case, and a case fails until the page has a heading for what it says.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.agent import usage_watch
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.usage import exhausted
from gpuagent.isolation.interface import IsolationError
from tests.unit.allocator.refusal_cases import CASES as UNIT_CASES
from tests.unit.docs.test_docs import anchors, headings, links, quoted, section, table
from tests.unit.preparer.refusal_cases import CLAIM_CASES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/troubleshooting.md"
TEXT = PAGE.read_text(encoding="utf-8")
REFUSALS = section(TEXT, "Refusals")
MADE_OF = (Refusal, IsolationError)
CASES = UNIT_CASES | CLAIM_CASES


def pattern(heading: str) -> re.Pattern[str]:
    """`<n>` is any text, `…` any or none."""
    parts = re.split(r"(<[^<>]+>|…)", heading)
    return re.compile("".join(".*" if p == "…" else ".+" if p.startswith("<") else re.escape(p) for p in parts))


def texts_under(reason: str) -> list[str]:
    under = section(REFUSALS, reason)
    return [
        heading for heading in headings(under) if heading in {t for line in under.splitlines() for t in quoted(line)}
    ]


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the agent's code: the file, what is called (`Refusal`, `log.warning`), the call."""
    for path in sorted((ROOT / "gpuagent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield str(path), ast.unparse(node.func), node


@pytest.fixture(scope="session")
def provoked():
    """Name of the case to the refusal, and the places in the code where refusals were made."""
    made: set[tuple[str, int]] = set()  # file and line

    def noting(kind):
        initial = kind.__init__

        def init(self, *args):
            frame = inspect.currentframe().f_back
            made.add((frame.f_code.co_filename, frame.f_lineno))
            initial(self, *args)

        return init

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuagent.allocator.requester_queries.WAIT_S", 0.0)
        patch.setattr("gpuagent.preparer.waits.WAIT_S", 0.0)
        patch.setattr("gpuagent.preparer.waits.RETRY_S", 0.0)
        for kind in MADE_OF:
            patch.setattr(kind, "__init__", noting(kind))
        refusals = {name: provoke() for name, provoke in CASES.items()}
    return refusals, made


def test_every_refusal_has_its_heading():
    found = [line.strip("# ") for line in REFUSALS.splitlines() if line.startswith("### ")]
    assert found == [reason.value for reason in Reason]


@pytest.mark.parametrize("name", CASES)
def test_what_a_refusal_says_is_one_heading_under_its_reason(provoked, name):
    refusal = provoked[0][name]
    fitting = [text for text in texts_under(refusal.reason.value) if pattern(text).fullmatch(refusal.message)]
    assert len(fitting) == 1, (refusal.reason.value, refusal.message, fitting)


def test_every_heading_is_what_some_refusal_says(provoked):
    for reason in Reason:
        messages = [refusal.message for refusal in provoked[0].values() if refusal.reason is reason]
        for text in texts_under(reason.value):
            assert any(pattern(text).fullmatch(message) for message in messages), f"{reason.value}: {text}"


def test_every_refusal_in_the_code_is_provoked(provoked):
    made = provoked[1]
    names = {kind.__name__ for kind in MADE_OF}
    missed = [
        f"{path}:{call.lineno}"
        for path, name, call in calls()
        if name in names
        and not any(file == path and line in range(call.lineno, call.end_lineno + 1) for file, line in made)
    ]
    assert missed == [], "add a case to refusal_cases.py of tests/unit/allocator or tests/unit/preparer"


def test_every_warning_of_the_log_is_documented():
    messages = {
        call.args[0].value
        for _, name, call in calls()
        if name in {"log.warning", "log.error"} and isinstance(call.args[0], ast.Constant)
    }
    assert len(messages) > 20
    assert {quoted(row[0])[0] for row in table(TEXT, "message")} == messages


def test_the_exit_codes_are_documented():
    assert [row[0] for row in table(TEXT, "exit code")] == ["0", "1", "2", "130, 141", "137"]


def test_every_section_is_in_the_table_at_the_top():
    """Refusals are found by their words, which are headings, so the table has them in one row."""
    outside = TEXT.replace(REFUSALS, "")
    sections = "\n".join(line for line in outside.splitlines() if line.startswith("### ") or line == "## Refusals")
    listed = [
        link.removeprefix("#") for row in table(TEXT, "what you see") for link in re.findall(r"\((#[^)]+)\)", row[1])
    ]
    assert set(listed) == anchors(sections)
    assert len(listed) == len(set(listed))
    assert {f"#{anchor}" for anchor in listed} <= set(links(PAGE))


def test_out_of_gpu_memory_says_when_there_is_no_event():
    """The limits of the Event are where its reader looks, with the figures of the code."""
    under = " ".join(section(TEXT, "Out of GPU memory").split())
    figures = (
        f"used {exhausted.FULL * 100:.0f} % or more",
        f"within the {exhausted.RECENT_S:.0f} s before its failure",
        f"every {usage_watch.PERIOD_S:.0f} s",
        f"once in {exhausted.AGAIN_S / 60:.0f} minutes",
        f"at most {exhausted.MOST_AT_ONCE} are reported",
    )
    assert [figure for figure in figures if figure not in under] == []
