"""What schedulers write on pods is read whole, written back the same, and never trusted."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import Assumed, Malformed, Shares
from tests.unit.domain import hostile

V2 = (an.MEMORY_ANNOTATION, an.CORE_ANNOTATION)
numbers = st.integers(0, 9999)
units = st.integers(0, an.MOST_UNITS)
some_shares = st.builds(Shares, st.dictionaries(numbers, st.dictionaries(numbers, units, max_size=3), max_size=3))
some_assumed = st.builds(
    Assumed,
    numbers,
    st.none() | units,
    st.none() | units,
    st.none() | st.integers(0, 10**19),
    st.none() | st.booleans(),
)
NUMBERS = {gpu: n for n, gpu in enumerate(hostile.UUIDS)}
"""UUID to minor number of a node's GPUs."""
LONGEST = 1000
"""Characters of a message, whatever stands in the annotation."""


@given(some_shares)
def test_v2_reads_back_what_was_written(found):
    for key in V2:
        assert an.shares({key: an.shares_text(found)}, key) == found


@given(some_assumed)
def test_v1_reads_back_what_was_written(found):
    assert an.assumed(an.assumed_texts(found)) == found


@given(hostile.anything, st.sampled_from([{}, NUMBERS]))
@example('{"0":' * 50_000, {})
@example("[" * 100_000, {})
@example('{"0":{"1":' + "9" * 5000 + "}}", {})
def test_whatever_stands_in_v2_is_shares_within_bounds_or_malformed(value, numbers):
    for key in V2:
        found = an.shares({key: value}, key, numbers)
        if isinstance(found, Shares):
            assert all(0 <= n <= 9999 for gpus in found.containers.values() for n in (*found.containers, *gpus))
            assert all(
                type(n) is int and 0 <= n <= an.MOST_UNITS for gpus in found.containers.values() for n in gpus.values()
            )
            assert an.shares({key: an.shares_text(found)}, key) == found
        else:
            assert (found is None) == (value is None)
            assert found is None or (found.key == key and len(str(found)) < LONGEST)


@given(
    st.fixed_dictionaries({an.V1_GPU: hostile.anything}, optional=dict.fromkeys(an.V1_KEYS[1:], hostile.anything)),
    st.sampled_from([{}, NUMBERS]),
)
@example(dict.fromkeys(an.KEYS, "9" * 5000), {})
@example({an.V1_GPU: "0", an.V1_UNITS: "²"}, {})
def test_whatever_stands_in_v1_is_a_decision_within_bounds_or_malformed(annotations, numbers):
    found = an.assumed(annotations, numbers)
    if isinstance(found, Assumed):
        assert 0 <= found.gpu <= 9999
        assert all(n is None or 0 <= n <= an.MOST_UNITS for n in (found.units, found.gpu_units))
        assert found.assumed_ns is None or 0 <= found.assumed_ns < 10**20
        assert an.assumed(an.assumed_texts(found)) == found
    else:
        assert (found is None) == (annotations[an.V1_GPU] in (None, "-1"))
        assert found is None or (found.key in an.V1_KEYS and len(str(found)) < LONGEST)


@given(hostile.anything)
@example("0," * 100_000)
def test_whatever_stands_in_a_list_of_gpus_is_names_none_twice_or_malformed(value):
    for key in (an.GROUP_ANNOTATION, an.VISIBLE_ANNOTATION):
        found = an.gpu_names({key: value}, key)
        if isinstance(found, tuple):
            assert len(set(found)) == len(found)
            assert an.gpu_names({key: ",".join(found)}, key) == (found if value.strip() else None)
        else:
            assert (found is None) == (value in (None, ""))
            assert found is None or (found.key == key and len(str(found)) < LONGEST)


@given(hostile.anything, hostile.anything)
def test_gpus_named_for_shares_are_those_of_one_family(newer, older):
    named = an.named_for_shares({an.MEMORY_ANNOTATION: newer, an.V1_GPU: older})
    shares, one = an.shares({"k": newer}, "k"), an.assumed({an.V1_GPU: older})
    if isinstance(shares, Shares) and shares.by_gpu:
        assert named == set(shares.by_gpu)
    else:
        assert named == ({one.gpu} if isinstance(one, Assumed) else None)


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
    ("text", "expected"),
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
def test_a_malformed_v2_annotation_says_what_is_wrong_with_it(text, expected):
    found = an.shares({an.MEMORY_ANNOTATION: text}, an.MEMORY_ANNOTATION)
    assert isinstance(found, Malformed)
    assert str(found).startswith(f"annotation {an.MEMORY_ANNOTATION} {expected}")


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


def test_every_annotation_of_a_pod_that_the_agent_knows_is_kept():
    """The others are dropped, so whoever reads one of them would find nothing on any pod."""
    names = [name for name in vars(an) if name.endswith("_ANNOTATION") or name.startswith("V1_")]
    known = {key for key in (getattr(an, name) for name in names) if isinstance(key, str)}
    assert known == set(an.KEYS) == set(an.bounded(dict.fromkeys(known, "x")))
