"""Sums over time: right over gaps, for short-lived containers, and for pods that come again under the same name."""

from dataclasses import replace

import pytest

from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.usage.over_time import (
    KEPT_S,
    MOST_ENDED,
    MOST_GAP_S,
    MOST_NAMESPACES,
    PARTS,
    ContainerUsage,
    HeldUse,
    NodeUsage,
    Sums,
)

GIB = 1 << 30
KEY = ("GPU-0", ContainerRef(PodName("ml", "a"), "main"))
HALF = HeldUse("uid-1", 8 * GIB, 4 * GIB, 0.5)
IDLE = replace(HALF, busy=0.0)
UNKNOWN = replace(HALF, used_bytes=None, busy=None)


def after(*readings: tuple[float, HeldUse | None]) -> ContainerUsage:
    """The sums of one container after these readings."""
    usage = NodeUsage()
    for at, reading in readings:
        usage = usage.next({} if reading is None else {KEY: reading}, at)
    return usage.by_container[KEY]


def test_a_reading_counts_from_its_time_to_that_of_the_next() -> None:
    usage = after((100, HALF), (110, IDLE), (130, HALF))
    assert usage.sums.allocated_s == 30
    assert usage.sums.used_s == 30
    assert usage.sums.busy_s == 5
    assert usage.sums.idle_s == 20
    assert usage.sums.unused_s == 0
    assert usage.sums.allocated_byte_s == 30 * 8 * GIB
    assert usage.sums.used_byte_s == 30 * 4 * GIB
    assert usage.sums.unused_byte_s == 30 * 4 * GIB


def test_an_end_is_counted_up_to_when_it_is_found_and_not_further() -> None:
    usage = after((100, HALF), (110, None), (120, None))
    assert usage.ended == 110
    assert usage.sums.allocated_s == 10


def test_what_is_held_counts_over_a_long_gap_and_what_is_used_does_not() -> None:
    """Kubelet says on both ends that it was held. Nothing says what was used."""
    gap_s = MOST_GAP_S + 1
    usage = after((100, HALF), (100 + gap_s, HALF), (110 + gap_s, HALF))
    assert usage.sums.allocated_s == gap_s + 10
    assert usage.sums.used_s == 10
    assert usage.sums.busy_s == 5
    assert usage.sums.unused_byte_s == 10 * 4 * GIB


def test_use_that_is_not_known_counts_neither_as_use_nor_as_waste() -> None:
    usage = after((100, UNKNOWN), (110, HALF), (120, UNKNOWN), (130, UNKNOWN))
    assert usage.sums.allocated_s == 30
    assert usage.sums.used_s == 10
    assert usage.sums.unused_byte_s == 10 * 4 * GIB
    assert usage.sums.idle_s == 0


def test_a_sum_is_not_known_until_a_reading_knows_it_and_then_begins_at_zero() -> None:
    """A sum of 0 would say that a program was never on the GPU, or that it never worked."""
    unknown = Sums(allocated_s=10, allocated_byte_s=80 * GIB)
    assert after((100, UNKNOWN), (110, UNKNOWN)).sums == unknown
    assert after((100, UNKNOWN), (110, replace(UNKNOWN, busy=0.0))).sums == replace(unknown, busy_s=0, idle_s=0)
    memory_known = replace(unknown, used_s=0, unused_s=0, used_byte_s=0, unused_byte_s=0)
    assert after((100, UNKNOWN), (110, replace(UNKNOWN, used_bytes=GIB))).sums == memory_known


def test_time_without_a_program_is_only_what_is_known() -> None:
    usage = after((100, replace(HALF, used_bytes=0)), (110, UNKNOWN), (130, HALF), (160, HALF))
    assert usage.sums.unused_s == 10
    assert usage.sums.used_s == 30
    assert usage.sums.allocated_s == 60


def test_sums_of_a_namespace_go_on_after_its_containers() -> None:
    """So `increase()` sees what a container held that came and went between two scrapes."""
    train = ContainerRef(PodName("ml", "train"), "main")
    chat = ContainerRef(PodName("web", "chat"), "main")
    usage = NodeUsage()
    usage = usage.next({("GPU-0", train): HALF, ("GPU-1", train): IDLE}, 100)
    assert usage.by_namespace["ml"] == Sums(0, 0, 0, 0, 0, 0, 0, 0)
    usage = usage.next({("GPU-0", train): HALF, ("GPU-0", chat): UNKNOWN}, 110)
    usage = usage.next({}, 120)
    usage = usage.next({}, 120 + KEPT_S)
    assert not usage.by_container
    assert usage.by_namespace == {
        "ml": Sums(30, 30 * 8 * GIB, 30, 0, 30 * 4 * GIB, 30 * 4 * GIB, 10, 10),
        "web": Sums(10, 10 * 8 * GIB),
    }


def test_of_too_many_namespaces_those_that_held_a_gpu_first_are_dropped() -> None:
    usage = NodeUsage()
    stays = {("GPU-0", ContainerRef(PodName("stays", "a"), "main")): HALF}
    for number in range(MOST_NAMESPACES + 20):
        passing = {("GPU-0", ContainerRef(PodName(f"{number:04}", "a"), "main")): HALF}
        usage = usage.next({**stays, **passing}, number)
    usage = usage.next(stays, MOST_NAMESPACES + 20)
    assert set(usage.by_namespace) == {"stays", *(f"{number:04}" for number in range(20, MOST_NAMESPACES + 20))}
    assert usage.by_namespace["stays"].allocated_s == MOST_NAMESPACES + 20


