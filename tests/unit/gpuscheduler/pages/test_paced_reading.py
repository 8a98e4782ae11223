"""One reading serves all who ask before it begins, and readings leave the loop time."""

import asyncio
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from gpuscheduler.pages import paced_reading
from gpuscheduler.pages.heartbeat import STALLED_S, Heartbeat
from gpuscheduler.pages.paced_reading import RECENT_S, PacedReading, RecentReading
from standin.waiting import PATIENCE_S

THREADS = 8


class Counter:
    def __init__(self):
        self.readings = 0
        self.go_on = asyncio.Event()
        self.began = asyncio.Event()
        self.error = None

    async def read(self):
        self.readings += 1
        number = self.readings
        self.began.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        return number


def test_all_who_ask_before_a_reading_begins_share_it_and_later_ones_get_the_next(monkeypatch):
    monkeypatch.setattr(paced_reading, "GAP_S", 0.0)

    async def scenario():
        counter = Counter()
        reading = PacedReading(counter.read)
        running = asyncio.create_task(reading.run())
        loop = asyncio.get_running_loop()
        first = loop.run_in_executor(pool, reading.get)
        await counter.began.wait()
        later = [loop.run_in_executor(pool, reading.get) for _ in range(THREADS - 1)]
        while len(reading._asking) < THREADS - 1:  # noqa: ASYNC110, SLF001 (threads that have asked)
            await asyncio.sleep(0.001)
        counter.go_on.set()
        assert await first == 1
        assert set(await asyncio.gather(*later)) == {2}
        running.cancel()

    with ThreadPoolExecutor(THREADS) as pool:
        asyncio.run(scenario())


def test_a_reading_that_fails_fails_for_those_who_asked_and_the_next_one_is_tried():
    async def scenario():
        counter = Counter()
        counter.go_on.set()
        counter.error = RuntimeError("a bug")
        reading = PacedReading(counter.read)
        running = asyncio.create_task(reading.run())
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.to_thread(reading.get)
        counter.error = None
        assert await asyncio.to_thread(reading.get) == 2
        running.cancel()

    asyncio.run(scenario())


def test_readings_get_a_tenth_of_the_loop(monkeypatch):
    pauses = []
    clock = [0.0]
    monkeypatch.setattr(paced_reading.time, "monotonic", lambda: clock[0])

    async def scenario():
        async def read():
            clock[0] += 2.0

        async def pause(seconds):
            pauses.append(seconds)
            raise asyncio.CancelledError

        reading = PacedReading(read)
        reading._ask(paced_reading.Future())  # noqa: SLF001
        monkeypatch.setattr(paced_reading.asyncio, "sleep", pause)
        with pytest.raises(asyncio.CancelledError):
            await reading.run()

    asyncio.run(scenario())
    assert pauses == [18.0]


def test_the_end_lets_go_of_all_who_wait():
    async def scenario():
        counter = Counter()
        reading = PacedReading(counter.read)
        running = asyncio.create_task(reading.run())
        waiting = asyncio.create_task(asyncio.to_thread(reading.get))
        await counter.began.wait()
        running.cancel()
        with pytest.raises((CancelledError, asyncio.CancelledError)):
            await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(scenario())


def test_a_loop_that_stands_still_is_a_problem(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("gpuscheduler.pages.heartbeat.time.monotonic", lambda: clock[0])
    heartbeat = Heartbeat()
    assert heartbeat.problem() is None
    clock[0] = STALLED_S + 2
    assert heartbeat.problem() == "the scheduler's event loop has stood still for 12 s"

    async def turn():
        task = asyncio.create_task(heartbeat.run())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(turn())
    assert heartbeat.problem() is None


def test_many_who_watch_share_a_recent_value(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(paced_reading.time, "monotonic", lambda: clock[0])
    values = iter(range(10))
    recent = RecentReading(lambda: next(values))
    assert [recent.get(), recent.get()] == [0, 0]
    clock[0] += RECENT_S
    assert [recent.get(), recent.get()] == [1, 1]


def test_after_a_reading_that_took_long_nobody_waits_for_the_next_one(monkeypatch):
    """It begins only after a pause of nine times as long."""
    clock = [0.0]
    monkeypatch.setattr(paced_reading.time, "monotonic", lambda: clock[0])
    values = iter(range(10))

    def get():
        clock[0] += 0.5
        return next(values)

    recent = RecentReading(get)
    assert recent.get() == 0
    clock[0] += RECENT_S
    assert recent.get() == 0
    clock[0] += 9 * 0.5 - RECENT_S
    assert recent.get() == 1


def test_the_last_value_is_served_while_the_next_one_takes_long(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(paced_reading.time, "monotonic", lambda: clock[0])
    answers = iter([TimeoutError(), "first", TimeoutError(), "second"])

    def get():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recent = RecentReading(get)
    with pytest.raises(TimeoutError):
        recent.get()
    assert recent.get() == "first"
    clock[0] += RECENT_S
    assert recent.get() == "first"
    assert recent.get() == "second"
