"""Python's threads, locks and queues, and its clock, on the simulated machine."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from typing import Any, Self

from simworld.runtime.kernel import GIVE_WAY, Process, Task, kernel

EPOCH_S = 1_700_000_000.0
"""The wall clock at the beginning."""
_idents = itertools.count(1)


class Lock:
    """As `threading.Lock`."""

    def __init__(self) -> None:
        self._owner: Task | Process | None = None
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = kernel()
        machine.give_way(GIVE_WAY)
        me = machine.current or machine.outside
        if self._owner is None:
            self._owner = me
            return True
        if not blocking:
            return False
        until = None if timeout < 0 else machine.now + timeout
        while self._owner is not None:
            task = machine.current
            assert task is not None, "the simulation itself would wait for a lock"
            left_s = None if until is None else until - machine.now
            if left_s is not None and left_s <= 0:
                return False
            self._waiting.append(task)
            machine.wait(left_s)
            # After a timeout, a release must not count this task among those that it can wake.
            if task in self._waiting:
                self._waiting.remove(task)
        self._owner = me
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        while self._waiting:
            task = self._waiting.popleft()
            if task.process.alive:
                kernel().wake(task)
                return

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """As `threading.RLock`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Task | Process | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = kernel()
        me = machine.current or machine.outside
        if self._owner is me:
            self._depth += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner = me
        self._depth = 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()

    def release_all(self) -> int:
        """Release it however often it is held; how often it was."""
        depth = self._depth
        self._depth = 1
        self.release()
        return depth

    def acquire_again(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As `threading.Condition`."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: deque[Task] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *arguments: object) -> None:
        self._lock.__exit__(*arguments)

    def wait(self, timeout: float | None = None) -> bool:
        machine = kernel()
        task = machine.current
        assert task is not None, "the simulation itself would wait for a condition"
        self._waiting.append(task)
        depth = 1
        if isinstance(self._lock, RLock):
            depth = self._lock.release_all()
        else:
            self._lock.release()
        was_notified = machine.wait(timeout)
        if not was_notified and task in self._waiting:
            self._waiting.remove(task)
        if isinstance(self._lock, RLock):
            self._lock.acquire_again(depth)
        else:
            self._lock.acquire()
        return was_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        machine = kernel()
        until = None if timeout is None else machine.now + timeout
        holds = predicate()
        while not holds:
            left_s = None if until is None else until - machine.now
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
            holds = predicate()
        return holds

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            if not self._waiting:
                return
            kernel().wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting = self._waiting
        self._waiting = []
        for task in waiting:
            kernel().wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        machine = kernel()
        until = None if timeout is None else machine.now + timeout
        while not self._set:
            left_s = None if until is None else until - machine.now
            if left_s is not None and left_s <= 0:
                break
            task = machine.current
            assert task is not None, "the simulation itself would wait for an event"
            self._waiting.append(task)
            machine.wait(left_s)
            if task in self._waiting:
                self._waiting.remove(task)
        return self._set


class Semaphore:
    """As `threading.Semaphore`, and `threading.BoundedSemaphore` too."""

    def __init__(self, value: int = 1) -> None:
        self._free = value
        self._changed = Condition(Lock())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            limit_s = timeout if blocking else 0.0
            if not self._changed.wait_for(lambda: self._free > 0, limit_s):
                return False
            self._free -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._changed:
            self._free += n
            self._changed.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Thread:
    """As `threading.Thread`, of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._ended = Event()

    def start(self) -> None:
        self.ident = next(_idents)
        kernel().spawn(self._work, self.name)

    def _work(self) -> None:
        try:
            self.run()
        finally:
            self._ended.set()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class Timer(Thread):
    """As `threading.Timer`."""

    def __init__(self, interval: float, function: Callable[..., object], *_: object) -> None:
        super().__init__(target=function, name="timer", daemon=True)
        self._interval = interval
        self._canceled = Event()

    def cancel(self) -> None:
        self._canceled.set()

    def run(self) -> None:
        if not self._canceled.wait(self._interval):
            super().run()


class SimpleQueue:
    """As `queue.SimpleQueue`, without a bound."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = Condition(Lock())

    @classmethod
    def __class_getitem__(cls, _: object) -> type[Self]:
        return cls

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._changed:
            limit_s = timeout if block else 0.0
            if not self._changed.wait_for(lambda: self._items, limit_s):
                raise Empty
            return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    put_nowait = put

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


def monotonic() -> float:
    """Virtual monotonic seconds."""
    return kernel().now


def wall_clock() -> float:
    """Virtual seconds since 1970, as the clock of the machine has them on which the process runs."""
    machine = kernel()
    wrong_by_s: float = getattr(machine.process.host, "clock_wrong_by_s", 0.0)
    return EPOCH_S + machine.now + wrong_by_s


def sleep(seconds: float) -> None:
    """As `time.sleep`."""
    kernel().sleep(seconds)
