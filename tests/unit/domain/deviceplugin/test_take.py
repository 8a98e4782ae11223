"""Which ids of a GPU a container gets."""

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.deviceplugin.assignment import take
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import parse_id
from tests.unit.domain.builders import unit_ids

K = Kind.MEMORY_CGPU


def numbers(ids) -> list[int]:
    return sorted(parse_id(device_id).n for device_id in ids)


def test_the_lowest_numbers_come_first():
    assert numbers(take(unit_ids(0, K, *range(20)), 12, (), ())) == list(range(12))


def test_what_kubelet_has_fixed_is_taken():
    fixed = unit_ids(0, K, 16, 17)
    assert numbers(take(unit_ids(0, K, *range(20)), 5, fixed, ())) == [0, 1, 2, 16, 17]


def test_suspect_ids_come_last():
    suspect = unit_ids(0, K, 12, 13)
    free = unit_ids(0, K, *range(12, 20))
    assert numbers(take(free, 4, (), suspect)) == [14, 15, 16, 17]
    assert set(take(free, 8, (), suspect)) == free, "unavoidable: the caller decides"


@given(st.sets(st.integers(0, 30), min_size=1), st.data())
def test_as_many_as_are_asked_for_and_no_suspect_one_before_a_sound_one(units, data):
    free = unit_ids(0, K, *units)
    fixed = data.draw(st.sets(st.sampled_from(sorted(free))))
    suspect = data.draw(st.sets(st.sampled_from(sorted(free)))) - fixed
    count = data.draw(st.integers(len(fixed), len(free)))
    taken = take(frozenset(data.draw(st.permutations(sorted(free)))), count, fixed, suspect)
    assert fixed <= set(taken) <= free
    assert len(set(taken)) == len(taken) == count
    assert len(suspect.intersection(taken)) == max(0, count - len(free - suspect))
