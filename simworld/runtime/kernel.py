"""Runs every thread of a simulated cluster as a task of one thread, in virtual time, in an order drawn from a seed.

A task gives way only where a real thread could: at a lock, a queue, a wait, a sleep, or a call over a connection. Which
of the ready tasks goes on is drawn. Time passes only when no task is ready, and a little with each turn, so that a loop
that looks at the clock comes to an end. Two runs with one seed are the same to the last task switch.
"""

import heapq
import itertools
import random
import select
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet

_real_poll = select.poll

TURN_S = 0.000_02
"""Longest virtual time that one turn of a task takes."""
GIVE_WAY = 0.05
"""How often a task gives way at a lock although it is free."""


class StuckError(Exception):
    """No task can ever go on, or one waits outside of the simulation."""


class MachineError(BaseException):
    """The real machine lacks something. It ends the run, because what follows would not be the same another time.

    No task may take it for an error of its own.
    """


@dataclass(eq=False, slots=True)
class Process:
    """Tasks that end together, as a killed process does: at once, without a word.

    Attributes:
        host: the node on which it runs, if that matters to what it calls.
        at_end: called when it ends. Connections break here.
    """

    name: str
    host: object = None
    alive: bool = True
    at_end: list[Callable[[], None]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Task:
    """One simulated thread.

    Attributes:
        turn: counts its waits, so that an outdated timer does not wake it.
        woken: whether what it waited for has come; False after a timeout.
    """

    name: str
    process: Process
    body: greenlet | None = None
    turn: int = 0
    waiting: bool = False
    woken: bool = False


class Kernel:
    """The simulated machine: tasks, time, chance.

    Attributes:
        now: virtual monotonic seconds.
        chance: everything that is drawn is drawn from it.
        turns: task switches so far.
        current: the task whose turn it is; None outside of `run`.
        failed: tasks that have ended by an error.
        at_failure: called with each of them when it happens.
    """

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.chance = random.Random(seed)
        self.turns = 0
        self.current: Task | None = None
        self.failed: list[tuple[Task, BaseException]] = []
        self.at_failure: Callable[[Task, BaseException], None] = lambda *_: None
        self.outside = Process("outside")
        # A greenlet returns to its parent: the one that calls `run`, and not the one that started the task.
        self._loop = getcurrent()
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task, int]] = []
        self._numbers = itertools.count()
        # A task that never goes on must not be collected: it would run its finally blocks then.
        self._dropped: list[Task] = []
        self._files: dict[int, list[tuple[Task, int]]] = {}
        self._poll = _real_poll()

    # -- tasks ----------------------------------------------------------------------------------------------------

    def spawn(self, body: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Start a task; it belongs to the process of the task that starts it unless `process` says another."""
        owner = process or self.process
        task = Task(name, owner)
        task.body = greenlet(lambda: self._run(task, body), self._loop)
        self._ready.append(task)
        return task

    @property
    def process(self) -> Process:
        """The process whose task has its turn."""
        return self.outside if self.current is None else self.current.process

    def end(self, process: Process) -> None:
        """Kill a process. Its tasks never go on, and its files stay as they are."""
        if not process.alive:
            return
        process.alive = False
        self._forget_files_of(process)
        # What ends takes itself from the list, so that a process that is gone keeps none of it.
        while process.at_end:
            act = process.at_end.pop(0)
            act()
        if self.current is not None and self.current.process is process:
            self._hub()

    def _run(self, task: Task, body: Callable[[], object]) -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 (as a thread, it ends alone; the checker reports it)
            self.failed.append((task, error))
            self.at_failure(task, error)

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Let other tasks go on until `wake` or a timeout in seconds; whether it was woken."""
        task = self._must_run()
        task.turn += 1
        task.waiting = True
        task.woken = False
        if timeout_s is not None:
            due = self.now + max(0.0, timeout_s)
            heapq.heappush(self._timers, (due, next(self._numbers), task, task.turn))
        self._hub()
        return task.woken

    def wake(self, task: Task) -> None:
        """Let a waiting task go on; harmless if it does not wait."""
        if task.waiting:
            self._go_on(task, woken=True)

    def give_way(self, share: float = 1.0) -> None:
        """Let another task go on first, with this probability."""
        task = self.current
        if task is None or self.chance.random() >= share:
            return
        self._ready.append(task)
        self._hub()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if seconds <= 0:
            self.give_way()
        else:
            self.wait(seconds)

    def wait_for_files(self, descriptors: list[int], timeout_s: float | None) -> None:
        """Wait until a real file descriptor is readable, or for a timeout in seconds."""
        task = self._must_run()
        for descriptor in descriptors:
            waiting = self._files.setdefault(descriptor, [])
            waiting.append((task, task.turn + 1))
            self._poll.register(descriptor, select.POLLIN)
        self.wait(timeout_s)
        for descriptor in descriptors:
            self._forget_file(descriptor, task)

    def _forget_file(self, descriptor: int, task: Task) -> None:
        waiting = self._files.get(descriptor, [])
        remaining = [(other, turn) for other, turn in waiting if other is not task]
        if remaining:
            self._files[descriptor] = remaining
        elif self._files.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _forget_files_of(self, process: Process) -> None:
        """Wait no longer for what dead tasks wanted to read: its number is another file's as soon as it is closed."""
        for descriptor, waiting in list(self._files.items()):
            for task, _ in waiting:
                if task.process is process:
                    self._forget_file(descriptor, task)

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], most_s: float) -> bool:
        """Run until the condition holds; False after so much virtual time. Raises StuckError: nothing can happen."""
        limit = self.now + most_s
        while not until():
            if self.now >= limit:
                return False
            if self._files:
                self._look_at_files()
            if not self._ready:
                self._pass_time(limit)
                continue
            self._turn()
        return True

    def _turn(self) -> None:
        ready = self._ready
        position = self.chance.randrange(len(ready))
        task = ready[position]
        ready[position] = ready[-1]
        ready.pop()
        if not task.process.alive:
            self._dropped.append(task)
            return
        self.turns += 1
        self.now += self.chance.random() * TURN_S
        self.current = task
        assert task.body is not None
        task.body.switch()
        self.current = None

    def _pass_time(self, limit: float) -> None:
        while self._timers:
            due, _, task, turn = self._timers[0]
            is_outdated = not task.waiting or task.turn != turn
            if is_outdated:
                heapq.heappop(self._timers)
                continue
            if due > limit:
                break
            heapq.heappop(self._timers)
            self.now = max(self.now, due)
            self._go_on(task, woken=False)
            return
        if not self._timers:
            raise StuckError("every task waits for another one")
        self.now = limit

    def _look_at_files(self) -> None:
        for descriptor, _ in self._poll.poll(0):
            for task, turn in self._files.get(descriptor, []):
                if task.waiting and task.turn == turn:
                    self._go_on(task, woken=True)

    def _go_on(self, task: Task, *, woken: bool) -> None:
        task.waiting = False
        task.woken = woken
        self._ready.append(task)

    def _must_run(self) -> Task:
        if self.current is None:
            raise StuckError("the simulation itself would wait")
        return self.current

    def _hub(self) -> None:
        # Python knows one running event loop for each real thread, and all tasks share one.
        running_loop = _get_running_loop()
        if running_loop is None:
            self._loop.switch()
            return
        _set_running_loop(None)
        self._loop.switch()
        _set_running_loop(running_loop)


# Some libraries make and take locks while they are imported.
_kernels = [Kernel(0)]


def kernel() -> Kernel:
    """The simulated machine of this process."""
    return _kernels[-1]


def begin(seed: int) -> Kernel:
    """Make the simulated machine of this process."""
    made = Kernel(seed)
    _kernels[:] = [made]
    return made
