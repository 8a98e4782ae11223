"""Nothing that a tenant writes steers a terminal: neither by the log, nor by a refusal, an Event or a condition."""

import io
import json
import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.state import State
from gpuagent.system.log import JsonFormatter, TextFormatter
from gpuagent.system.printable import escaped, printable

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\u2066\x7f\r\n2026-01-01T00:00:00.000Z ERROR forged a=b\u2028\ud800"
texts = st.text() | st.text(st.sampled_from(HOSTILE + ' "\\'))


@given(texts)
@example(HOSTILE)
def test_printable_is_one_line_of_the_same_length(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert all(new == old for new, old in zip(shown, text, strict=True) if old.isprintable())


@given(texts)
@example(HOSTILE)
def test_escaped_json_has_the_same_value(text: str) -> None:
    shown = escaped(json.dumps(text, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == text


def logged(formatter: logging.Formatter, text: str, *, failed: bool) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError(text)
    except ValueError:
        log.warning("%s", text, extra={"pod": text}, exc_info=failed)
    return stream.getvalue().split("\n")[:-1]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
@given(text=texts)
@example(text=HOSTILE)
def test_a_log_line_is_one_printable_line(formatter: logging.Formatter, text: str) -> None:
    (line,) = logged(formatter, text, failed=False)
    assert line.isprintable()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_trace_is_printable_too(formatter: logging.Formatter) -> None:
    lines = logged(formatter, HOSTILE, failed=True)
    assert all(line.isprintable() for line in lines)
    assert "ValueError" in "".join(lines)


def test_json_lines_have_the_values_as_they_are() -> None:
    (line,) = logged(JsonFormatter(), HOSTILE, failed=False)
    assert json.loads(line)["pod"] == HOSTILE


def test_a_refusal_is_printable() -> None:
    refusal = Refusal(Reason.GPU_GROUP, f"annotation says {HOSTILE}")
    assert refusal.message.isprintable()
    assert str(refusal) == refusal.message


def test_a_condition_is_printable() -> None:
    assert node_condition(State(policy=Policy(), node=Node(label_problem=HOSTILE)))["message"].isprintable()
