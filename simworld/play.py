"""Plays scenarios, each in a forked process."""

import faulthandler
import json
import math
import os
import resource
import select
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpuagent.host import cgroup_watch, limits_client
from gpuagent.kube.api import pages, transport
from gpuagent.system import inotify
from gpuscheduler.cluster_api import list_watch
from simworld.claim_scenario import draw_world
from simworld.parts.limits_helper import HelperConnection
from simworld.runtime import http
from simworld.runtime.files import ProcessInotify, process_pipe, process_pipe2, replace_disk
from simworld.runtime.kernel import begin
from simworld.runtime.replace import seed_library
from simworld.scenario import Scenario
from simworld.shrink import shrunk
from simworld.stored import Stored
from simworld.totals import Totals
from simworld.world import World
from standin.api import watch

watch._LOOK_S = 5.0  # noqa: SLF001 (a change wakes it; in virtual time, idle looks only cost)


LONGEST_S = 300
"""CPU seconds that one scenario may take: a world that is stuck at one moment would take for ever.

Real seconds would say more about other work on the machine than about the scenario.
"""
IDLE_S = 60.0
"""Real seconds without a CPU second after which a process waits for ever: a real lock, or a real connection."""
PROGRESS_S = 30.0
"""Real seconds between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        seed: of it.
        broken: promises that were broken, in words.
        turns: task switches.
        seconds: virtual seconds.
        starts: containers that started.
        story: entries of the history, one a line.
        error: why the simulation itself failed, which is the promise that is broken then; empty if it did not.
    """

    seed: int
    broken: tuple[str, ...]
    turns: int
    seconds: float
    starts: int
    story: tuple[str, ...]
    error: str = ""


def play(scenario: Scenario, root: Path, *, until: str | None = None) -> Outcome:
    """Play a scenario in this process, whose machine is replaced. Nothing else can be played in it afterwards.

    With `until`, the world ends with the first promise that is broken in a sentence with these words; "" is in each.
    """
    machine = begin(scenario.seed)
    seed_library(scenario.seed)
    began = machine.now
    world = World(scenario, root, until=until)
    inotify.Inotify = ProcessInotify  # type: ignore[misc]
    cgroup_watch.Inotify = ProcessInotify  # type: ignore[attr-defined]
    os.pipe = process_pipe
    os.pipe2 = process_pipe2
    replace_disk()
    limits_client._Connection = HelperConnection  # type: ignore[misc,assignment]  # noqa: SLF001 (its wire)
    transport.connect = lambda *_: http.Transport(world.api)  # type: ignore[assignment]
    if scenario.page:
        _ask_for_pages_of(scenario.page)
    history = world.history
    error = ""
    try:
        world.run()
    except Exception as failure:  # noqa: BLE001 (the story up to it says how it came to that)
        error = traceback.format_exc()
        history.break_promise(f"the simulation failed: {type(failure).__name__}: {failure}")
    return Outcome(
        scenario.seed,
        tuple(history.broken),
        machine.turns,
        machine.now - began,
        history.starts,
        tuple(map(str, history.entries)),
        error,
    )


def _ask_for_pages_of(objects: int) -> None:
    """Have agents and replicas of gpuscheduler ask for so many objects in each page of a list."""
    pages.PAGE = objects
    list_watch.PAGE = objects
    list_watch.MOST_IN_PAGE = objects


def play_one(scenario: Scenario, root: Path, most_tries: int) -> Stored | None:
    """Play a scenario, and print its story. One that breaks a promise is made shorter first.

    Returns:
        The shortest scenario that breaks a promise; None if this one breaks none.
    """
    outcome = Fork(scenario, root).outcome()
    if outcome.broken and most_tries:
        scenario = _shortened(scenario, len(outcome.broken), root, most_tries)
        # The promises and the story of the shorter one.
        outcome = Fork(scenario, root).outcome()
    _print_story(scenario, outcome)
    if not outcome.broken:
        return None
    return Stored(outcome.broken[0], "", scenario)


def _shortened(scenario: Scenario, broken: int, root: Path, most_tries: int) -> Scenario:
    """The shortest scenario that was found to break what this one breaks first."""
    print(f"seed {scenario.seed} breaks {broken} promises; it is made shorter, with {most_tries} tries at most")
    return shrunk(scenario, lambda tried: _first_broken(tried, root), most_tries)


def _print_story(scenario: Scenario, outcome: Outcome) -> None:
    kubelets = scenario.nodes
    size = f"{len(kubelets)} nodes of {scenario.gpus} GPUs"
    print(f"{size} in mode {scenario.mode}, kubelets {kubelets}")
    print("\n".join(outcome.story))
    if outcome.error:
        print(outcome.error)
    broken = len(outcome.broken)
    length = f"{outcome.turns} turns, {outcome.seconds:.0f} virtual seconds"
    print(f"seed {scenario.seed}: {broken} broken, {length}")