def test_a_clock_that_stands_still_adds_nothing() -> None:
    usage = after((100, HALF), (100, HALF))
    assert usage.sums.allocated_s == 0


def test_a_gpu_of_another_plugin_has_no_held_memory() -> None:
    usage = after((100, replace(HALF, held_bytes=None)), (110, HALF))
    assert usage.sums.allocated_s == 10
    assert usage.sums.allocated_byte_s == 0
    assert usage.sums.unused_byte_s == 0
    assert usage.sums.used_byte_s == 10 * 4 * GIB


def test_idleness_begins_with_the_last_work() -> None:
    assert after((100, HALF)).idle_for(105) == 5
    assert after((100, HALF), (110, IDLE), (120, IDLE)).idle_for(125) == 25
    assert after((100, IDLE), (110, IDLE)).idle_for(110) == 10
    assert after((100, IDLE), (110, HALF)).idle_for(110) == 0


@pytest.mark.parametrize("reading", [UNKNOWN, replace(IDLE, busy=None)])
def test_idleness_begins_anew_after_a_reading_that_failed(reading: HeldUse) -> None:
    assert after((100, IDLE), (110, reading)).idle_for(110) is None
    assert after((100, IDLE), (110, reading), (120, IDLE)).idle_for(125) == 5


def test_idleness_begins_anew_after_a_gap_and_is_not_known_without_a_fresh_reading() -> None:
    late = 101 + MOST_GAP_S
    assert after((100, IDLE)).idle_for(late) is None
    assert after((100, IDLE), (late, IDLE)).idle_for(late + 1) == 1


def test_idleness_and_memory_are_those_of_the_last_pod_of_the_name_and_sums_go_on() -> None:
    later = replace(IDLE, pod_uid="uid-2", used_bytes=GIB)
    usage = after((100, HALF), (110, None), (120, None), (130, later), (140, later))
    assert usage.ended is None
    assert usage.sums.allocated_s == 20  # not the time in between
    assert usage.idle_for(140) == 10
    assert usage.memory.peak_bytes == GIB
    assert usage.memory.usual_bytes(8 * GIB) == GIB


def test_a_pod_that_takes_the_place_of_another_between_two_readings_is_a_later_pod() -> None:
    usage = after((100, IDLE), (110, replace(IDLE, pod_uid="uid-2", used_bytes=GIB)))
    assert usage.idle_for(110) == 0
    assert usage.memory.peak_bytes == GIB


def test_a_container_that_was_missing_for_a_while_was_not_seen_to_be_idle() -> None:
    readings = [(100, IDLE), (110, None), (390, IDLE), (400, IDLE)]
    assert after(*readings).idle_for(400) == 10


def test_sums_stay_for_a_while_after_the_end() -> None:
    usage = NodeUsage().next({KEY: HALF}, 100).next({}, 110)
    assert usage.by_container[KEY].sums.allocated_s == 10
    assert KEY in usage.next({}, 109 + KEPT_S).by_container
    assert KEY not in usage.next({}, 110 + KEPT_S).by_container


def test_of_too_many_that_ended_the_first_are_dropped() -> None:
    usage = NodeUsage()
    keys = [("GPU-0", ContainerRef(PodName("ml", f"{n:04}"), "main")) for n in range(MOST_ENDED + 20)]
    for at, key in enumerate(keys):
        usage = usage.next({key: HALF}, at / 10)
    usage = usage.next({}, 100)
    assert set(usage.by_container) == set(keys[20:])


@pytest.mark.parametrize(
    ("used_gib", "usual_gib"),
    [
        ([1] * 100, 1),
        ([1] * 96 + [8] * 4, 1.2),
        ([1] * 94 + [8] * 6, 8),
        ([0] * 100, 0),
        ([9] * 100, 9),  # a share that nothing enforces
    ],
)
def test_p95_of_used_memory_is_right_to_a_twentieth_of_what_is_held(used_gib: list[int], usual_gib: float) -> None:
    readings = [(float(at), replace(HALF, used_bytes=gib * GIB)) for at, gib in enumerate(used_gib)]
    last = float(len(used_gib)), replace(HALF, used_bytes=used_gib[-1] * GIB)
    usual_bytes = after(*readings, last).memory.usual_bytes(8 * GIB)
    assert usual_bytes is not None
    assert abs(usual_bytes - usual_gib * GIB) <= 8 * GIB / PARTS
    assert after((100, HALF)).memory.usual_bytes(8 * GIB) is None


@pytest.mark.parametrize("held_gib", [4, 16])
def test_p95_is_of_the_time_since_the_container_holds_as_much(held_gib: int) -> None:
    """Twentieths of another amount say nothing about this one."""
    resized = replace(HALF, held_bytes=held_gib * GIB)
    usage = after((0, HALF), (1000, HALF), (1010, resized), (1020, resized))
    usual_bytes = usage.memory.usual_bytes(held_gib * GIB)
    assert usual_bytes is not None
    assert abs(usual_bytes - 4 * GIB) <= held_gib * GIB / PARTS
    assert usage.memory.peak_bytes == 4 * GIB
