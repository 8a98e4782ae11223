"""Nodes for the conformance checks, and the guard that nothing outlives its test."""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.health.health_poll import HealthPoll
from gpuagent.simulation.simulator import Simulator
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import ClaimNode
from tests.contract.harness import Node, open_sockets


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail the test that leaves a thread or a socket behind."""
    threads, sockets = set(threading.enumerate()), open_sockets()
    yield
    end = time.monotonic() + PATIENCE_S
    while True:
        left = [thread for thread in threading.enumerate() if thread not in threads]
        for thread in left:
            thread.join(max(0.0, end - time.monotonic()))
        found = [thread.name for thread in left if thread.is_alive()] + sorted(open_sockets() - sockets)
        if not found:
            return
        assert time.monotonic() < end, f"left behind: {found}"
        gc.collect()  # some sockets are in cycles
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def only_what_hangs_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of the driver is late where a test makes the driver hang, and never because the machine is busy.

    The product waits 50 ms for what the driver says after an XID, and half a second for the use of a GPU.
    """
    made: list[Simulator] = []
    begin, after_xid, wait_for_end = Simulator.__init__, HealthPoll.after_xid, BoundedQuery.wait

    def note(simulator: Simulator, *args: Any, **named: Any) -> None:
        made.append(simulator)
        begin(simulator, *args, **named)

    def hangs() -> bool:
        return any(simulator.hanging for simulator in made)

    def wait(query: BoundedQuery[Any]) -> bool:
        while not (query.ended or hangs()):
            time.sleep(0.002)
        return wait_for_end(query)

    def after(poll: HealthPoll, uuid: str, patience_s: float) -> HealthReading | None:
        return after_xid(poll, uuid, patience_s if hangs() else PATIENCE_S)

    monkeypatch.setattr(Simulator, "__init__", note)
    monkeypatch.setattr(BoundedQuery, "wait", wait)
    monkeypatch.setattr(HealthPoll, "after_xid", after)


@pytest.fixture
def claim_node(nothing_left: None) -> Iterator[Callable[..., ClaimNode]]:
    """Makes nodes whose pods use claims; see `ClaimNode`."""
    with contextlib.ExitStack() as made:
        yield lambda *args, **named: made.enter_context(ClaimNode(*args, **named))


@pytest.fixture
def node(nothing_left: None) -> Iterator[Callable[..., Node]]:
    """Makes nodes; see `Node`."""
    made: list[Node] = []

    def make(*args: Any, **named: Any) -> Node:
        made.append(Node(*args, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()
