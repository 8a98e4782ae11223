"""The driver is called by one thread, and a call that hangs is reported to whoever waits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuagent.limits_helper.driver_thread import DriverThread, HangsError
from gpuagent.nvml.binding.calls import Pending
from standin.waiting import PATIENCE_S


class Hanging:
    """A call that does not return before `release`."""

    def __init__(self) -> None:
        self.pending: Pending | None = None
        self.released = threading.Event()
        self.begun = threading.Event()

    def call(self) -> str:
        self.pending = Pending("nvmlDeviceSetMemoryLimits_v1", 3, 0.0)
        self.begun.set()
        self.released.wait()
        self.pending = None
        return "late"


def test_results_and_errors_reach_the_caller():
    thread = DriverThread(lambda: None)
    assert thread.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 // 0)
    assert thread.run(lambda: 8) == 8


def test_one_call_at_a_time():
    running = 0
    most = 0
    thread = DriverThread(lambda: None, call_s=PATIENCE_S)

    def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(thread.run, call) for _ in range(200)]:
            future.result()
    assert most == 1


def test_a_call_that_hangs_is_named_and_what_waits_behind_it_never_begins():
    hanging = Hanging()
    thread = DriverThread(lambda: hanging.pending, call_s=0.05, clock=lambda: 9.0)
    begun = []
    words = "the driver is busy"
    while "the driver is busy" in words:  # the thread may not have begun the call in time
        with pytest.raises(HangsError) as caught:
            thread.run(hanging.call)
        words = str(caught.value)
    assert "nvmlDeviceSetMemoryLimits_v1 on GPU 3 has not returned for 9.0 s" in words
    with pytest.raises(HangsError, match="on GPU 3"):
        thread.run(lambda: begun.append(1))
    hanging.released.set()
    while True:
        try:
            assert thread.run(lambda: 7) == 7
            break
        except HangsError:
            pass
    assert begun == []


def test_a_caller_that_gave_up_is_not_served_later():
    hanging = Hanging()
    # The call in progress is young, so the caller waits in line.
    thread = DriverThread(lambda: hanging.pending, call_s=0.05, clock=lambda: 0.0)
    begun = []
    while not hanging.begun.is_set():  # the thread may not have begun the call in time
        with pytest.raises(HangsError):
            thread.run(hanging.call)
    with pytest.raises(HangsError, match="driver is busy"):
        thread.run(lambda: begun.append(1))
    hanging.released.set()
    done = threading.Event()
    while not done.is_set():
        try:
            thread.run(done.set)
        except HangsError:
            pass
    assert begun == []
