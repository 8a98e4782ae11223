"""When the agent reads kubelet's allocations."""

import itertools
import math
import threading
import time

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import ContainerRef, Holding, PodName
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from standin.waiting import PATIENCE_S

LISTED = Holding(ContainerRef(PodName("ml", "late"), "main"), GPU_MEM, frozenset({"ga-m-1"}))


class Kubelet:
    """Has one allocation, but not in its first reads after `record`."""

    problem = ""

    def __init__(self) -> None:
        self.recorded_after = math.inf
        self.reads, self.posted, self.changed = list[float](), list[ev.Event](), threading.Condition()

    def record(self, late: int = 0) -> None:
        self.recorded_after = len(self.reads) + late

    def list(self) -> tuple[Holding, ...]:
        self.reads.append(time.monotonic())
        return (LISTED,) if len(self.reads) > self.recorded_after else ()

    def post(self, event: ev.Event) -> None:
        with self.changed:
            self.posted.append(event)
            self.changed.notify_all()

    def wait(self, condition) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, PATIENCE_S)

    def shown(self) -> bool:
        last = self.posted[-1] if self.posted else None
        return isinstance(last, ev.HoldingsRead) and last.holdings == (LISTED,)


@pytest.fixture
def kubelet():
    return Kubelet()


@pytest.fixture
def watch(kubelet, tmp_path):
    """Has read once; its period is so long that it reads on request only."""
    made = HoldingsWatch(kubelet, kubelet.post, lambda _timeout_s: True, time.monotonic, tmp_path)
    made.period_s = 1e6
    made.start()
    assert made.read(PATIENCE_S)
    yield made
    made.stop()


def test_an_allocation_that_kubelet_records_late_is_read_when_it_is_there(kubelet, watch):
    kubelet.record(late=3)
    watch.refresh_soon()
    assert kubelet.wait(kubelet.shown)


def test_reads_after_an_answer_come_ever_more_rarely(kubelet, watch):
    before = len(kubelet.reads)
    watch.refresh_soon()
    at = time.monotonic()
    assert kubelet.wait(lambda: kubelet.reads[-1] - at >= 1.0)
    ages = [began - at for began in kubelet.reads[before:]]
    assert all(later >= 2 * sooner for sooner, later in itertools.pairwise(ages)), ages


def test_the_next_answer_does_not_wait_for_the_reads_after_an_earlier_one(kubelet, watch, monkeypatch):
    watch.refresh_soon()
    monkeypatch.setattr(watch, "_clock", lambda: time.monotonic() + 2 * PATIENCE_S)
    assert watch.read(PATIENCE_S)
    kubelet.record()
    watch.refresh_soon()
    assert kubelet.wait(kubelet.shown)
