"""Every refusal becomes one Event: on its pod, whenever that becomes known, or else on the node."""

from dataclasses import replace

import pytest

from gpuagent.allocator.refusal_events import MOST_WAITING, WAIT_S, RefusalEvents
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.pod import PodName, parse_pod
from tests.unit.domain.builders import pod_json

TEXT = "aliyun.com/gpu-mem: no single GPU has that much"
WORDS = (
    f"Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = {TEXT}, which is unexpected"
)


def pod(name: str, *, rejected: str | None = None):
    found = parse_pod(pod_json(name, {"aliyun.com/gpu-mem": 4}))
    return replace(found, rejected=rejected, ended=rejected is not None)


class Told:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[tuple[str | None, str]] = []
        self.events = RefusalEvents(lambda: self.now, self.send_event)

    def send_event(self, announcement: Announcement) -> None:
        assert (announcement.reason, announcement.warning) == ("GPURefused", True)
        self.said.extend((pod.name if pod else None, announcement.message) for pod in announcement.pods or (None,))

    @property
    def about(self) -> list[str | None]:
        return [name for name, _ in self.said]


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_pod_that_is_known_is_told_at_once(told):
    told.events.publish([pod("a")])
    told.events.add(TEXT, PodName("ml", "a"))
    assert told.said == [("a", TEXT)]
    told.events.publish([pod("a", rejected=WORDS)])
    assert told.about == ["a"]


def test_a_pod_that_is_named_and_not_seen_yet_is_told_when_it_is_seen(told):
    told.events.add(TEXT, PodName("ml", "a"))
    told.events.publish([pod("b")])
    assert told.said == []
    told.events.publish([pod("b"), pod("a")])
    assert told.said == [("a", TEXT)]


def test_a_pod_without_a_name_is_the_one_that_kubelet_fails_with_these_words(told):
    told.events.publish([pod("old", rejected=WORDS)])
    told.events.add(TEXT, None)
    told.events.publish([pod("old", rejected=WORDS), pod("other"), pod("a")])
    assert told.said == []
    told.events.publish([pod("old", rejected=WORDS), pod("other", rejected="Evicted"), pod("a", rejected=WORDS)])
    assert told.said == [("a", TEXT)]


def test_two_refusals_with_the_same_words_are_those_of_two_pods(told):
    told.events.add(TEXT, None)
    told.events.add(TEXT, None)
    told.events.publish([pod("a", rejected=WORDS)])
    assert told.about == ["a"]
    told.events.publish([pod("a", rejected=WORDS), pod("b", rejected=WORDS)])
    assert told.about == ["a", "b"]
    told.now = WAIT_S
    told.events.publish([])
    assert told.about == ["a", "b"]


@pytest.mark.parametrize("name", [None, PodName("ml", "a")])
def test_what_no_pod_claims_in_time_is_told_of_the_node(told, name):
    told.events.add(TEXT, name)
    told.now = WAIT_S - 1
    told.events.publish([])
    assert told.said == []
    told.now = WAIT_S
    told.events.publish([])
    told.events.publish([])
    [(about, message)] = told.said
    assert about is None
    assert TEXT in message
    assert name is None or str(name) in message


def test_what_waits_is_bounded_and_none_is_lost(told):
    for n in range(MOST_WAITING + 3):
        told.events.add(f"{n}: {TEXT}", None)
    assert [(about, message.rpartition(" that the API server has not shown: ")[2]) for about, message in told.said] == [
        (None, f"{n}: {TEXT}") for n in range(3)
    ]
    told.now = WAIT_S
    told.events.publish([])
    assert len(told.said) == MOST_WAITING + 3
