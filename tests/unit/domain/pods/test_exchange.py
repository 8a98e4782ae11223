"""What kubelet's ids were exchanged for, as text in its checkpoint."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.pods.exchange import by_units, joined, key, picks_itself, read, written
from gpuagent.domain.pods.pod import CheckpointEntry, Holding
from tests.unit.domain.builders import MEM, owner

UNITS = st.builds(
    "{}-{}-{}".format, st.sampled_from(["8a56a4bc", "0"]), st.sampled_from(["mc", "mm"]), st.integers(0, 300)
)
PAIRS = st.lists(st.tuples(UNITS, UNITS), min_size=1, max_size=60, unique_by=(lambda p: p[0], lambda p: p[1])).map(dict)


@given(PAIRS)
def test_what_is_written_is_read(exchanged):
    assert read(written(exchanged), exchanged.keys()) == exchanged


def test_units_in_a_row_take_little_room():
    exchanged = {f"a-mm-{n:03}": f"b-mm-{n}" for n in range(80)} | {"a-mm-999": "b-mm-90"}
    assert written(exchanged) == "b-mm:0-79,b-mm:90"


@pytest.mark.parametrize(
    "text", ["", "b-mm", "b-mm:x", "b-mm:1", "b-mm:0-2", "b-mm:5-4,b-mm:1", "b-mm:0-99999999999", "b-mm:1,"]
)
def test_what_was_not_written_for_these_ids_is_an_error(text):
    with pytest.raises(ValueError, match="."):
        read(text, ["a-mm-0", "a-mm-1"])


@given(st.text(st.sampled_from("8a56-mc:,0123456789٣ "), max_size=40), st.integers(1, 6))
def test_whatever_stands_there_is_one_unit_for_each_id_or_an_error(text, count):
    with suppress(ValueError):
        assert len(read(text, [f"a-mm-{n}" for n in range(count)])) == count


@given(PAIRS, PAIRS)
def test_no_unit_stands_for_two_ids(older, newer):
    both = joined(older, newer)
    assert len(set(both.values())) == len(both)
    assert both.items() >= newer.items()
    assert both.items() - newer.items() <= older.items()


def test_the_checkpoint_has_units_in_place_of_ids():
    """An entry without a record is of a plugin, or a time, that took the ids for what they say."""
    record = CheckpointEntry(
        "uid-a", "main", MEM, frozenset({"x-mm-0", "x-mm-1"}), {"x-mm-0": "y-mm-3", "x-mm-1": "y-mm-4"}
    )
    plain = CheckpointEntry("uid-b", "main", MEM, frozenset({"x-mm-2"}))
    held = (Holding(owner("a"), MEM, record.ids), Holding(owner("b"), MEM, plain.ids))
    holdings, checkpoint, exchanged = by_units(held, (record, plain))
    assert [sorted(h.ids) for h in holdings] == [["y-mm-3", "y-mm-4"], ["x-mm-2"]]
    assert [sorted(e.ids) for e in checkpoint] == [["y-mm-3", "y-mm-4"], ["x-mm-2"]]
    assert exchanged == record.exchanged


def test_the_two_resources_of_a_container_have_annotations_of_their_own():
    assert key("aliyun.com/gpu-mem") == "gpuagent/units.gpu-mem"
    assert key("aliyun.com/gpu-core.percentage") == "gpuagent/units.gpu-core.percentage"


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("v1.18.20", True, True),
        ("v1.18.20-aliyun.1", True, True),
        ("1.9.0", True, True),
        ("v1.19.16", True, False),
        ("v1.20.0", False, False),
        ("v1.36.3", False, False),
        ("v1.180.1", False, False),
        ("v2.0.0", False, False),
        ("", False, False),
        ("x", False, False),
    ],
)
def test_which_kubelets_pick_units_themselves(version, before, after):
    """Of 1.19 that is known once it has asked."""
    assert picks_itself(version, asked=False) is before
    assert picks_itself(version, asked=True) is after
