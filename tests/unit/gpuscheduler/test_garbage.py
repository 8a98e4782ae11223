"""No garbage collection looks at all objects of a large cluster."""

import gc
import time

import pytest

from gpuscheduler import garbage
from gpuscheduler.garbage import keep_collections_short

OBJECTS = 300_000


@pytest.fixture(autouse=True)
def _as_before():
    thresholds = gc.get_threshold()
    callbacks = list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


@pytest.mark.parametrize("times", [1, 2], ids=["once", "by two schedulers"])
def test_full_collections_look_at_new_objects_only(times):
    for _ in range(times):
        keep_collections_short()
    looked_at = []

    def look(phase, info):
        if phase == "start" and info["generation"] == 2:
            looked_at.append(len(gc.get_objects(generation=2)))

    gc.callbacks.append(look)
    pods = [[number] for number in range(OBJECTS)]
    assert len(looked_at) > 5
    assert max(looked_at) < OBJECTS / 5
    assert gc.get_freeze_count() > OBJECTS / 2
    del pods


def test_cycles_of_new_objects_are_still_found():
    keep_collections_short()
    gone = []
    for _ in range(100):
        cycle = _Cycle(gone)
        cycle.itself = cycle
        del cycle
    gc.collect()
    assert len(gone) == 100


def test_cycles_that_a_full_collection_saw_alive_are_found_within_the_hour(monkeypatch):
    keep_collections_short()
    gone = []
    cycle = _Cycle(gone)
    cycle.itself = cycle
    gc.collect()
    del cycle
    gc.collect()
    assert not gone
    later = time.monotonic() + garbage.THOROUGH_S
    monkeypatch.setattr(garbage.time, "monotonic", lambda: later)
    gc.collect()
    gc.collect()
    assert gone == [1]


class _Cycle:
    def __init__(self, gone):
        self.gone = gone
        self.itself = None

    def __del__(self):
        self.gone.append(1)