def _first_broken(scenario: Scenario, root: Path) -> str:
    broken = Fork(scenario, root).outcome().broken
    return broken[0] if broken else ""


def _failed(scenario: Scenario, why: str) -> Outcome:
    """The outcome of a scenario that could not be played to its end."""
    error = f"the simulation failed: {why}"
    return Outcome(scenario.seed, (error,), turns=0, seconds=0.0, starts=0, story=(), error=error)


class Fork:
    """A scenario that is played in a process of its own: as it is, or with a fault until that breaks a promise.

    Args:
        scenario: what is played.
        root: folder for its files.
        put_back: puts the fault back; None to play the scenario as it is.
        words: of the sentence with which the fault is found; empty for any broken promise.
    """

    def __init__(
        self, scenario: Scenario, root: Path, put_back: Callable[[], None] | None = None, words: str = ""
    ) -> None:
        self.scenario = scenario
        self._put_back = put_back
        self._words = words
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            self._play(write, root)
        os.close(write)
        self._read = read

    def _play(self, write: int, root: Path) -> None:
        folder = root / str(os.getpid())
        folder.mkdir()
        # Each of the signals ends the process, and its standard error says where it was.
        faulthandler.register(signal.SIGXCPU, chain=True)
        faulthandler.register(signal.SIGUSR1, chain=True)
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S + 10))
        try:
            if self._put_back is not None:
                self._put_back()
            until = None if self._put_back is None else self._words
            outcome = play(self.scenario, folder, until=until)
        except BaseException as error:  # noqa: BLE001 (everything is an outcome)
            why = f"{type(error).__name__}: {error}"
            outcome = replace(_failed(self.scenario, why), error=traceback.format_exc())
        with os.fdopen(write, "w") as pipe:
            json.dump(asdict(outcome), pipe)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def outcome(self) -> Outcome:
        """Wait for the end."""
        text = self._answer()
        _, status = os.waitpid(self.pid, 0)
        if not text:
            return _failed(self.scenario, _why_it_died(status))
        answer = json.loads(text)
        answer["broken"] = tuple(answer["broken"])
        answer["story"] = tuple(answer["story"])
        return Outcome(**answer)

    def _answer(self) -> str:
        """What the process writes in the end. One that does nothing for long is killed: its limit is CPU time."""
        used_s = -1.0
        with os.fdopen(self._read) as pipe, select.epoll() as poll:
            poll.register(pipe, select.EPOLLIN)
            # The answer begins when the world has been played.
            while not poll.poll(IDLE_S):
                used_before_s = used_s
                used_s = _cpu_s(self.pid)
                if used_s == used_before_s:
                    os.kill(self.pid, signal.SIGUSR1)
            return pipe.read()


def _cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    # The name in parentheses may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _why_it_died(status: int) -> str:
    """Why a process has ended without an answer."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    match number:
        case signal.SIGXCPU | signal.SIGKILL:
            return f"it took longer than {LONGEST_S} s of CPU time, or was killed for memory"
        case signal.SIGUSR1:
            return f"it did nothing for {IDLE_S:g} s: it waits for something outside of the simulation"
        case _:
            return f"its process died with status {status}"


def play_many(  # noqa: PLR0913 (what was given)
    first: int,
    seconds: float | None,
    most: int | None,
    jobs: int,
    root: Path,
    clock: Callable[[], float],
    *,
    until_found: bool = False,
    draw: Callable[[int], Scenario] = draw_world,
) -> Totals:
    """Play seeds from the first one on until the time is over, or so many of them.

    Either of `seconds` and `most` is None. A number of seeds has no time: a busy machine would pass with a few of them.
    With `until_found`, no more seeds begin once one was.
    """
    began = clock()
    until = math.inf if seconds is None else began + seconds
    next_line_at = began + PROGRESS_S
    running: list[Fork] = []
    seed = first
    totals = Totals(first)
    end = None if most is None else first + most

    def may_begin() -> bool:
        is_found = until_found and bool(totals.failed)
        return seed != end and clock() < until and not is_found

    while running or may_begin():
        while len(running) < jobs and may_begin():
            running.append(Fork(draw(seed), root))
            seed += 1
        fork = running.pop(0)
        outcome = fork.outcome()
        totals.add(fork.scenario, turns=outcome.turns, starts=outcome.starts, virtual_s=outcome.seconds)
        if outcome.broken:
            totals.failed.append(outcome.seed)
            print(f"{clock() - began:.0f} s: seed {outcome.seed}: {outcome.broken[0]}", flush=True)
        if clock() >= next_line_at:
            next_line_at = clock() + PROGRESS_S
            print(f"{clock() - began:.0f} s: {totals.seeds} seeds, {len(totals.failed)} broken", flush=True)
    largest_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(totals.words(clock() - began, largest_kib / 1024), flush=True)
    return totals
