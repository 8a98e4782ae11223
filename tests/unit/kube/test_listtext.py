"""A List read item by item says what it says read whole."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.kube.listtext import read_list

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just('"items":['),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("items"), inner, max_size=3),
    max_leaves=6,
)
items = st.lists(st.dictionaries(st.text(max_size=3) | st.just("items"), values, max_size=3), max_size=5)
metadata = st.dictionaries(st.sampled_from(["resourceVersion", "continue", '"items":[', "items"]), values, max_size=3)


@given(metadata, items, st.booleans(), st.booleans())
@example({"items": []}, [{"items": [1]}], True, False)
def test_item_by_item_is_as_whole(meta, found, compact, items_first):
    parts = {"kind": "PodList", "metadata": meta, "items": found, "more": 1}
    if items_first:
        parts = dict(reversed(parts.items()))
    text = json.dumps(parts, separators=(",", ":") if compact else None).encode()
    head, read = read_list(text)
    assert (head, list(read)) == (meta, found)


@given(st.binary())
@example(b"[]")
@example(b'{"items":[{}')
@example(b'{"items":[{}{}]}')
@example(b'{"items":[{}]')
@example(b'{"items":[{}]} x')
def test_what_is_no_list_is_a_value_error(data):
    try:
        _, read = read_list(data)
        list(read)
    except ValueError:
        return
    assert isinstance(json.loads(data), dict)


@pytest.mark.parametrize(
    "text", ['{"items":[{}', '{"items":[{}{}]}', '{"items":[{}]', '{"items":[{}]} x', "[]", "<html>"]
)
def test_a_list_that_is_cut_is_not_taken_for_whole(text):
    with pytest.raises(ValueError):  # noqa: PT011
        list(read_list(text.encode())[1])


def test_what_is_no_list_of_objects_has_no_items():
    assert [list(read_list(data)[1]) for data in (b'{"items":null,"metadata":7}', b'{"items":5}')] == [[], []]
    assert read_list(b'{"metadata":7,"items":[]}')[0] == {}
