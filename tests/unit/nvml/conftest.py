"""A simulated driver behind the real binding, and a watch whose events can be awaited."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuagent.domain.events import Event, HealthRead
from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.health import xid_watch
from gpuagent.nvml.health.health_poll import HealthPoll
from gpuagent.nvml.stall import StallGuard
from gpuagent.nvml.watch import NvmlWatch
from gpuagent.simulation import boxes
from gpuagent.simulation.boxes import Box
from gpuagent.simulation.driver import base_name
from gpuagent.simulation.simulator import Simulator, install
from standin.waiting import PATIENCE_S

E = TypeVar("E")


class RunningWatch:
    """A running NvmlWatch, its events in order."""

    def __init__(self, simulator: Simulator, root: Path, **options: Any) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._simulator = simulator
        quick = {"first_retry_s": 0.01, "most_retry_s": 0.02, "wait_s": 0.05, "links_apart_s": 0.01}
        options = {**quick, "patience_s": PATIENCE_S, "links_patience_s": PATIENCE_S, **options}
        self.watch = NvmlWatch(self._events.put, sysfs=root / "sys", dev=root / "dev", **options)

    def next(self, kind: type[E]) -> E:
        """The next event, which must be of that kind. Of a GPU's health a test hears when it asks for it."""
        event = self._events.get(timeout=PATIENCE_S)
        while isinstance(event, HealthRead) and kind is not HealthRead:
            event = self._events.get(timeout=PATIENCE_S)
        assert isinstance(event, kind), event
        return event

    def quiet(self) -> bool:
        while not self._events.empty():
            if not isinstance(self._events.get(), HealthRead):
                return False
        return True

    def event_named(self, kind: str) -> Any:
        """The next event of that kind; others are passed over."""
        while type(event := self._events.get(timeout=PATIENCE_S)).__name__ != kind:
            pass
        return event

    def any_event(self) -> Event:
        """The next event, whatever it is."""
        return self._events.get(timeout=PATIENCE_S)

    def silent(self) -> bool:
        """Nothing at all was told since the last event that was taken."""
        if not self._events.empty():
            raise AssertionError(f"told: {self._events.get()}")
        return True

    def up(self) -> bool:
        """Wait until faults of every GPU that has events would be heard."""
        until = time.monotonic() + PATIENCE_S
        while not self.watch.health_watch_up and time.monotonic() < until:
            threading.Event().wait(0.002)
        return self.watch.health_watch_up

    def watching(self, *gpus: int) -> None:
        """Wait until exactly these GPUs are registered, each in a set of its own that a thread waits for idly."""

        def so() -> bool:
            sets = sorted(index for events in self._simulator.sets.values() for index in events.registered)
            return sets == list(gpus) and self._simulator.waiters >= len(gpus)

        with self._simulator.joined:
            assert self._simulator.joined.wait_for(so, PATIENCE_S)


def wait_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Wait until the agent has logged this."""
    until = time.monotonic() + PATIENCE_S
    while words not in caplog.text:
        assert time.monotonic() < until, caplog.text
        threading.Event().wait(0.002)


def hangs(simulator: Simulator, call: Pending | None) -> bool:
    """Whether a test makes this call of the simulated driver hang."""
    if call is None:
        return False
    called = base_name(call.function)
    hung = {gpu for name, gpu in tuple(simulator.hanging) if base_name(name) == called}
    # A call about the GPU of an event has its handle only.
    return bool(hung) if call.gpu is None else not hung.isdisjoint({None, call.gpu})


@pytest.fixture(autouse=True)
def only_what_hangs_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of the driver is late where a test makes it hang, and never because the machine is busy."""
    made: list[Simulator] = []
    looked_at: list[HealthPoll] = []
    begin, overdue, first_reading = Simulator.__init__, StallGuard.overdue, HealthPoll.first_reading
    wait_for_end = BoundedQuery.wait

    def hanging(call: Pending | None) -> bool:
        return any(hangs(simulator, call) for simulator in made)

    def wait(query: BoundedQuery[Any]) -> bool:
        while not query.ended and not (hanging(query.pending) and time.monotonic() >= query.until):
            threading.Event().wait(0.002)
        return wait_for_end(query)

    def look(poll: HealthPoll, patience_s: float) -> bool:
        until = time.monotonic() + patience_s
        # GPUs share the patience of the first look at them, so a slow one may leave none for the next.
        is_first = poll not in looked_at
        looked_at.append(poll)
        while is_first and not poll.has_answered:
            hung = {gpu for simulator in made for _, gpu in tuple(simulator.hanging)}
            if not hung.isdisjoint({None, poll.index}) and time.monotonic() >= until:
                break
            threading.Event().wait(0.002)
        return first_reading(poll, 0.0)

    monkeypatch.setattr(HealthPoll, "first_reading", look)
    monkeypatch.setattr(
        Simulator, "__init__", lambda one, *args, **named: (made.append(one), begin(one, *args, **named))[1]
    )
    monkeypatch.setattr(BoundedQuery, "wait", wait)
    monkeypatch.setattr(StallGuard, "overdue", lambda guard: frozenset(filter(hanging, overdue(guard))))
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", PATIENCE_S)


@pytest.fixture
def simulate() -> Iterator[Callable[[Box | str], Simulator]]:
    """Put a box in place of the driver."""
    made: list[Simulator] = []

    def make(box: Box | str) -> Simulator:
        made.append(install(boxes.load(box) if isinstance(box, str) else box))
        return made[-1]

    yield make
    for simulator in reversed(made):
        simulator.close()


@pytest.fixture
def watch(simulate: object, tmp_path: Path) -> Iterator[Callable[..., RunningWatch]]:
    """Start watching; every thread has ended when the test is over."""
    running: list[tuple[Simulator, RunningWatch]] = []

    def start(simulator: Simulator, **options: Any) -> RunningWatch:
        watched = RunningWatch(simulator, tmp_path, **options)
        running.append((simulator, watched))
        watched.watch.start()
        return watched

    yield start
    for simulator, watched in running:
        simulator.unhang()
        watched.watch.stop()
    for thread in threading.enumerate():
        if thread.name.startswith("nvml-") and thread.name != "nvml-faults":
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


def box(count: int, **gpu: Any) -> Box:
    """A box of `count` equal GPUs."""
    options = {"model": "NVIDIA A10", "memory_mib": 23028, "reserved_mib": 512, "compute_capability": (8, 6), **gpu}
    return Box(
        name="test",
        gpus=tuple(
            boxes.BoxGpu(
                uuid=boxes.uuid_of("test", index), minor=index, pci_bus_id=f"00000000:{index + 1:02X}:00.0", **options
            )
            for index in range(count)
        ),
    )


@pytest.fixture
def make_box() -> Callable[..., Box]:
    return box
