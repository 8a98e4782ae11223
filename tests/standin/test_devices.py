"""The accounting, without any RPC."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.devices import AllocationError, Devices, Slot
from tests.standin.sample_plugin import MEM, devices

ANSWER = dp.ContainerAllocateResponse()


def slot(uid: str, container: str = "c") -> Slot:
    return Slot(uid, container, MEM)


def take(
    table: Devices,
    where: Slot,
    count: int,
    *,
    preferred: Collection[str] = (),
    reusable: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> frozenset[str]:
    chooser = table.choose(where, count, reusable, numa)
    try:
        next(chooser)
        chooser.send(preferred)
    except StopIteration as done:
        return frozenset(done.value)
    raise AssertionError


def table(*ids: str, seed: int = 0, double: bool = False, checks_health: bool = True) -> Devices:
    made = Devices(random.Random(seed), double_allocation=double, checks_health=checks_health)
    made.replace(MEM, devices(*ids))
    return made


NAMES = st.sets(st.sampled_from("abcdefgh"))


@given(NAMES, NAMES, st.integers(1, 8), st.integers(0, 99))
def test_preference_is_intersected_filled_and_cut(listed: set[str], wanted: set[str], count: int, seed: int) -> None:
    made = table(*listed, seed=seed)
    if count > len(listed) or not listed:
        with pytest.raises(AllocationError):
            take(made, slot("p"), count, preferred=wanted)
        return
    got = take(made, slot("p"), count, preferred=wanted)
    useful = wanted & listed
    assert len(got) == count
    assert got <= listed
    assert got <= useful if len(useful) >= count else got >= useful


def test_choices_are_random_and_the_seed_repeats_them() -> None:
    assert take(table(*"abcdefgh", seed=5), slot("p"), 4) == take(table(*"abcdefgh", seed=5), slot("p"), 4)
    assert len({take(table(*"abcdefgh", seed=seed), slot("p"), 4) for seed in range(20)}) > 1


def test_reuse_comes_first_and_without_a_question() -> None:
    made = table(*"abcd")
    first = take(made, slot("p", "init"), 2)
    made.commit(slot("p", "init"), first, ANSWER)
    chooser = made.choose(slot("p", "app"), 2, first, None)
    with pytest.raises(StopIteration) as done:
        next(chooser)
    assert done.value.value == first


def test_the_same_container_gets_nothing_new_and_may_not_change() -> None:
    made = table(*"abcd")
    made.commit(slot("p"), take(made, slot("p"), 2), ANSWER)
    assert take(made, slot("p"), 2) == frozenset()
    with pytest.raises(AllocationError, match='changed request for resource "aliyun.com/gpu-mem" from 2 to 3'):
        take(made, slot("p"), 3)


@pytest.mark.parametrize("checks", [True, False])
def test_held_devices_gone_bad_fail_the_container_since_1_25(checks: bool) -> None:
    made = table("a", "b", checks_health=checks)
    made.commit(slot("p"), take(made, slot("p"), 1, preferred=["a"]), ANSWER)
    made.replace(MEM, [*devices("a", health="Unhealthy"), *devices("b")])
    if checks:
        with pytest.raises(AllocationError, match="previously allocated devices are no longer healthy"):
            take(made, slot("p"), 1)
    else:
        assert take(made, slot("p"), 1) == frozenset()


@pytest.mark.parametrize("double", [True, False])
def test_collecting_during_a_call(double: bool) -> None:
    made = table("a", "b", double=double)
    made.commit(slot("ended"), take(made, slot("ended"), 1), ANSWER)
    ids = take(made, slot("p"), 1)
    made.collect({"p"})
    assert (ids <= made.reserved.get(MEM, set())) is not double


def test_a_leak_lasts_until_the_next_rebuild() -> None:
    made = table("a", "b", "c")
    made.commit(slot("p"), take(made, slot("p"), 1), ANSWER)
    take(made, slot("q"), 2)
    made.leak(slot("q"))
    made.collect({"p", "q"})
    with pytest.raises(AllocationError, match="Available: 0"):
        take(made, slot("r"), 1)
    made.collect({"q"})
    assert len(take(made, slot("r"), 3)) == 3


def test_a_veto_keeps_what_was_taken_before_it() -> None:
    made = Devices(random.Random(0))
    made.replace(MEM, [*devices("a", numa=(0,)), *devices("b", numa=(1,))])
    chooser = made.choose(slot("p"), 2, (), [0])
    assert next(chooser).must_include == {"a"}
    chooser.close()
    assert made.reserved[MEM] == {"a"}


def test_topology() -> None:
    made = Devices(random.Random(0))
    made.replace(MEM, [*devices(*"ab", numa=(0,)), *devices(*"cd", numa=(1,)), *devices("z")])
    assert take(made, slot("p"), 3, numa=[1]) & {"c", "d"} == {"c", "d"}
    ids = frozenset("abcdz")
    made.commit(slot("p"), ids, ANSWER)
    assert made.held[slot("p")].by_numa == {0: ("a", "b"), 1: ("c", "d"), -1: ("z",)}
    assert made.held[slot("p")].ids == ids
    assert made.vanished(MEM, "aq") == ["q"]
