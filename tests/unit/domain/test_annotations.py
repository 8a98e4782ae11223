"""What schedulers write on pods is read whole, written back the same, and never trusted."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain import annotations as an
from gpuagent.domain.annotations import Assumed, Malformed, Shares

V2 = (an.MEMORY_ANNOTATION, an.CORE_ANNOTATION)
numbers = st.integers(0, 9999)
units = st.integers(0, an.MOST_UNITS)
some_shares = st.builds(Shares, st.dictionaries(numbers, st.dictionaries(numbers, units, max_size=4), max_size=4))
some_assumed = st.builds(
    Assumed,
    numbers,
    st.none() | units,
    st.none() | units,
    st.none() | st.integers(0, 10**19),
    st.none() | st.booleans(),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("0"), inner, max_size=3),
    max_leaves=8,
)
hostile = st.text() | json_values | json_values.map(json.dumps)


@given(some_shares)
def test_v2_reads_back_what_was_written(found):
    for key in V2:
        assert an.shares({key: an.shares_text(found)}, key) == found


@given(some_assumed)
def test_v1_reads_back_what_was_written(found):
    assert an.assumed(an.assumed_texts(found)) == found


@given(st.dictionaries(st.sampled_from(an.KEYS), hostile))
@example({an.MEMORY_ANNOTATION: '{"0":' * 50_000})
@example({an.MEMORY_ANNOTATION: "[" * 100_000})
@example(dict.fromkeys(an.KEYS, "9" * 5000))
@example({an.V1_GPU: "0", an.V1_UNITS: "²"})
def test_nothing_that_anybody_writes_raises(annotations):
    for key in V2:
        assert isinstance(an.shares(annotations, key), Shares | Malformed | None)
    assert isinstance(an.assumed(annotations), Assumed | Malformed | None)
    for key in (an.GROUP_ANNOTATION, an.VISIBLE_ANNOTATION):
        assert isinstance(an.gpu_names(annotations, key), tuple | Malformed | None)


def test_the_containers_of_a_pod_are_summed_for_each_gpu():
    found = an.shares({an.MEMORY_ANNOTATION: '{"0":{"1":1},"1":{"1":7,"0":2},"2":{"3":0}}'}, an.MEMORY_ANNOTATION)
    assert isinstance(found, Shares)
    assert found.by_gpu == {0: 2, 1: 8}


def test_what_is_absent_is_no_mistake():
    assert an.shares({}, an.MEMORY_ANNOTATION) is None
    assert an.assumed({}) is None
    assert an.assumed({an.V1_GPU: "-1"}) is None
    assert an.gpu_names({}, an.GROUP_ANNOTATION) is None
    assert an.gpu_names({an.GROUP_ANNOTATION: ""}, an.GROUP_ANNOTATION) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON object: ''"),
        ("[]", "is no JSON object"),
        ('{"0":3}', "has no GPUs of container 0"),
        ('{"-1":{"0":1}}', "has '-1' for the index of a container"),
        ('{"0":{"0":1},"0":{"0":2}}', "has '0' for the index of a container"),
        ('{"0":{"01":1}}', "has '01' for the number of a GPU"),
        ('{"0":{"٣":1}}', "has '٣' for the number of a GPU"),
        ('{"0":{"1":1,"1":1}}', "has '1' for the number of a GPU"),
        ('{"0":{"1":true}}', "has no whole number of units for GPU 1"),
        ('{"0":{"1":1.0}}', "has no whole number of units for GPU 1"),
        ('{"0":{"1":-1}}', "has no whole number of units for GPU 1"),
        ('{"0":{"1":99999999999}}', "has no whole number of units for GPU 1"),
    ],
)
def test_a_malformed_v2_annotation_says_what_is_wrong_with_it(text, said):
    found = an.shares({an.MEMORY_ANNOTATION: text}, an.MEMORY_ANNOTATION)
    assert isinstance(found, Malformed)
    assert str(found).startswith(f"annotation {an.MEMORY_ANNOTATION} {said}")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (an.V1_GPU, "0,1"),
        (an.V1_GPU, "x"),
        (an.V1_UNITS, "4GiB"),
        (an.V1_UNITS, "9999999999"),
        (an.V1_ASSIGNED, "True"),
    ],
)
def test_a_malformed_v1_annotation_is_named(key, text):
    found = an.assumed({an.V1_GPU: "0", key: text})
    assert isinstance(found, Malformed)
    assert found.key == key


def test_a_long_text_is_cut_in_messages():
    found = an.shares({an.MEMORY_ANNOTATION: "x" * 10_000}, an.MEMORY_ANNOTATION)
    assert len(str(found)) < 200


def test_names_of_gpus_are_numbers_or_uuids():
    assert an.gpu_names({an.GROUP_ANNOTATION: "0, GPU-a"}, an.GROUP_ANNOTATION) == ("0", "GPU-a")
    assert isinstance(an.gpu_names({an.GROUP_ANNOTATION: "1,1"}, an.GROUP_ANNOTATION), Malformed)
