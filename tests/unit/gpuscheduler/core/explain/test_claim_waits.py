"""Pods with claims that wait are told why: after a moment, when the reason changes, and seldom if it stays."""

import pytest

from gpuscheduler.core.explain.claim_waits import (
    AGAIN_LIMIT_S,
    AGAIN_S,
    FIRST_S,
    MOST_AT_ONCE,
    MOST_OF_NAMESPACE,
    REPEATED_S,
    UNTRIED_S,
    ClaimWaits,
)
from tests.unit.gpuscheduler.core.explain.cluster_objects import pod


@pytest.fixture
def waits():
    return ClaimWaits(lambda scheduler: scheduler != "other")


def told(waits, reason, until, step=1.0):
    """The times at which the pod `chat` is told, if `reason` gives why it waits at a time."""
    at = 0.0
    found = []
    while at <= until:
        for each in waits.due(at):
            report = waits.explained(each.uid, reason(at), at)
            if report:
                found.append((at, report.message))
        at += step
    return found


def of_team(name, namespace):
    found = pod("mine", name=name)
    found["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{name}"}
    return found


def test_a_pod_is_told_once_it_has_waited_a_moment(waits):
    waits.seen(pod("mine"), 0.0)
    assert told(waits, lambda at: "why", 1000.0) == [(FIRST_S, "why")]


def test_a_pod_that_is_not_tried_is_told_later(waits):
    waits.seen(pod("mine", said=""), 0.0)
    assert told(waits, lambda at: "why", 100.0) == [(UNTRIED_S, "why")]


def test_a_refusal_makes_it_sooner(waits):
    waits.seen(pod("mine", said=""), 0.0)
    waits.seen(pod("mine"), 3.0)
    assert told(waits, lambda at: "why", 10.0) == [(3.0 + FIRST_S, "why")]


def test_another_reason_is_told_with_pauses_that_grow(waits):
    waits.seen(pod("mine"), 0.0)
    found = told(waits, lambda at: f"free: {at:.0f}", 7200.0)
    times = [at for at, _ in found]
    pauses = [later - at for at, later in zip(times, times[1:], strict=False)]
    assert pauses[:4] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S]
    assert set(pauses[4:]) == {AGAIN_LIMIT_S}


def test_changes_of_the_pod_bring_no_further_events(waits):
    """Anybody who may edit a pod may do so each second."""
    found = []
    for at in range(3600):
        waits.seen(pod("mine", labels={"n": str(at)}), float(at))
        for each in waits.due(float(at)):
            found.append(waits.explained(each.uid, f"why {at}", float(at)))
    assert len(found) < 12


def test_an_equal_reason_is_told_again_before_its_event_ends(waits):
    waits.seen(pod("mine"), 0.0)
    times = [at for at, _ in told(waits, lambda at: "why", 7200.0)]
    assert len(times) == 3
    assert all(REPEATED_S <= later - at < 3600 for at, later in zip(times, times[1:], strict=False))


def test_claims_that_keep_the_pod_from_nothing_are_not_told(waits):
    waits.seen(pod("mine"), 0.0)
    assert told(waits, lambda at: "", 1000.0) == []


@pytest.mark.parametrize(
    "ended",
    [
        pod("mine", nodeName="node-1"),
        pod("mine", gates=["other"]),
        pod("mine") | {"status": {"phase": "Failed"}},
        pod(),
    ],
)
def test_a_pod_that_waits_no_more_is_forgotten(waits, ended):
    waits.seen(ended, 0.0)
    assert len(waits) == 0
    waits.seen(pod("mine"), 0.0)
    waits.seen(ended, 1.0)
    assert len(waits) == 0
    assert waits.explained("uid-chat", "why", 2.0) is None


def test_pods_of_another_scheduler_are_told_as_soon_as_they_are_to_be_told():
    """A scheduler that starts sees the pods before it sees the devices."""
    told_of = {"ours"}
    made = ClaimWaits(lambda scheduler: scheduler in told_of)
    made.seen(pod("mine", schedulerName="stock"), 0.0)
    assert not made.due(100.0)
    told_of.add("stock")
    assert [each.uid for each in made.due(100.0)] == ["uid-chat"]


def test_no_namespace_keeps_others_back(waits):
    for number in range(3 * MOST_OF_NAMESPACE):
        waits.seen(of_team(f"p{number}", "large"), 0.0)
    waits.seen(of_team("p", "small"), 1.0)
    assert len(waits) == MOST_OF_NAMESPACE + 1
    due = [each.name.namespace for each in waits.due(10.0)]
    assert due[:2] == ["large", "small"]
    assert len(due) == MOST_AT_ONCE
    waits.gone("large-p0")
    waits.seen(of_team("new", "large"), 1.0)
    assert len(waits) == MOST_OF_NAMESPACE + 1


@pytest.mark.parametrize("odd", [{}, {"spec": 7}, {"metadata": [], "spec": {"resourceClaims": [7, {}]}}])
def test_odd_pods_end_nothing(waits, odd):
    waits.seen(odd, 0.0)
    assert [each.uid for each in waits.due(100.0)] in ([], [""])
