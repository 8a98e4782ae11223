"""Pods whose claims were not prepared, or not unprepared, are changed, so that kubelet tries them again."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain.dra.unprepared import WaitingPod
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kube.write.prepare_again import FIRST_S, QUICK, SLOW_S, PrepareAgain


class Api:
    """Counts requests."""

    def __init__(self) -> None:
        self.driver, self.read, self.changed = DRA_DRIVER, 0, 0

    def get(self, _path: str, _keep: object = None) -> dict[str, Any]:
        self.read += 1
        return {"status": {"allocation": {"devices": {"results": [{"driver": self.driver}]}}}}

    def patch(self, _path: str, _body: object) -> None:
        self.changed += 1


class Waiting:
    """A pod that waits, and time that passes in steps of a second."""

    def __init__(self) -> None:
        self.api, self.now = Api(), 0.0
        self.writer = PrepareAgain(self.api, lambda: self.now)  # type: ignore[arg-type]
        self.pod = WaitingPod(PodName("ml", "p"), "u", frozenset({"c"}))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.writer.desire([self.pod])
            self.writer.attempt(self.pod)
            self.now += 1.0


@pytest.fixture
def one() -> Waiting:
    return Waiting()


def test_a_pod_is_changed_often_at_first(one: Waiting) -> None:
    one.wait(FIRST_S * (QUICK + 1))
    assert one.api.changed == QUICK
    one.wait(3 * SLOW_S)
    assert one.api.changed == QUICK + 3


def test_claims_of_other_drivers_are_read_seldom(one: Waiting) -> None:
    """A pod may wait long, for a volume for example, and have many of them."""
    one.api.driver = "nic.example.com"
    one.wait(4 * SLOW_S)
    assert one.api.read <= 4
    assert not one.api.changed


def test_a_pod_that_waits_again_is_changed_often_again(one: Waiting) -> None:
    """After a reboot, for example: what is known of a pod is forgotten when it waits no longer."""
    one.wait(FIRST_S * (QUICK + 1))
    one.writer.desire([])
    one.wait(FIRST_S * (QUICK + 1))
    assert one.api.changed == 2 * QUICK


def test_a_pod_is_changed_at_once_when_what_was_in_its_way_has_gone(one: Waiting) -> None:
    """It has waited so long that it is tried rarely."""
    one.pod = replace(one.pod, in_the_way=frozenset({"in the way", "stays"}))
    one.wait(FIRST_S * (QUICK + 1))
    before = one.api.changed
    one.pod = replace(one.pod, in_the_way=frozenset({"stays"}))
    one.wait(1)
    assert one.api.changed == before + 1
    one.wait(FIRST_S * QUICK)
    assert one.api.changed == before + QUICK


def test_a_pod_that_kubelet_has_not_tried_long_is_left_alone_when_another_claim_goes(one: Waiting) -> None:
    one.pod = replace(one.pod, in_the_way=frozenset({"another"}))
    one.wait(1)
    one.pod = replace(one.pod, in_the_way=frozenset())
    one.wait(1)
    assert not one.api.changed


def test_a_pod_that_ends_is_changed_once(one: Waiting) -> None:
    """After that, the agent is there when kubelet calls."""
    one.pod = replace(one.pod, is_ending=True)
    one.wait(FIRST_S)
    assert not one.api.changed
    one.wait(10 * SLOW_S)
    assert (one.api.changed, one.api.read) == (1, 1)


def test_a_pod_that_has_waited_long_and_ends_is_changed_as_soon_as_others(one: Waiting) -> None:
    one.wait(FIRST_S * (QUICK + 1))
    before = one.api.changed
    one.pod = replace(one.pod, is_ending=True)
    one.wait(FIRST_S + 1)
    assert one.api.changed == before + 1
