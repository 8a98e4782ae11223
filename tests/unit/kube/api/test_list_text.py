"""A List read item by item says what it says read whole."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.kube.api.list_text import read_list

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just('"items":['),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("items"), inner, max_size=3),
    max_leaves=6,
)
items = st.lists(st.dictionaries(st.text(max_size=3) | st.just("items"), values, max_size=3), max_size=5)
CUTS = st.lists(st.integers(1, 40), max_size=8)
metadata = st.dictionaries(st.sampled_from(["resourceVersion", "continue", '"items":[', "items"]), values, max_size=3)


def pieces(data, cuts):
    """The body as it may arrive: cut anywhere, in the middle of a character or a number too."""
    while data:
        cut = cuts.pop() if cuts else len(data)
        yield data[:cut]
        data = data[cut:]


@given(metadata, items, st.booleans(), st.booleans(), CUTS)
@example({"items": []}, [{"items": [1]}], True, False, [])
def test_item_by_item_is_as_whole(meta, found, compact, items_first, cuts):
    parts = {"kind": "PodList", "metadata": meta, "items": found, "more": 1}
    if items_first:
        parts = dict(reversed(parts.items()))
    text = json.dumps(parts, separators=(",", ":") if compact else None, ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    meta, found = (json.loads(data)[part] for part in ("metadata", "items"))
    head, read = read_list(pieces(data, cuts))
    assert (head, list(read)) == (meta, found)


@given(st.binary(), CUTS)
@example(b"[]", [])
@example(b'{"items":[{}', [])
@example(b'{"items":[{}{}]}', [])
@example(b'{"items":[{}]', [])
@example(b'{"items":[{}]} x', [])
def test_what_is_no_list_is_a_value_error(data, cuts):
    try:
        _, read = read_list(pieces(data, cuts))
        list(read)
    except ValueError:
        return
    assert isinstance(json.loads(data), dict)


@pytest.mark.parametrize(
    "text", ['{"items":[{}', '{"items":[{}{}]}', '{"items":[{}]', '{"items":[{}]} x', "[]", "<html>"]
)
def test_a_list_that_is_cut_is_not_taken_for_whole(text):
    with pytest.raises(ValueError):  # noqa: PT011
        list(read_list([text.encode()])[1])


def test_what_is_no_list_of_objects_has_no_items():
    assert [list(read_list([data])[1]) for data in (b'{"items":null,"metadata":7}', b'{"items":5}')] == [[], []]
    assert read_list([b'{"metadata":7,"items":[]}'])[0] == {}


def test_a_number_that_a_piece_cuts_is_one_number():
    data = b'{"metadata":{},"items":[12,345]}'
    assert list(read_list(data[n : n + 1] for n in range(len(data)))[1]) == [12, 345]


def test_one_item_at_a_time_is_in_memory():
    item = json.dumps({"text": "x" * 100_000}).encode()
    taken = 0

    def body():
        nonlocal taken
        yield b'{"metadata":{},"items":['
        for n in range(200):
            taken += 1
            yield (b"," if n else b"") + item
        yield b"]}"

    for number, found in enumerate(read_list(body())[1]):
        assert len(found["text"]) == 100_000
        assert taken <= number + 4, "no more of the body is read than the next items need"
