"""Every refusal becomes one Event: on its pod, whenever that becomes known, or else on the node."""

from dataclasses import replace

import pytest

from gpuagent.allocator.refusal_events import MOST_WAITING, WAIT_S, RefusalEvents
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import PodName
from tests.unit.domain.builders import pod_json

TEXT = "aliyun.com/gpu-mem: no single GPU has that much"
WORDS = (
    f"Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = {TEXT}, which is unexpected"
)


def pod(name: str, *, rejected: str | None = None):
    found = parse_pod(pod_json(name, {"aliyun.com/gpu-mem": 4}))
    return replace(found, rejected=rejected, ended=rejected is not None)


class SentEvents:
    def __init__(self) -> None:
        self.now = 0.0
        self.messages: list[tuple[str | None, str]] = []
        self.events = RefusalEvents(lambda: self.now, self.send_event)

    def send_event(self, announcement: Announcement) -> None:
        assert (announcement.reason, announcement.warning) == ("GPURefused", True)
        self.messages.extend((pod.name if pod else None, announcement.message) for pod in announcement.pods or (None,))

    @property
    def about(self) -> list[str | None]:
        return [name for name, _ in self.messages]


@pytest.fixture
def sent() -> SentEvents:
    return SentEvents()


def test_a_pod_that_is_known_gets_its_event_at_once(sent):
    sent.events.publish([pod("a")])
    sent.events.add(TEXT, PodName("ml", "a"))
    assert sent.messages == [("a", TEXT)]
    sent.events.publish([pod("a", rejected=WORDS)])
    assert sent.about == ["a"]


def test_a_pod_that_is_named_and_not_seen_yet_gets_its_event_when_it_is_seen(sent):
    sent.events.add(TEXT, PodName("ml", "a"))
    sent.events.publish([pod("b")])
    assert sent.messages == []
    sent.events.publish([pod("b"), pod("a")])
    assert sent.messages == [("a", TEXT)]


def test_a_pod_without_a_name_is_the_one_that_kubelet_fails_with_these_words(sent):
    sent.events.publish([pod("old", rejected=WORDS)])
    sent.events.add(TEXT, None)
    sent.events.publish([pod("old", rejected=WORDS), pod("other"), pod("a")])
    assert sent.messages == []
    sent.events.publish([pod("old", rejected=WORDS), pod("other", rejected="Evicted"), pod("a", rejected=WORDS)])
    assert sent.messages == [("a", TEXT)]


def test_two_refusals_with_the_same_words_are_those_of_two_pods(sent):
    sent.events.add(TEXT, None)
    sent.events.add(TEXT, None)
    sent.events.publish([pod("a", rejected=WORDS)])
    assert sent.about == ["a"]
    sent.events.publish([pod("a", rejected=WORDS), pod("b", rejected=WORDS)])
    assert sent.about == ["a", "b"]
    sent.now = WAIT_S
    sent.events.publish([])
    assert sent.about == ["a", "b"]


@pytest.mark.parametrize("name", [None, PodName("ml", "a")])
def test_what_no_pod_claims_in_time_is_reported_on_the_node(sent, name):
    sent.events.add(TEXT, name)
    sent.now = WAIT_S - 1
    sent.events.publish([])
    assert sent.messages == []
    sent.now = WAIT_S
    sent.events.publish([])
    sent.events.publish([])
    [(about, message)] = sent.messages
    assert about is None
    assert TEXT in message
    assert name is None or str(name) in message


def test_what_waits_is_bounded_and_none_is_lost(sent):
    for n in range(MOST_WAITING + 3):
        sent.events.add(f"{n}: {TEXT}", None)
    assert [
        (about, message.rpartition(" that the API server has not shown: ")[2]) for about, message in sent.messages
    ] == [(None, f"{n}: {TEXT}") for n in range(3)]
    sent.now = WAIT_S
    sent.events.publish([])
    assert len(sent.messages) == MOST_WAITING + 3
