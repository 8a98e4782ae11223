"""Which pods are idle for certain, and what the label of a namespace stands for."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain.pods.pod import ContainerRef, Controller, Pod, PodName
from gpuagent.domain.usage.idle_policy import LEAST_S, IdlePod, IdlePolicy, idle_pods, parse_policy
from gpuagent.domain.usage.over_time import MOST_GAP_S, HeldUse, NodeUsage, OnGpu

GIB = 1 << 30
IDLE = HeldUse("uid-a", 8 * GIB, GIB, 0.0)
NAME = PodName("ml", "a")
POD = Pod(NAME, "uid-a", "", {}, ())
START = 1000.0


def on(gpu: int, container: str = "main") -> OnGpu:
    return f"GPU-{gpu}", ContainerRef(NAME, container)


def read(*readings: dict[OnGpu, HeldUse], pace_s: float = 10.0) -> tuple[NodeUsage, float]:
    """One reading after the other. Returns the time of the last one, too."""
    usage = NodeUsage()
    at = START
    for number, reading in enumerate(readings):
        at = START + number * pace_s
        usage = usage.next(reading, at)
    return usage, at


HOURS = int(LEAST_S / 10) + 1
"""Readings until a pod counts as idle."""


def found(*readings: dict[OnGpu, HeldUse], pod: Pod = POD, **how: Any) -> list[IdlePod]:
    usage, at = read(*readings, **how)
    return list(idle_pods(usage, [pod], at))


def test_a_pod_is_idle_since_its_gpus_worked_last() -> None:
    busy = replace(IDLE, busy=0.5)
    assert found(*[{on(0): IDLE}] * HOURS) == [IdlePod(NAME, "uid-a", START)]
    assert found(*[{on(0): IDLE}] * (HOURS - 1)) == []
    assert found({on(0): busy}, *[{on(0): IDLE}] * HOURS) == [IdlePod(NAME, "uid-a", START)]
    assert found(*[{on(0): IDLE}] * HOURS, {on(0): busy}) == []


def test_all_of_its_containers_and_gpus_have_to_be_idle() -> None:
    busy = replace(IDLE, busy=0.01)
    assert found(*[{on(0): IDLE, on(1): busy}] * HOURS) == []
    assert found(*[{on(0): IDLE, on(0, "side"): busy}] * HOURS) == []
    assert len(found(*[{on(0): IDLE, on(1): IDLE}] * HOURS)) == 1


@pytest.mark.parametrize("unknown", [replace(IDLE, busy=None), replace(IDLE, busy=None, used_bytes=None)])
def test_a_pod_whose_idleness_is_not_known_is_never_idle(unknown: HeldUse) -> None:
    assert found(*[{on(0): unknown}] * HOURS) == []
    assert found(*[{on(0): IDLE, on(1): unknown}] * HOURS) == []
    one_failed = [*[{on(0): IDLE}] * HOURS, {on(0): unknown}, *[{on(0): IDLE}] * (HOURS - 1)]
    assert found(*one_failed) == []


def test_a_gap_without_readings_begins_the_time_again() -> None:
    assert found(*[{on(0): IDLE}] * HOURS, pace_s=MOST_GAP_S + 1) == []
    usage, at = read(*[{on(0): IDLE}] * HOURS)
    assert list(idle_pods(usage, [POD], at + MOST_GAP_S + 1)) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(POD, uid="uid-b"),
        replace(POD, uid=""),
        replace(POD, ended=True),
        replace(POD, deleting=True),
        replace(POD, name=PodName("other", "a")),
    ],
)
def test_other_pods_are_not_meant(other: Pod) -> None:
    assert found(*[{on(0): IDLE}] * HOURS, pod=other) == []


def test_a_static_pod_is_known_as_one() -> None:
    (idle,) = found(*[{on(0): IDLE}] * HOURS, pod=replace(POD, controller=Controller("Node", "n")))
    assert idle.is_static


@pytest.mark.parametrize(
    ("label", "policy"),
    [
        ("report-after-10m", IdlePolicy("report", 600, "report-after-10m")),
        ("evict-after-8h", IdlePolicy("evict", 8 * 3600, "evict-after-8h")),
        ("evict-after-2d", IdlePolicy("evict", 2 * 86400, "evict-after-2d")),
        (None, None),
        ("", None),
        ("evict", None),
        ("evict-after-9m", None),
        ("evict-after-0h", None),
        ("evict-after-08h", None),
        ("evict-after-8", None),
        ("evict-after-8h ", None),
        ("Evict-after-8h", None),
        ("evict-after-٨h", None),
    ],
)
def test_a_label_is_a_policy_or_nothing(label: str | None, policy: IdlePolicy | None) -> None:
    assert parse_policy(label) == policy
