"""The stand-in API server, a client for it with short timeouts, and a recorder of what is posted."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.system.backoff import Backoff
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S


class PostedEvents:
    """Takes events from any thread; ``wait`` returns the first, from ``start`` on, that fits."""

    def __init__(self) -> None:
        self.events: list[NodeSeen | PodsSeen | ApiUnavailable] = []
        self._changed = threading.Condition()

    def __call__(self, event: NodeSeen | PodsSeen | ApiUnavailable) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, fits: Callable[[Any], bool], start: int = 0, timeout_s: float = PATIENCE_S) -> Any:  # noqa: ANN401
        def found() -> list[Any]:
            return [event for event in self.events[start:] if fits(event)]

        with self._changed:
            assert self._changed.wait_for(found, timeout_s), f"not posted; posted were {self.events[start:]}"
            return found()[0]

    def node(self, start: int = 0) -> NodeSeen:
        event: NodeSeen = self.wait(lambda event: isinstance(event, NodeSeen), start)
        return event

    def pods(self, names: set[str], start: int = 0) -> PodsSeen:
        event: PodsSeen = self.wait(
            lambda event: isinstance(event, PodsSeen) and {pod.name.name for pod in event.pods} == names,
            start,
        )
        return event

    def unavailable(self, text: str, start: int = 0) -> ApiUnavailable:
        event: ApiUnavailable = self.wait(
            lambda event: isinstance(event, ApiUnavailable) and text in event.reason, start
        )
        return event


@pytest.fixture
def posted() -> PostedEvents:
    return PostedEvents()


@pytest.fixture
def quick() -> Callable[[], Backoff]:
    """Delays of hundredths of a second."""
    return lambda: Backoff(first_s=0.02, limit_s=0.1)


@pytest.fixture(scope="session", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load the library once, so that no test's short wait pays for it."""
    with ApiServer() as server:
        Client(str(server.write_kubeconfig(tmp_path_factory.mktemp("kube") / "config"))).connect()


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + PATIENCE_S
    for thread in threading.enumerate():
        if thread.name.startswith("kube-"):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} was left behind"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer("n1") as standin:
        yield standin


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[Client]:
    made = Client(
        str(server.write_kubeconfig(tmp_path / "kubeconfig")), Timeouts(connect_s=PATIENCE_S, call_s=PATIENCE_S)
    )
    yield made
    made.close()
