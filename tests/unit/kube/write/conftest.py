"""A sender of Events, and the clock that it takes their times from."""

from collections.abc import Callable, Iterator

import pytest

from gpuagent.kube.api.client import Client
from gpuagent.kube.write.event_sender import EventSender
from gpuagent.system.backoff import Backoff


class FakeWallClock:
    """A clock that tests set: seconds since the epoch."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> FakeWallClock:
    return FakeWallClock()


@pytest.fixture
def sender(client: Client, wall: FakeWallClock, quick: Callable[[], Backoff]) -> Iterator[EventSender]:
    made = EventSender(client, "n1", wall=wall, backoff=quick(), count_gap_s=0.01)
    made.start()
    yield made
    made.stop()
