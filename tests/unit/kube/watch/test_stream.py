"""Watch bodies as events, however they are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.kube.api.api_errors import ApiError
from gpuagent.kube.watch.stream import events

EVENTS = [{"type": "ADDED", "object": {"name": "größe"}}, {"type": "BOOKMARK", "object": {"metadata": {}}}]
BODY = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in EVENTS).encode()


@given(st.lists(st.integers(0, len(BODY)), max_size=8))
def test_pieces_may_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[start:end] for start, end in pairwise(edges)]
    assert list(events(pieces)) == EVENTS


def test_empty_lines_are_nothing() -> None:
    assert list(events([b"\n\r\n", BODY, b"\n"])) == EVENTS


def test_an_error_event_is_raised() -> None:
    body = b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old resource version"}}\n'
    with pytest.raises(ApiError, match="410 Expired: too old"):
        list(events([body]))


@pytest.mark.parametrize("line", [b"<html>\n", b"[]\n", b"{}\n"])
def test_what_is_no_event_is_an_error(line: bytes) -> None:
    with pytest.raises(ApiError, match="not an event"):
        list(events([line]))
